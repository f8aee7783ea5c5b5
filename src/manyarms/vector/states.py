"""What rows are doing, for those who look on from another thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyarms.vector.engine import Engine
from manyarms.vector.groups import ABORTED, ENDED
from manyarms.vector.process import DOWN, READY, WorkerProcess
from manyarms.workers import words as w


@dataclass(frozen=True)
class RowState:
    """One row as it was at a moment."""

    row: int
    worker: int
    pid: int | None
    """Of the worker's process; None while there is none."""
    task: str | None
    """Last asked for, or the only one there is."""
    state: str
    """starting, idle, resetting, stepping, ended, restarting, or given up."""
    seed: int | None
    """Last given."""
    episode_steps: int
    episodes: int
    """That came to their end."""
    restarts: int
    """Of the worker."""
    failure: str | None
    """What last went wrong, in a line."""


def row_states(engine: Engine, row_tasks: Sequence[Sequence[str]]) -> list[RowState]:
    """Return the state of every row. It is put together from what is there anyway, so that nobody has to keep it."""
    at_work = set(engine.at_work())
    commands, steps = engine.control[:, w.COMMAND].tolist(), engine.control[:, w.STEPS].tolist()
    ends = (engine.status[:, w.TERMINATED] | engine.status[:, w.TRUNCATED]).tolist()
    known = engine.state.tolist()
    failures = {row: error.what.partition("\n")[0] for error in list(engine.health.failures) for row in error.rows}
    states = []
    for worker in engine.supervisor.workers:
        for row in worker.rows:
            if row in engine.lost:
                state = "given up"
            elif worker.phase != READY:
                state = "restarting" if worker.restarts else "starting"
            elif row in at_work:
                state = "resetting" if commands[row] == w.RESET else "stepping"
            else:
                state = "ended" if ends[row] or known[row] in (ENDED, ABORTED) else "idle"
            seed, tasks = engine.seeds[row], row_tasks[row]
            states.append(
                RowState(
                    row=row,
                    worker=worker.index,
                    pid=_pid(worker),
                    task=engine.tasks[row] or (tasks[0] if len(tasks) == 1 else None),
                    state=state,
                    seed=None if seed is None else int(seed),
                    episode_steps=steps[row],
                    episodes=engine.episodes[row],
                    restarts=worker.restarts,
                    failure=failures.get(row),
                )
            )
    return states


def _pid(worker: WorkerProcess) -> int | None:
    return worker.pid if worker.phase != DOWN and worker.pid > 0 else None
