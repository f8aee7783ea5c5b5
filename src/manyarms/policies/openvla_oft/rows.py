"""What lies between products of matrices, row by row: sums, norms, gates, and rounding to eight bits.

Each is written here in PyTorch; on a GPU with Triton its kernel is used instead.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

_MOST = 448.0
"""The largest number of float8_e4m3fn."""
_LEAST = 1e-12


class Rounded(NamedTuple):
    """Rows of eight-bit numbers, each to be multiplied by its scale."""

    values: Tensor  # [rows, width], float8_e4m3fn
    scales: Tensor  # [rows, 1], float32


class Pending(NamedTuple):
    """A product that is yet to be multiplied by the scales of its rows and columns, and added."""

    product: Tensor  # [rows, width]
    rows: Tensor  # [rows, 1]
    columns: Tensor  # [width, 1]

    def value(self) -> Tensor:
        return self.product.float() * self.rows * self.columns.t()


def eight_bits_on(device: str) -> bool:
    """Tell whether a device multiplies numbers of eight bits."""
    usable = device.startswith("cuda") and torch.cuda.is_available() and not torch.version.hip
    return usable and torch.cuda.get_device_capability(device) >= (8, 9)


@cache
def _kernels() -> Any:
    """Return the kernels of Triton, or None where there is none."""
    if not torch.cuda.is_available() or torch.version.hip or not find_spec("triton"):
        return None
    from manyarms.policies.openvla_oft import kernels

    return kernels


def _kernel(x: Tensor) -> Any:
    return _kernels() if x.is_cuda and x.dtype == torch.bfloat16 else None


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return rows divided by their root mean square, times `weight`."""
    if kernels := _kernel(x):
        return kernels.rms_norm(x, weight, epsilon)
    return plain_rms_norm(x, weight, epsilon)


def plain_rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """As `rms_norm`, for code that is compiled as a whole."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def rounded_rms_norm(x: Tensor, pending: Pending | None, weight: Tensor, epsilon: float) -> Rounded:
    """Add to `x` what is pending, and return its rows normed and rounded."""
    if kernels := _kernel(x):
        added, scales = (None, None) if pending is None else (pending.product, (pending.rows, pending.columns))
        return Rounded(*kernels.rounded_rms_norm(x, added, scales, weight, epsilon))
    if pending is not None:
        x.copy_(x.float() + pending.value())
    return rounded(rms_norm(x, weight, epsilon))


def layer_norm(x: Tensor, added: Tensor | None, factor: Tensor | None, norm: Any) -> Tensor:
    """Add `added`, times `factor` where there is one, to `x`, and return its rows as LayerNorm `norm` makes them."""
    if kernels := _kernel(x):
        return kernels.layer_norm(x, added, factor, norm.weight, norm.bias, norm.eps)
    if added is not None:
        x.add_(added if factor is None else added * factor)
    return functional.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)


def rounded_gate(x: Tensor) -> Rounded:
    """Return silu(first half) * second half of rows, rounded."""
    if kernels := _kernel(x):
        return Rounded(*kernels.rounded_gate(x))
    gate, up = x.float().chunk(2, -1)
    return rounded(functional.silu(gate) * up)


def rounded(x: Tensor) -> Rounded:
    """Round rows so that the largest number of each is the largest that eight bits can hold."""
    if kernels := _kernel(x):
        return Rounded(*kernels.rounded(x))
    wide = x.float()
    scales = wide.abs().amax(-1, keepdim=True).clamp(min=_LEAST) / _MOST
    return Rounded((wide / scales).to(torch.float8_e4m3fn), scales)


def product(x: Rounded, matrix: Rounded) -> Tensor:
    """Return x matrixᵀ: in bfloat16 on a GPU, else in float32."""
    if x.values.is_cuda:
        return _scaled_product(x.values, matrix.values, x.scales, matrix.scales.t())
    return pending_product(x, matrix).value()


def pending_product(x: Rounded, matrix: Rounded) -> Pending:
    """Return x matrixᵀ without its scales: with few rows, libraries do that faster."""
    if x.values.is_cuda:
        one = _one(x.values.device)
        found = _scaled_product(x.values, matrix.values, one, one)
    else:
        found = functional.linear(x.values.float(), matrix.values.float())
    return Pending(found, x.scales, matrix.scales)


def _scaled_product(x: Tensor, matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
        x, matrix.t(), scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16, use_fast_accum=True
    )


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device)
