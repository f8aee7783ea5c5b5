"""Weights on their way from those who learn to those who act: packed, numbered, whole or not at all."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyarms.errors import LearningError
from manyarms.learning.parallel import give_weights
from manyarms.policies.trainable import TrainablePolicy

_ALIGNMENT = 64


@dataclass(frozen=True)
class Weights:
    """All weights of a policy in one buffer: it lies in the object store once, and every process of a node reads it."""

    version: int
    """Updates that made them."""
    table: tuple[tuple[str, str, tuple[int, ...], int], ...]
    """Name, dtype, shape and place of every tensor."""
    buffer: np.ndarray  # [bytes]

    def tensors(self) -> dict[str, Tensor]:
        """Return views of them, not to be written to."""
        found = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what comes out of the object store is locked, which PyTorch warns of
            whole = torch.from_numpy(self.buffer)
        for name, dtype, shape, start in self.table:
            kind = getattr(torch, dtype)
            count = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
            found[name] = whole[start : start + count].view(kind).view(shape)
        return found


def layout_of(state: Mapping[str, Tensor]) -> tuple[tuple[tuple[str, str, tuple[int, ...], int], ...], int]:
    """Return where each tensor lies in a buffer, and the buffer's size."""
    table, place = [], 0
    for name, tensor in state.items():
        table.append((name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), place))
        place += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
    return tuple(table), place


def pack(state: Mapping[str, Tensor], version: int) -> Weights:
    """Copy weights into one buffer."""
    table, size = layout_of(state)
    packed = Weights(version, table, np.zeros(size, np.uint8))
    for name, view in packed.tensors().items():
        view.copy_(state[name])
    return packed


class Held:
    """The weights that a policy acts with, and which version they are."""

    def __init__(self, policy: TrainablePolicy) -> None:
        self._policy = policy
        self.version: int | None = None
        """None: those it was made with, or a torn copy."""

    def take(self, weights: Weights) -> None:
        """Copy weights into the policy; what does not fit is refused before anything changes."""
        state = self._policy.trainable_state()
        if weights.table != layout_of(state)[0]:
            raise LearningError(
                "the weights that arrived are not those of this policy", do="run one version everywhere"
            )
        self.version = None
        give_weights(self._policy, weights.tensors())
        self.version = weights.version

    def check(self, version: int) -> None:
        """Refuse to act with any other version."""
        if self.version != version:
            here = "none" if self.version is None else f"version {self.version}"
            raise LearningError(f"version {version} of the weights is to play, but here is {here}")


class Broadcast:
    """New weights from the first learner to all who act at once: nccl between GPUs, gloo between CPUs."""

    def __init__(self, address: str, rank: int, world: int, *, on_gpu: bool, seconds: float) -> None:
        """Join; `rank` 0 is the learner, at whose `address` the others meet."""
        from torch import distributed

        host, _, port = address.rpartition(":")
        patience = timedelta(seconds=seconds)
        store = distributed.TCPStore(host, int(port), world, rank == 0, patience)  # pyright: ignore[reportPrivateImportUsage]
        # A group beside the learners' own: PyTorch has one default group a process.
        group: Any = distributed.ProcessGroupNCCL if on_gpu else distributed.ProcessGroupGloo
        self._group = group(store, rank, world, patience)
        self._device = "cuda" if on_gpu else "cpu"

    def send(self, state: Mapping[str, Tensor], version: int) -> None:
        """Give weights to all others."""
        table, size = layout_of(state)
        self._broadcast(torch.tensor([version, size, _digest(table)], dtype=torch.int64, device=self._device))
        buffer = torch.zeros(size, dtype=torch.uint8, device=self._device)
        for (_, _, _, start), tensor in zip(table, state.values(), strict=True):
            flat = tensor.detach().contiguous().view(-1).view(torch.uint8).to(self._device)
            buffer[start : start + len(flat)] = flat
        self._broadcast(buffer)

    def receive(self, held: Held, state: Mapping[str, Tensor]) -> None:
        """Take weights from the first, into the policy whose weights `state` are."""
        table, size = layout_of(state)
        header = torch.zeros(3, dtype=torch.int64, device=self._device)
        self._broadcast(header)
        version, theirs, digest = header.tolist()
        buffer = torch.zeros(theirs, dtype=torch.uint8, device=self._device)
        self._broadcast(buffer)
        # The digest is of names, dtypes and shapes: with another layout the bytes would mean something else.
        ours = table if (theirs, digest) == (size, _digest(table)) else ()
        held.take(Weights(version, ours, buffer.cpu().numpy()))

    def _broadcast(self, tensor: Tensor) -> None:
        self._group.broadcast(tensor, 0).wait()


def _digest(table: object) -> int:
    return zlib.crc32(repr(table).encode())
