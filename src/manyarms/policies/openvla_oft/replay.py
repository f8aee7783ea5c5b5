"""Passes of a network as CUDA graphs: captured once for every shape of inputs, replayed from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manyarms.policies.openvla_oft.model import Sequence

_MOST_GRAPHS = 32


class Replayed:
    """A pass of the network, captured once for every shape of its inputs and replayed from then on."""

    def __init__(self, forward: Callable[[Tensor, Sequence, Tensor | None], Tensor]) -> None:
        self._forward = forward
        self._graphs: dict[Any, _Graph] = {}
        self._pool: Any = None

    def __call__(self, pixels: Tensor, sequence: Sequence, state: Tensor | None = None) -> Tensor:
        """Return what `forward` would; the tensor is valid until the next call."""
        rows = len(pixels)
        laid_out = (sequence.ids.shape[1], sequence.slots, sequence.ragged, sequence.stop)
        key = (_bucket(rows), *laid_out, pixels.shape[1:], state is None)
        if key not in self._graphs:
            if len(self._graphs) >= _MOST_GRAPHS:
                return self._forward(pixels, sequence, state)
            self._graphs[key] = _Graph(self._forward, _bucket(rows), pixels, sequence, state, self._pool)
            self._pool = self._pool or self._graphs[key].pool
        return self._graphs[key](pixels, sequence, state)[:rows]


def _bucket(rows: int) -> int:
    """Return how many rows a graph for `rows` has."""
    return next((size for size in (1, 2, 4, 8) if rows <= size), -(-rows // 8) * 8)


class _Graph:
    def __init__(
        self,
        forward: Callable[[Tensor, Sequence, Tensor | None], Tensor],
        rows: int,
        pixels: Tensor,
        sequence: Sequence,
        state: Tensor | None,
        pool: Any,
    ) -> None:
        self._pixels = _grown(pixels, rows)
        self._sequence = Sequence(
            _grown(sequence.ids, rows), _grown(sequence.lengths, rows), sequence.slots, sequence.ragged, sequence.stop
        )
        self._state = None if state is None else _grown(state, rows)
        inputs = (self._pixels, self._sequence, self._state)
        apart = torch.cuda.Stream()
        apart.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(apart):  # compiles, and chooses kernels
            for _ in range(3):
                forward(*inputs)
        torch.cuda.current_stream().wait_stream(apart)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._found = forward(*inputs)
        self.pool = self._graph.pool()

    def __call__(self, pixels: Tensor, sequence: Sequence, state: Tensor | None) -> Tensor:
        rows = len(pixels)
        self._pixels[:rows].copy_(pixels)
        self._sequence.ids[:rows].copy_(sequence.ids)
        self._sequence.lengths[:rows].copy_(sequence.lengths)
        if state is not None and self._state is not None:
            self._state[:rows].copy_(state)
        self._graph.replay()
        return self._found


def _grown(tensor: Tensor, rows: int) -> Tensor:
    """Return a copy with so many rows, the last one repeated."""
    index = torch.arange(rows, device=tensor.device).clamp(max=len(tensor) - 1)
    return tensor[index].clone()
