"""Action queues: what each row has still to do before its policy is asked again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from manyarms.arrays import Array, empty, padded
from manyarms.policies.base import ActionChunk


class ActionQueues:
    """One queue per row. A push replaces what is left of the row's last chunk."""

    def __init__(self, num_rows: int) -> None:
        self._actions: dict[str, Array] = {}  # [num_rows, K, …]
        self._next = np.zeros(num_rows, np.int64)
        self._end = np.zeros(num_rows, np.int64)

    def push(self, rows: Sequence[int] | np.ndarray, chunk: ActionChunk, horizon: int | None = None) -> None:
        """Queue the first `horizon` actions of each row's chunk (all by default)."""
        length = chunk.length
        self._make_room(chunk)
        for name, array in chunk.actions.items():
            self._actions[name][rows, :length] = array
        self._next[rows] = 0
        self._end[rows] = length if horizon is None else min(length, horizon)

    def pop(self, rows: Sequence[int] | np.ndarray, limit: int | None = None) -> tuple[dict[str, Array], np.ndarray]:
        """Take up to `limit` actions of each row: arrays [R, K, …] and how many of them are the row's own.

        Beyond its own, a row's last action is repeated.
        """
        rows = np.asarray(rows, np.int64)
        first = self._next[rows]
        left = self._end[rows] - first
        lengths = left if limit is None else np.minimum(left, limit)
        if not len(lengths) or lengths.min() < 1:
            raise IndexError(f"rows {rows[lengths < 1].tolist()} have nothing queued")
        longest = int(lengths.max())
        if lengths.min() == longest and first.min() == first.max():
            own = slice(int(first[0]), int(first[0]) + longest)
            taken = {name: array[rows, own] for name, array in self._actions.items()}
        else:
            offsets = np.minimum(np.arange(longest), lengths[:, None] - 1)  # [R, K]
            taken = {name: array[rows[:, None], first[:, None] + offsets] for name, array in self._actions.items()}
        self._next[rows] += lengths
        return taken, lengths

    def is_empty(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Tell which of `rows` have nothing left: [R]."""
        return self._next[rows] >= self._end[rows]

    def clear(self, rows: int | Sequence[int] | np.ndarray) -> None:
        """Forget what rows have left."""
        self._next[rows] = self._end[rows] = 0

    def _make_room(self, chunk: ActionChunk) -> None:
        for name, array in chunk.actions.items():
            room = self._actions.get(name)
            if room is None:
                self._actions[name] = empty(array[:, :0], len(self._next))
                room = self._actions[name]
            if room.shape[1] < array.shape[1]:
                self._actions[name] = padded(room, array.shape[1])
