"""Kernels of Triton for what lies between products of matrices: sums, norms and rounding in one reading of a row.

What they compute is written in plain PyTorch in `rows.py`.
"""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

_MOST = tl.constexpr(448.0)  # of float8_e4m3fn
_LEAST = tl.constexpr(1e-12)


@triton.jit
def _row(width, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    return row, columns, columns < width, row * width + columns


@triton.jit
def _store_sum(value, more, x, places, inside):
    value = (value.to(tl.float32) + more).to(value.dtype)
    tl.store(x + places, value, inside)
    return value


@triton.jit
def _store_rounded(found, out, scales, row, places, inside):
    scale = tl.maximum(tl.max(tl.where(inside, tl.abs(found), 0.0)), _LEAST) / _MOST
    tl.store(scales + row, scale)
    tl.store(out + places, (found / scale).to(out.dtype.element_ty), inside)


@triton.jit
def _rms_rows(
    x, added, row_scales, column_scales, weight, out, scales, width, epsilon,
    adds: tl.constexpr, scaled: tl.constexpr, rounds: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, columns, inside, places = _row(width, block)
    value = tl.load(x + places, inside, 0.0)
    if adds:
        more = tl.load(added + places, inside, 0.0).to(tl.float32)
        if scaled:
            more = more * tl.load(row_scales + row) * tl.load(column_scales + columns, inside, 0.0)
        value = _store_sum(value, more, x, places, inside)
    wide = value.to(tl.float32)
    wide = wide * tl.rsqrt(tl.sum(wide * wide) / width + epsilon)
    found = wide.to(value.dtype) * tl.load(weight + columns, inside, 0.0)
    if rounds:
        _store_rounded(found.to(tl.float32), out, scales, row, places, inside)
    else:
        tl.store(out + places, found, inside)


@triton.jit
def _layer_norm_rows(
    x, added, factor, weight, bias, out, width, epsilon,
    adds: tl.constexpr, scaled: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    _, columns, inside, places = _row(width, block)
    value = tl.load(x + places, inside, 0.0)
    if adds:
        more = tl.load(added + places, inside, 0.0).to(tl.float32)
        if scaled:
            more = more * tl.load(factor + columns, inside, 0.0).to(tl.float32)
        value = _store_sum(value, more, x, places, inside)
    wide = value.to(tl.float32)
    centred = tl.where(inside, wide - tl.sum(wide) / width, 0.0)
    centred = centred * tl.rsqrt(tl.sum(centred * centred) / width + epsilon)
    found = centred * tl.load(weight + columns, inside, 0.0) + tl.load(bias + columns, inside, 0.0)
    tl.store(out + places, found.to(value.dtype), inside)


@triton.jit
def _gate(x, row, width, columns):
    inside = columns < width
    gate = tl.load(x + row * 2 * width + columns, inside, 0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + columns, inside, 0.0).to(tl.float32)
    return gate * tl.sigmoid(gate) * up


@triton.jit
def _gated_rows(x, out, scales, width, large: tl.constexpr, small: tl.constexpr):
    # In two pieces: a power of two that holds a whole row would be half empty.
    row = tl.program_id(0).to(tl.int64)
    first, second = tl.arange(0, large), large + tl.arange(0, small)
    one, other = _gate(x, row, width, first), _gate(x, row, width, second)
    scale = tl.maximum(tl.maximum(tl.max(tl.abs(one)), tl.max(tl.abs(other))), _LEAST) / _MOST
    tl.store(scales + row, scale)
    tl.store(out + row * width + first, (one / scale).to(out.dtype.element_ty), first < width)
    tl.store(out + row * width + second, (other / scale).to(out.dtype.element_ty), second < width)


@triton.jit
def _rounded_rows(x, out, scales, width, block: tl.constexpr):
    row, _, inside, places = _row(width, block)
    _store_rounded(tl.load(x + places, inside, 0.0).to(tl.float32), out, scales, row, places, inside)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    out = torch.empty_like(x)
    _launch(_rms_rows, x, None, None, None, weight, out, None, x.shape[1], epsilon, False, False, False)
    return out


def rounded_rms_norm(
    x: Tensor, added: Tensor | None, scales: tuple[Tensor, Tensor] | None, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    out, found = _eight_bits(x, x.shape[1])
    rows, columns = scales or (None, None)
    flags = (added is not None, scales is not None, True)
    _launch(_rms_rows, x, added, rows, columns, weight, out, found, x.shape[1], epsilon, *flags)
    return out, found


def layer_norm(
    x: Tensor, added: Tensor | None, factor: Tensor | None, weight: Tensor, bias: Tensor, epsilon: float
) -> Tensor:
    out = torch.empty_like(x)
    flags = (added is not None, factor is not None)
    _launch(_layer_norm_rows, x, added, factor, weight, bias, out, x.shape[1], epsilon, *flags)
    return out


def rounded_gate(x: Tensor) -> tuple[Tensor, Tensor]:
    out, scales = _eight_bits(x, x.shape[1] // 2)
    width = out.shape[1]
    large = max(16, triton.next_power_of_2(width) // 2)
    small = max(16, triton.next_power_of_2(width - large))
    _gated_rows[(len(x),)](x, out, scales, width, large, small, num_warps=8)  # pyright: ignore[reportIndexIssue]
    return out, scales


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    out, scales = _eight_bits(x, x.shape[1])
    _launch(_rounded_rows, x, out, scales, x.shape[1])
    return out, scales


def _eight_bits(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    values = torch.empty(len(x), width, device=x.device, dtype=torch.float8_e4m3fn)
    return values, torch.empty(len(x), 1, device=x.device, dtype=torch.float32)


def _launch(kernel, x: Tensor, *arguments) -> None:
    """Run a kernel with a program for every row."""
    block = triton.next_power_of_2(x.shape[1])
    warps = min(16, max(4, block // 1024))
    kernel[(len(x),)](x, *arguments, block=block, num_warps=warps)
