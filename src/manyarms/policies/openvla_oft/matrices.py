"""Matrices of a network as its fast pass multiplies with them: side by side where they read the same input.

Weights are not copied: matrices side by side lie in one, and the network's own become views of it. Adapters stay beside
them, since small steps of what they learn would be rounded away in weights of bfloat16; they are rounded by themselves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Adapter(NamedTuple):
    """What LoRA adds to a product: scale · up · down · x."""

    down: Tensor  # [rank, inputs]
    up: Tensor  # [outputs, rank]
    scale: float


class Adapters:
    """Adapters of all matrices as products read them, in the precision of those; `refresh` takes what was learnt."""

    def __init__(self) -> None:
        self._rounded: list[Tensor] = []
        self._learning: list[Tensor] = []

    def of(self, parts: tuple[Any, ...], dtype: torch.dtype) -> tuple[Tensor | None, tuple[Adapter, ...]]:
        """Return the way down of all adapters of parts, one below the other, and each of them."""
        found = [_adapter(part) for part in parts if part is not base(part)]
        if not found:
            return None, ()
        downs = torch.cat([adapter.down.detach() for adapter in found]).to(dtype)
        own = []
        for adapter, down in zip(found, downs.split([len(adapter.down) for adapter in found]), strict=True):
            own.append(Adapter(down, adapter.up.detach().to(dtype, copy=True), adapter.scale))
            self._rounded += own[-1][:2]
            self._learning += [adapter.down, adapter.up]
        return downs, tuple(own)

    def refresh(self) -> None:
        if self._rounded:
            torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
                self._rounded, [tensor.detach() for tensor in self._learning]
            )


class Matrix(NamedTuple):
    """Matrices side by side, and the adapters of each: of all, or of none."""

    weight: Tensor
    bias: Tensor | None = None
    downs: Tensor | None = None
    adapters: tuple[Adapter, ...] = ()

    def product(self, x: Tensor) -> Tensor:  # [rows, inputs] -> [rows, outputs]
        found = functional.linear(x, self.weight, self.bias)
        self.adapt(found, x)
        return found

    def add_product(self, total: Tensor, x: Tensor) -> None:
        """Add a product to `total`, without writing it by itself; there is no bias."""
        total.addmm_(x, self.weight.t())
        self.adapt(total, x)

    def gelu_of_product(self, x: Tensor) -> Tensor:
        """Return GELU of a product, within it where a GPU can do that: there by tanh, nearer than bfloat16."""
        if x.is_cuda and x.dtype == torch.bfloat16 and self.bias is not None and not self.adapters:
            return torch._addmm_activation(  # pyright: ignore[reportPrivateImportUsage]
                self.bias, x, self.weight.t(), use_gelu=True
            )
        return functional.gelu(self.product(x))

    def split(self, row: int) -> tuple[Matrix, Matrix]:
        """Return the first of the matrices, which ends at `row`, and the others; there is no bias."""
        rank = len(self.adapters[0].down) if self.adapters else 0
        first, others = (None, None) if self.downs is None else (self.downs[:rank], self.downs[rank:])
        return (
            Matrix(self.weight[:row], None, first, self.adapters[:1]),
            Matrix(self.weight[row:], None, others, self.adapters[1:]),
        )

    def merged(self) -> Tensor:
        """Return the matrix with what its adapters add."""
        if not self.adapters:
            return self.weight
        added = [adapter.up.float() @ adapter.down.float() * adapter.scale for adapter in self.adapters]
        return self.weight.float() + torch.cat(added)

    def adapt(self, total: Tensor, x: Tensor) -> None:
        """Add to a product what adapters make of its input."""
        if self.downs is None:
            return
        low = functional.linear(x, self.downs)
        row = rank = 0
        for down, up, scale in self.adapters:
            part = total[:, row : row + len(up)]
            part.addmm_(low[:, rank : rank + len(down)], up.t(), alpha=scale)
            row, rank = row + len(up), rank + len(down)


def matrix(adapters: Adapters, *parts: Any) -> Matrix:
    """Put parts that read the same input into one matrix, of which they become views; one by itself stays as it is."""
    plain = [base(part) for part in parts]
    weight = plain[0].weight.detach() if len(plain) == 1 else _side_by_side(plain)
    bias = plain[0].bias if len(plain) == 1 else None
    return Matrix(weight, bias, *adapters.of(parts, weight.dtype))


def base(part: Any) -> Any:
    """Return a linear part without its adapter."""
    return getattr(part, "base_layer", part)


def plain_parts(parts: list[Any]) -> bool:
    """Tell whether parts are linear, but for one adapter on all or none."""
    adapted = {tuple(getattr(part, "active_adapters", ())) for part in parts}
    linear = all(type(base(part)) is nn.Linear for part in parts)
    return linear and len(adapted) == 1 and len(adapted.pop()) <= 1


def separate(parts: list[Any]) -> None:
    """Give parts matrices of their own again."""
    with torch.inference_mode(False):
        for part in map(base, parts):
            part.weight.data = part.weight.data.clone()


def _side_by_side(plain: list[Any]) -> Tensor:
    with torch.inference_mode(False):  # or nothing could be learnt with these weights any more
        joined = _joined([part.weight.data for part in plain])
        if joined is None:
            joined = torch.cat([part.weight.data for part in plain])
            for part, view in zip(plain, joined.split([len(part.weight) for part in plain]), strict=True):
                part.weight.data = view
        return joined


def _joined(views: list[Tensor]) -> Tensor | None:
    """Return the matrix that matrices are views of already, one after the other, or None."""
    first, size = views[0], sum(view.numel() for view in views)
    ends = [view.data_ptr() + view.nbytes for view in views]
    if first.untyped_storage().nbytes() != size * first.element_size() or first.storage_offset():
        return None
    if any(view.data_ptr() != end for view, end in zip(views[1:], ends[:-1], strict=True)):
        return None
    return first.as_strided((size // first.shape[1], first.shape[1]), (first.shape[1], 1))


def _adapter(part: Any) -> Adapter:
    (name,) = part.active_adapters
    return Adapter(part.lora_A[name].weight, part.lora_B[name].weight, part.scaling[name])
