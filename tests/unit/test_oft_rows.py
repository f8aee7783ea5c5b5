"""What OpenVLA-OFT's fast pass does between products, and products of eight bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from manyarms.policies.openvla_oft import rows
from manyarms.policies.openvla_oft.rows import Pending, Rounded

triton = pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton's kernels need a GPU")


def value(x: Rounded) -> Tensor:
    return x.values.float() * x.scales


def distance(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.float().cpu(), wanted.float().cpu()
    return float((found - wanted).norm() / wanted.norm())


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 1000), st.floats(-20.0, 20.0))
def test_rounding_keeps_four_bits_of_every_number_that_matters(seed: int, exponent: float) -> None:
    x = drawn(3, 40, seed=seed) * torch.tensor([1.0, 2.0**exponent, 0.0])[:, None]
    found = rows.rounded(x)
    error, most = (value(found) - x).abs(), x.abs().amax(-1, keepdim=True)
    # Three bits behind the first; below 2⁻⁶ of 448, all numbers are equally far apart.
    assert (error <= torch.maximum(x.abs() * 2.0**-4, most * 2.0**-10 / 448.0 * 1.01) + 1e-30).all()
    torch.testing.assert_close(value(found).abs().amax(-1, keepdim=True), most, rtol=1e-6, atol=1e-30)


@given(st.integers(0, 1000))
def test_products_of_eight_bits_are_products_of_what_they_stand_for(seed: int) -> None:
    x, matrix = rows.rounded(drawn(5, 64, seed=seed)), rows.rounded(drawn(7, 64, seed=seed + 1))
    wanted = value(x) @ value(matrix).t()
    torch.testing.assert_close(rows.pending_product(x, matrix).value(), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rows.product(x, matrix).float(), wanted, rtol=1e-2, atol=1e-4)


def test_what_is_pending_is_added_before_the_norm() -> None:
    x, weight = drawn(4, 32), drawn(32, seed=1)
    pending = Pending(drawn(4, 32, seed=2), drawn(4, 1, seed=3).abs(), drawn(32, 1, seed=4).abs())
    total = x + pending.product * pending.rows * pending.columns.t()
    wanted = nn.functional.rms_norm(total, (32,), weight, 1e-6)
    found = rows.rounded_rms_norm(x, pending, weight, 1e-6)
    torch.testing.assert_close(x, total)
    assert distance(value(found), wanted) < 0.04


@pytest.mark.parametrize("scaled", [False, True])
def test_a_layer_norm_of_a_sum_leaves_the_sum_behind(scaled: bool) -> None:
    norm: Any = nn.LayerNorm(24, eps=1e-6).requires_grad_(False)
    x, added = drawn(3, 24), drawn(3, 24, seed=1)
    factor = drawn(24, seed=2) if scaled else None
    total = x + added * (1.0 if factor is None else factor)
    torch.testing.assert_close(rows.layer_norm(x, added, factor, norm), norm(total))
    torch.testing.assert_close(x, total)


@triton
@pytest.mark.parametrize("width", [4096, 1152])
def test_kernels_are_what_pytorch_gives(width: int) -> None:
    x, weight, added = (
        tensor.bfloat16() for tensor in (3.0 * drawn(603, width), drawn(width), drawn(603, width, seed=1))
    )
    pending = Pending(added, drawn(603, 1).abs(), drawn(width, 1).abs())
    norm: Any = nn.LayerNorm(width, eps=1e-6).bfloat16().requires_grad_(False)
    gpu: Any = nn.LayerNorm(width, eps=1e-6).bfloat16().requires_grad_(False).cuda()

    def both(function: Any, *arguments: Any) -> None:
        here, there = [argument.clone() for argument in arguments], [argument.cuda() for argument in arguments]
        wanted, found = function(*here), function(*there)
        pair = (value(found), value(wanted)) if isinstance(wanted, Rounded) else (found, wanted)
        assert distance(*pair) < 0.02
        assert distance(there[0], here[0]) < 4e-3

    both(lambda x, weight: rows.rms_norm(x, weight, 1e-6), x, weight)
    both(rows.rounded, x)
    both(rows.rounded_gate, x)
    both(lambda x, *more: rows.rounded_rms_norm(x, Pending(*more[:3]), more[3], 1e-6), x, *pending, weight)
    both(lambda x, more: rows.layer_norm(x, more, None, gpu if x.is_cuda else norm), x, added)
    both(lambda x, more, factor: rows.layer_norm(x, more, factor, gpu if x.is_cuda else norm), x, added, weight)
    matrix = added[:592]  # libraries want a multiple of 16
    both(lambda x, w: rows.product(rows.rounded(x), rows.rounded(w)), x, matrix)
    both(lambda x, w: rows.pending_product(rows.rounded(x), rows.rounded(w)).value(), x, matrix)
