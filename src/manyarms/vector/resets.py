"""Beginning episodes and waiting for them, worker deaths included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manyarms.errors import ConfigError, RowStateError
from manyarms.vector.engine import Engine
from manyarms.vector.groups import LIVE
from manyarms.vector.spaces import MergedSpec


class Resets:
    """Resets rows and waits until all have begun."""

    def __init__(self, engine: Engine, merged: MergedSpec) -> None:
        self._engine = engine
        self._merged = merged

    def begin(self, starts: Mapping[int, dict[str, Any]]) -> None:
        """Begin an episode in each row; resets that are lost with their worker are repeated until it is given up."""
        waiting = dict(starts)
        while waiting:
            self._engine.reset(list(waiting), list(waiting.values()))
            self._engine.collect_all()
            lost = {row: starts[row] for row in self._engine.aborted}
            self._engine.aborted.clear()
            self._engine.state[[row for row in waiting if row not in lost]] = LIVE
            waiting = lost

    def begin_again(self, rows: Sequence[int]) -> None:
        """Begin a new episode at once in rows whose last was aborted, as SameStep asks for."""
        health, seeds = self._engine.health, self._engine.seeds
        self.begin({row: start(seed=health.next_seed(row, seeds[row])) for row in rows})

    def check_groups(self, rows: Sequence[int]) -> None:
        """Refuse to reset part of a group that can only be reset as one."""
        chosen = set(rows)
        for worker in self._engine.supervisor.workers:
            if not worker.lockstep or self._merged.rows[worker.rows[0]].partial_reset:
                continue
            others = [r for r in worker.rows if r not in chosen and self._engine.state[r] == LIVE]
            if others and chosen.intersection(worker.rows):
                raise RowStateError(
                    f"rows {worker.rows} can only be reset together, and rows {others} are in mid-episode",
                    do="reset them all, or wait until they have ended",
                )


def start(task: Any = None, seed: int | None = None, init_state: Any = None, options: Any = None) -> dict[str, Any]:
    """Return how an episode begins, as it travels to a worker."""
    if not isinstance(task, str | None):
        raise ConfigError(f"a task is called by its name, got {task!r:.100}")
    task = None if task is None else str(task)  # one of NumPy's is none on the way
    return {"task": task, "seed": seed, "init_state": init_state, "options": options}
