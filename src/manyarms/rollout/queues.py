"""Action queues: what each row has still to do before its policy is asked again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from manyarms.policies.base import ActionChunk


class ActionQueues:
    """One queue a row. A push replaces what is left of the row's last chunk."""

    def __init__(self, num_rows: int) -> None:
        self._actions: dict[str, np.ndarray] = {}  # [num_rows, K, …]
        self._next = np.zeros(num_rows, np.int64)
        self._end = np.zeros(num_rows, np.int64)

    def push(self, rows: Sequence[int], chunk: ActionChunk, horizon: int | None = None) -> None:
        """Queue the first `horizon` actions of each row's chunk (all by default)."""
        length = chunk.length
        self._make_room(chunk)
        for name, array in chunk.actions.items():
            self._actions[name][rows, :length] = array
        self._next[rows] = 0
        self._end[rows] = length if horizon is None else min(length, horizon)

    def pop(self, rows: Sequence[int], limit: int | None = None) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Take up to `limit` actions of each row: arrays [R, K, …] and how many of them are the row's own.

        Beyond its own, a row's last action is repeated.
        """
        left = self._end[rows] - self._next[rows]
        lengths = left if limit is None else np.minimum(left, limit)
        if not len(lengths) or lengths.min() < 1:
            raise IndexError(f"rows {[r for r, n in zip(rows, lengths, strict=True) if n < 1]} have nothing queued")
        offsets = np.minimum(np.arange(lengths.max()), lengths[:, None] - 1)  # [R, K]
        index = (np.asarray(rows)[:, None], self._next[rows][:, None] + offsets)
        taken = {name: array[index] for name, array in self._actions.items()}
        self._next[rows] += lengths
        return taken, lengths

    def empty(self, rows: Sequence[int]) -> list[int]:
        """Return those of `rows` that have nothing left."""
        return [row for row in rows if self._next[row] >= self._end[row]]

    def clear(self, row: int) -> None:
        """Forget what a row has left."""
        self._next[row] = self._end[row] = 0

    def _make_room(self, chunk: ActionChunk) -> None:
        for name, array in chunk.actions.items():
            room = self._actions.get(name)
            if room is None or room.shape[1] < array.shape[1]:
                grown = np.zeros((len(self._next), *array.shape[1:]), array.dtype)
                if room is not None:
                    grown[:, : room.shape[1]] = room
                self._actions[name] = grown
