"""Rewards from outside the simulator: a function or a model that looks at what happened, many rows at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from manyarms.errors import RolloutError
from manyarms.vector import EpisodeId


@dataclass(frozen=True)
class Scene:
    """What some rows show after the actions they have just taken."""

    fields: Mapping[str, np.ndarray]
    """Arrays [rows, …] by flat name; with a hook's `history` of n, [rows, n, …], oldest first."""
    texts: Sequence[str]
    episodes: Sequence[EpisodeId]
    steps: np.ndarray  # [rows], actions taken so far
    ended: np.ndarray  # [rows]
    success: np.ndarray  # [rows]

    def __len__(self) -> int:
        return len(self.episodes)


class RewardHook(Protocol):
    """Called once for all rows that have come back together; what it returns is added to each row's last step.

    A hook with a number `history` sees the last so many observations of the episode (the first one repeated at its
    start), one with a list of names `fields` only those. It must judge each row by itself.
    """

    def __call__(self, scene: Scene) -> np.ndarray:
        """Return [rows]."""
        ...


class Judge:
    """Shows a hook what rows have done, with as much of the past as it wants."""

    def __init__(self, hook: RewardHook, num_rows: int) -> None:
        self.hook = hook
        self._history: int | None = getattr(hook, "history", None)
        self._names: Sequence[str] | None = getattr(hook, "fields", None)
        self._past: list[deque[dict[str, np.ndarray]]] = [deque(maxlen=self._history or 1) for _ in range(num_rows)]

    def begin(self, row: int, observation: Mapping[str, np.ndarray]) -> None:
        """An episode begins with this."""
        self._past[row].extend([self._copy(observation)] * (self._history or 1))  # nothing older is left

    def judge(self, rows: Sequence[int], scene: Scene) -> np.ndarray:
        """Return a reward for each of `rows`, whose latest observations are those of `scene`."""
        latest = {name: array for name, array in scene.fields.items() if self._names is None or name in self._names}
        if self._history:
            for i, row in enumerate(rows):
                self._past[row].append(self._copy({name: array[i] for name, array in latest.items()}))
            latest = {
                name: np.stack([np.stack([seen[name] for seen in self._past[row]]) for row in rows]) for name in latest
            }
        rewards = np.asarray(self.hook(replace(scene, fields=latest)), np.float64)
        if rewards.shape != (len(rows),) or not np.isfinite(rewards).all():
            raise RolloutError(
                f"the reward hook {self.hook!r} returned {rewards.shape} {rewards.tolist()[:4]}",
                do=f"return {len(rows)} finite numbers, one a row",
            )
        return rewards

    def _copy(self, observation: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not self._history:
            return {}
        return {name: array.copy() for name, array in observation.items() if self._names is None or name in self._names}
