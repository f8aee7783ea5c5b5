"""How workers are: who has hung, who holds too much memory, who has failed how often, and what is done about it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from manyarms.errors import ManyarmsError, SimulatorError, WorkerDied, WorkerError, WorkerTimeout
from manyarms.vector.config import VectorConfig
from manyarms.vector.memory import pretty
from manyarms.vector.patience import Patience, Suspicion, process_state
from manyarms.vector.process import DOWN, READY, WorkerProcess
from manyarms.vector.supervisor import Supervisor
from manyarms.workers import words as w

logger = logging.getLogger("manyarms")

_CHECK_SECONDS = 1.0
_REMEMBERED = 10_000

#: Above this many times its limit, a worker's memory is not left to grow until its episode ends.
_AT_ONCE = 1.5

#: After this part of its time a worker is looked at closely; only what is seen from then on counts against it.
_SUSPICIOUS = 0.25

#: As messages name them.
_COMMANDS = {w.STEP: "step", w.RESET: "reset", w.CALL: "call"}


class Command(NamedTuple):
    """What a worker is at work on."""

    tick: int
    """The sequence number it was sent with."""
    sent_at: float
    word: int
    """What it is: `words.STEP`, `RESET` or `CALL`."""
    actions: int


class Health:
    """Watches workers and decides; the engine deals with the rows."""

    def __init__(self, supervisor: Supervisor, config: VectorConfig) -> None:
        self._supervisor = supervisor
        self._config = config
        self._patience = Patience(config.step_timeout, config.reset_timeout)
        self._suspicions: dict[int, tuple[int, Suspicion]] = {}
        self._over_memory: set[int] = set()
        self._aborts: dict[int, int] = {}
        self._last_check = time.monotonic()
        self._unwell: set[int] = set()
        self.failures: deque[WorkerError] = deque(maxlen=_REMEMBERED)
        shortest = min(self._patience.allowed(False, 1), self._patience.allowed(True, 1))
        self.check_every = min(_CHECK_SECONDS, shortest / 8)

    @property
    def needs_care(self) -> bool:
        """Whether any worker is down, was lately, or is due for recycling: then nothing may be taken for granted."""
        return bool(self._unwell or self._config.recycle_after or self._config.worker_memory)

    # -- watching -----------------------------------------------------------------------------------------------------

    def check_is_due(self) -> bool:
        """Tell whether it is time for another look."""
        now = time.monotonic()
        if now - self._last_check < self.check_every:
            return False
        self._last_check = now
        return True

    def check(
        self, commands: Mapping[WorkerProcess, Command], seed_of: Callable[[WorkerProcess], int | None]
    ) -> list[tuple[WorkerProcess, WorkerError]]:
        """Look at every worker; return those that must be replaced, and why."""
        found: list[tuple[WorkerProcess, WorkerError]] = []
        for worker, command in commands.items():
            error = self._look_for_hang(worker, command, seed_of(worker))
            if error is not None:
                found.append((worker, error))
        for worker in self._supervisor.overdue():
            found.append((worker, self.cause_of_death(worker, seed_of(worker))))
        if self._config.worker_memory is not None:
            found += self._look_for_leaks(self._config.worker_memory, seed_of, {worker for worker, _ in found})
        return found

    def _look_for_hang(self, worker: WorkerProcess, command: Command, seed: int | None) -> WorkerError | None:
        is_long = command.word != w.STEP  # a call has the time of a reset
        elapsed = time.monotonic() - command.sent_at
        allowed = self._patience.allowed(is_long, command.actions)
        if elapsed < allowed * _SUSPICIOUS:
            self._patience.learn(is_long, command.actions, elapsed)
            return None
        suspected, suspicion = self._suspicions.get(worker.index, (0, None))
        if suspicion is None or suspected != command.tick or suspicion.pid != worker.pid:
            self._suspicions[worker.index] = (command.tick, Suspicion(worker.pid))
            return None
        if suspicion.idle_seconds() < allowed:
            return None
        del self._suspicions[worker.index]
        tail, doing = worker.log_tail(), _COMMANDS.get(command.word, "command")
        return WorkerTimeout(
            f"{worker.describe(seed)} did not come back from a {doing} in {elapsed:.1f} s",
            rows=worker.rows,
            why="\n".join(filter(None, [process_state(worker.pid), f"it last printed:\n{tail}" if tail else ""])),
            do="raise step_timeout or reset_timeout, or replay the seed by itself",
            log=str(worker.log_path or ""),
        )

    def _look_for_leaks(
        self, limit: int, seed_of: Callable[[WorkerProcess], int | None], others: set[WorkerProcess]
    ) -> list[tuple[WorkerProcess, WorkerError]]:
        found: list[tuple[WorkerProcess, WorkerError]] = []
        for worker in self._supervisor.workers:
            held = worker.memory() if worker.phase == READY and worker not in others else 0
            if held > _AT_ONCE * limit:
                error = WorkerDied(
                    f"{worker.describe(seed_of(worker))} was ended because it held {pretty(held)}",
                    rows=worker.rows,
                    why=f"worker_memory allows {pretty(limit)}",
                    do="raise worker_memory, or recycle workers earlier with recycle_after",
                )
                found.append((worker, error))
            elif held > limit:
                self._over_memory.add(worker.index)
        return found

    # -- judging ------------------------------------------------------------------------------------------------------

    def cause_of_death(self, worker: WorkerProcess, seed: int | None) -> WorkerError:
        """Say why a worker is gone: what it said while starting, or how its process ended."""
        error, worker.last_error = worker.last_error, None
        if isinstance(error, ManyarmsError):
            return WorkerDied(error.what, rows=worker.rows, why=error.why, do=error.do, log=error.log)
        return worker.death(seed)

    def note(self, error: WorkerError) -> None:
        """Remember a failure, and tell whoever reads the log."""
        self.failures.append(error)
        if self._config.on_failure == "restart":
            goes_on = isinstance(error, SimulatorError)
            replaced = "it is replaced, unless that was done too often; only the episodes it was in are lost"
            then = "its worker goes on" if goes_on else replaced
            logger.warning("%s: %s\n  then: %s", type(error).__name__, error, then)

    def forgive(self, worker: WorkerProcess) -> bool:
        """Leave a worker running whose simulator raised in a step; False when that happens again and again."""
        if worker.failures_in_a_row >= self._config.max_restarts:
            return False  # replacing it counts this failure
        worker.failures_in_a_row += 1
        return True

    def episode_ended(self, worker: WorkerProcess) -> None:
        """Note that a worker brought an episode to its end."""
        worker.failures_in_a_row = 0
        worker.episodes += 1
        self._unwell.discard(worker.index)

    def next_seed(self, row: int, seed: int | None) -> int | None:
        """Return a seed for the episode after one that was aborted: always the same for the same run."""
        self._aborts[row] = self._aborts.get(row, 0) + 1
        if seed is None:
            return None
        return int(np.random.SeedSequence((seed, row, self._aborts[row])).generate_state(1)[0])

    # -- replacing ----------------------------------------------------------------------------------------------------

    def wants_recycling(self, worker: WorkerProcess) -> bool:
        """Tell whether a worker should be started afresh before its next episode."""
        if worker.phase != READY:
            return False
        after = self._config.recycle_after
        return worker.index in self._over_memory or (after is not None and worker.episodes >= after)

    def recycle(self, worker: WorkerProcess) -> None:
        """Start a worker afresh; nothing has failed."""
        self._over_memory.discard(worker.index)
        self._unwell.add(worker.index)
        self._supervisor.take_down(worker)
        self._supervisor.restart(worker, failed=False)

    def take_down(self, worker: WorkerProcess, error: WorkerError) -> WorkerError | None:
        """Replace a worker that failed; return the error to raise when that is not to be, or not again."""
        self._suspicions.pop(worker.index, None)
        self._over_memory.discard(worker.index)
        self._unwell.add(worker.index)
        if worker.phase != DOWN:
            self._supervisor.take_down(worker)
        if self._config.on_failure == "raise":
            return error
        if self._supervisor.restart(worker):
            return None
        return WorkerDied(
            f"{worker.describe()} failed {worker.failures_in_a_row} times in a row and is given up",
            rows=worker.rows,
            why=str(error),
            do="mend the cause, or raise max_restarts",
            log=str(worker.log_path or ""),
        )
