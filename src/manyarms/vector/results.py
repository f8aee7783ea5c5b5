"""What rows left in the arena, as the caller gets it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from manyarms.simulators.base import nest
from manyarms.vector.chunk import Chunk, ChunkTiming
from manyarms.vector.engine import Engine
from manyarms.vector.infos import InfoReader, add_info
from manyarms.vector.spaces import MergedSpec
from manyarms.workers import words as w


class ResultReader:
    """Reads observations, rewards, ends and infos of rows that have come back."""

    def __init__(self, engine: Engine, merged: MergedSpec, copy: bool) -> None:
        self._engine = engine
        self._copy = copy
        arena = engine.arena
        self._views: dict[str, np.ndarray] = arena.arrays("observations")
        self.tree = nest(self._views)
        """Views of every row's last observation."""
        self.first_rewards = arena.array("rewards")[:, 0]
        self._rewards = arena.array("rewards")
        self._frames = arena.arrays("frames")
        self._infos = InfoReader(arena, merged.rows, merged.rename)

    def observations(self, rows: np.ndarray | None = None, copy: bool | None = None) -> Any:
        """Return observations of all rows or of some, as views where that is asked for and can be."""
        copy = self._copy if copy is None else copy
        if rows is None:
            return nest({name: view.copy() for name, view in self._views.items()}) if copy else self.tree
        index: Any = rows
        if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
            index = slice(int(rows[0]), int(rows[-1]) + 1)
        picked = {name: view[index] for name, view in self._views.items()}
        return nest({name: view.copy() for name, view in picked.items()} if copy else picked)

    def row(self, row: int) -> Any:
        """Return a copy of one row's observation."""
        return nest({name: view[row].copy() for name, view in self._views.items()})

    def chunk(
        self, rows: np.ndarray, length: int, copy: bool | None, timing: ChunkTiming | None, observe: bool = True
    ) -> Chunk:
        """Return what `rows` brought back, of chunks of at most `length` actions."""
        status = self._engine.settle(rows)
        infos = self.infos(rows, status)
        steps = status[:, w.NUM_STEPS].copy()
        aborted, reasons = self.take_aborted(rows)
        for i, reason in reasons.items():
            infos = add_info(infos, {"failure": reason}, i, len(rows))
        return Chunk(
            rows=rows,
            observations=self._some(rows, copy) if observe else None,
            rewards=self._chunk_rewards(rows, steps, length),
            num_steps=steps,
            terminated=status[:, w.TERMINATED] != 0,
            truncated=status[:, w.TRUNCATED] != 0,
            aborted=aborted,
            success=status[:, w.SUCCESS] != 0,
            infos=infos,
            frames=self._read_frames(rows, status[:, w.FRAMES].tolist()),
            timing=timing,
        )

    def plain_chunk(
        self,
        rows: np.ndarray,
        steps: np.ndarray,
        length: int,
        copy: bool | None,
        timing: ChunkTiming | None,
        observe: bool = True,
    ) -> Chunk:
        """Return what `rows` brought back when each ran so many steps and has nothing else to tell."""
        nothing = np.zeros((4, len(rows)), bool)
        return Chunk(
            rows=rows,
            observations=self._some(rows, copy) if observe else None,
            rewards=self._chunk_rewards(rows, steps, length),
            num_steps=steps,
            terminated=nothing[0],
            truncated=nothing[1],
            aborted=nothing[2],
            success=nothing[3],
            infos={},
            frames=self._read_frames(rows, [0] * len(rows)) if self._frames else {},
            timing=timing,
        )

    def _some(self, rows: np.ndarray, copy: bool | None) -> Any:
        return self.observations(None if len(rows) == len(self._rewards) else rows, copy)

    def _chunk_rewards(self, rows: np.ndarray, steps: np.ndarray, length: int) -> np.ndarray:
        """Return a copy of the rewards; beyond a row's own steps they are zero."""
        rewards = self._rewards[rows, :length]
        if len(rows) and int(steps.min()) < length:
            rewards[np.arange(length) >= steps[:, None]] = 0.0
        return rewards

    def infos(
        self,
        rows: np.ndarray,
        status: np.ndarray,
        only: Iterable[int] | None = None,
        known: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the infos of `rows` with those `known`; rows not in `only` have nothing new to say.

        A row whose info cannot be read is aborted, and its status zero.
        """
        if not status[:, w.INFO_BYTES : w.REPLY + 1].any():
            return known or {}
        told = status
        if only is not None:
            silent = ~np.isin(rows, list(only))
            told = status.copy()
            told[silent, w.INFO_BYTES : w.REPLY + 1] = 0
        infos, unreadable = self._infos.read(rows.tolist(), told, self._engine.replies, known or {})
        for i, error in unreadable.items():
            self._engine.refuse(int(rows[i]), error)
            status[i] = 0
        return infos

    def take_aborted(self, rows: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
        """Return which rows came back without a result, and the reasons by position."""
        mask = np.zeros(len(rows), bool)
        reasons: dict[int, str] = {}
        if self._engine.aborted:
            for i, row in enumerate(rows.tolist()):
                error = self._engine.aborted.pop(row, None)
                if error is not None:
                    mask[i] = True
                    reasons[i] = str(error)
        return mask, reasons

    def _read_frames(self, rows: np.ndarray, counts: Sequence[int]) -> dict[str, list[np.ndarray]]:
        return {
            name: [ring[row, :count].copy() for row, count in zip(rows, counts, strict=True)]
            for name, ring in self._frames.items()
        }
