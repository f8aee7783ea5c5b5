"""How much memory episodes will take, known before the first is played."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from manyarms.simulators.base import Field
from manyarms.vector.memory import pretty


@dataclass(frozen=True)
class MemoryPlan:
    """What a run holds at most, besides what its caller keeps of the episodes it is given."""

    decision_bytes: int
    """What is kept of one decision: observations and the chunk of actions."""
    decisions: int | None
    """Most decisions of an episode; None: the simulator has no time limit."""
    episodes: int
    """Episodes under way or waiting for an earlier one."""

    @property
    def total_bytes(self) -> int | None:
        return None if self.decisions is None else self.decision_bytes * self.decisions * self.episodes

    def __str__(self) -> str:
        each = f"{pretty(self.decision_bytes)} a decision"
        if self.decisions is None or self.total_bytes is None:
            return f"episodes take {each}; there is no time limit, so no bound"
        return (
            f"episodes take up to {pretty(self.total_bytes)}: {each}, {self.decisions} decisions an episode, "
            f"{self.episodes} episodes at once"
        )


def plan_memory(
    observations: Mapping[str, np.ndarray],
    actions: Mapping[str, Field],
    *,
    keep: Collection[str] | None,
    chunk: int,
    horizon: int | None,
    time_limit: int | None,
    episodes: int,
) -> MemoryPlan:
    """Count the bytes of what is kept; `observations` are arrays [rows, …], `chunk` and `horizon` actions."""
    seen = sum(array[0].nbytes for name, array in observations.items() if keep is None or name in keep)
    done = sum(int(np.prod(f.shape)) * np.dtype(f.dtype).itemsize for f in actions.values()) * chunk
    taken = min(chunk, horizon or chunk)
    decisions = None if time_limit is None else math.ceil(time_limit / taken)
    return MemoryPlan(seen + done + 8 * chunk, decisions, episodes)
