"""Starts workers side by side, sees them die, starts them again, and ends them."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import select
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import manyarms
from manyarms.errors import ConfigError, ManyarmsError, StartError
from manyarms.simulators import registry
from manyarms.simulators.base import Spec
from manyarms.vector.config import SimulatorConfig, VectorConfig
from manyarms.vector.display import DisplayConfig, Displays, Trial
from manyarms.vector.egl import drawing_failure
from manyarms.vector.endings import uninterrupted
from manyarms.vector.keeper import Keeper
from manyarms.vector.memory import LEAST_WORKER_BYTES, check_room, say_how_many_fit
from manyarms.vector.nursery import Nursery, NurseryGone
from manyarms.vector.process import (
    ATTACHING,
    BUILDING,
    BUILT,
    DOWN,
    GREETING,
    READY,
    WorkerProcess,
    common_environment,
    kill_all,
    worker_command,
    worker_environment,
)
from manyarms.vector.reasons import died_at_start, one_error, start_failure
from manyarms.vector.spaces import check_spaces
from manyarms.vector.topology import plan_for_this_machine
from manyarms.workers import wire
from manyarms.workers.messages import check_from_worker

logger = logging.getLogger("manyarms")

#: File descriptors a worker costs the main process: socket, pipe, pidfd, log.
_FDS_PER_WORKER = 4
_SPARE_FDS = 128

#: After a worker has failed to start, the others have as long again as that took, and so many seconds at least.
_GRACE_AFTER_FAILURE = 3.0

#: What is killed when all is closed has as long to be gone when that is done.
_SECONDS_TO_GO = 2.0

#: A worker that fails again and again is started after 0, 0.25, 0.5, 1, … seconds.
_FIRST_BACK_OFF = 0.25
_LONGEST_BACK_OFF = 30.0

#: What a worker may say while it starts.
_EXPECTED = {GREETING: ("hello",), BUILDING: ("spec", "failed"), ATTACHING: ("attached",)}

#: Directories of installed packages, whichever environment they belong to.
_INSTALLED = {"site-packages", "dist-packages"}


class Supervisor:
    """All workers of a vector environment."""

    def __init__(self, rows: Sequence[SimulatorConfig], config: VectorConfig) -> None:
        check_process()
        self._owner = os.getpid()
        self.config = config
        self.workers: list[WorkerProcess] = []
        for first, last, simulator in _share_out(rows, config.rows_per_worker):
            self.workers.append(WorkerProcess(len(self.workers), range(first, last), simulator, config))
        self._cpus = plan_for_this_machine(len(self.workers), config.pin_cpus)
        self._displays: Displays | None = None
        if isinstance(config.display, DisplayConfig):
            self._displays = Displays(config.display, len(self.workers), timeout=config.start_timeout)
        self.arena_fd = os.memfd_create("manyarms")
        self.bell_fd, self._bell_end = os.pipe()
        os.set_blocking(self.bell_fd, False)
        self._epoll = select.epoll()
        self._epoll.register(self.bell_fd, select.EPOLLIN)
        self.poll = self._epoll.poll
        """Sleep until the bell rings or something happens to a worker; who needs to know what uses `wait`."""
        self._by_fd: dict[int, WorkerProcess] = {}
        self._plan: Mapping[str, Any] | None = None
        self._down: list[WorkerProcess] = []
        """Those that wait to be started again, or are starting."""
        self._sound_specs: list[dict[str, Any]] = []
        self._nurseries: dict[int, Nursery] = {}
        """Where workers are forked from, by the `id` of their simulator's config."""

    def start(self) -> list[Spec]:
        """Start all workers and return the spec of every row."""
        Keeper.instance()  # before there is anything to keep
        count = len(self.workers)
        check_room(count * LEAST_WORKER_BYTES, f"{count} worker processes", "lower num_envs or raise rows_per_worker")
        ids = [worker.simulator.id for worker in self.workers]
        say_how_many_fit([(name, registry.about(name).worker_bytes or LEAST_WORKER_BYTES) for name in ids])
        raise_fd_limit(count * _FDS_PER_WORKER + _SPARE_FDS)
        if self._displays is not None:
            self._displays.start(self._trial())
        self._open_nurseries()
        for worker in self.workers:
            self._spawn(worker)
        self._wait_for_all(BUILT)
        specs: list[Spec] = []
        for worker in self.workers:
            own = [Spec.from_json(spec) for spec in worker.specs]
            specs += own * len(worker.rows) if worker.lockstep else own
        return specs

    def attach(self, plan: Mapping[str, Any]) -> None:
        """Have all workers map the arena."""
        self._plan = plan
        for worker in self.workers:
            self._send_plan(worker)
        self._wait_for_all(READY)

    def wait(self, timeout: float | None) -> tuple[list[WorkerProcess], list[WorkerProcess]]:
        """Sleep until the bell rings or something happens to a worker; return who died, and who is up again."""
        dead: list[WorkerProcess] = []
        risen: list[WorkerProcess] = []
        if self._down:
            timeout = self._start_those_due(timeout, dead)
        for fd, _ in self._epoll.poll(timeout):
            worker = self._by_fd.get(fd)
            if worker is None or worker in dead:
                continue
            if fd == worker.pidfd:
                dead.append(worker)
            else:
                self._hear(worker, dead, risen)
        if self._down and (dead or risen):
            self._down = [worker for worker in self._down if worker not in dead and worker not in risen]
        return dead, [worker for worker in risen if worker not in dead]

    def take_down(self, worker: WorkerProcess) -> None:
        """Kill a worker, if it is not gone already, and let go of its files."""
        self._forget(worker)
        worker.end()
        worker.phase = DOWN

    def restart(self, worker: WorkerProcess, failed: bool = True) -> bool:
        """Start a worker again after a pause that grows with its failures; False when it has had its chances."""
        if failed:
            worker.failures_in_a_row += 1
            if worker.failures_in_a_row > self.config.max_restarts:
                if self._displays is not None:
                    self._displays.release(worker.index)
                return False
        failures = worker.failures_in_a_row - 1
        pause = 0.0 if failures < 1 else min(_LONGEST_BACK_OFF, _FIRST_BACK_OFF * 2 ** (failures - 1))
        worker.restart_at = time.monotonic() + pause
        worker.episodes = 0
        self._down.append(worker)
        worker.restarts += 1
        return True

    def close(self, timeout: float = 5.0) -> None:
        """End every worker; those that do not end in time are killed, all at once at a second interrupt."""
        if os.getpid() != self._owner:
            return  # a forked child has a copy of this object, but the workers are its parent's
        for worker in self.workers:
            worker.ask_to_close()
        deadline = time.monotonic() + timeout
        try:
            for worker in self.workers:
                worker.await_end(deadline - time.monotonic())
        finally:
            kill_all(self.workers, _SECONDS_TO_GO)
            for worker in self.workers:
                worker.end()
            for nursery in self._nurseries.values():
                nursery.close()
            self._nurseries.clear()
            self._by_fd.clear()
            if self.arena_fd >= 0:
                self._epoll.close()
                for fd in (self.arena_fd, self.bell_fd, self._bell_end):
                    os.close(fd)
                self.arena_fd = -1
            if self._displays is not None:
                self._displays.close()

    # -- starting -----------------------------------------------------------------------------------------------------

    def _trial(self) -> Trial | None:
        """Return what tries out whether our simulator draws without an X server, where that has to be tried."""
        found = [worker for worker in self.workers if registry.about(worker.simulator.id).needs_display]
        if not found:
            return None
        worker, simulator, seconds = found[0], found[0].simulator, self.config.start_timeout
        plan = what_to_build(simulator)
        return lambda display: drawing_failure(
            worker.interpreter, plan, worker_environment(worker.index, simulator, self.config, display), seconds
        )

    def _open_nurseries(self) -> None:
        """Start a process to fork workers from for every simulator that has several of them."""
        if self.config.start_method == "spawn" or self._displays is not None:
            return  # what looks for its display when it is imported must be imported in the worker
        counts = Counter(id(worker.simulator) for worker in self.workers)
        for simulator in {id(worker.simulator): worker.simulator for worker in self.workers}.values():
            if counts[id(simulator)] == 1:
                continue
            command, env = (
                worker_command(simulator.python or sys.executable),
                common_environment(simulator, self.config),
            )
            # A worker that is started by itself will say what is wrong.
            with contextlib.suppress(NurseryGone), uninterrupted():
                self._nurseries[id(simulator)] = Nursery(command, env, what_to_build(simulator))
        deadline = time.monotonic() + self.config.start_timeout
        for key, nursery in list(self._nurseries.items()):
            if not nursery.wait_until_ready(max(0.0, deadline - time.monotonic())):
                del self._nurseries[key]
                nursery.close()

    def _spawn(self, worker: WorkerProcess) -> None:
        nursery = self._nurseries.get(id(worker.simulator))
        display = self._displays.variables(worker.index) if self._displays is not None else None
        with uninterrupted():
            worker.spawn(self._bell_end, self.arena_fd, self._cpus[worker.index], nursery, display)
        worker.phase = GREETING
        worker.restart_at = time.monotonic() + self.config.start_timeout
        for fd in (worker.pidfd, worker.socket.fileno()):
            self._by_fd[fd] = worker
            self._epoll.register(fd, select.EPOLLIN)

    def _forget(self, worker: WorkerProcess) -> None:
        """Stop listening to a worker."""
        for fd in [fd for fd, other in self._by_fd.items() if other is worker]:
            del self._by_fd[fd]
            self._epoll.unregister(fd)

    def _converse(self, worker: WorkerProcess) -> None:
        """Take in what a worker that is starting says, and answer it."""
        try:
            for message in worker.hear():
                self._answer(worker, check_from_worker(message, _EXPECTED.get(worker.phase, ())))
        except wire.Unreadable as error:
            told = worker.nonsense(error)
            raise StartError(told.what, why=told.why, do=told.do, log=told.log) from None

    def _answer(self, worker: WorkerProcess, answer: Mapping[str, Any]) -> None:
        """Answer a message of a worker that is starting."""
        kind = answer["kind"]
        if kind == "failed":
            raise start_failure(worker, answer)
        if kind == "hello":
            self._answer_hello(worker, answer)
        elif kind == "spec":
            self._take_specs(worker, answer["specs"], answer["lockstep"])
            worker.phase = BUILT
            if self._plan is not None:
                self._send_plan(worker)
        else:
            worker.phase = READY
            # From here on the socket carries answers to commands, read when the bell announces them.
            fd = worker.socket.fileno()
            self._epoll.unregister(fd)
            del self._by_fd[fd]

    def _take_specs(self, worker: WorkerProcess, specs: list[Any], lockstep: bool) -> None:
        """Keep what a worker says its rows are like, if it can be, and is what it was."""
        if worker.specs is not None:
            if (worker.specs, worker.lockstep) != (specs, lockstep):
                raise StartError(f"{worker.describe()} came back with another spec than it had")
            return
        if len(specs) != (1 if lockstep else len(worker.rows)):
            raise wire.Unreadable(f"{len(specs)} specs came for {len(worker.rows)} rows")
        for spec in specs:
            if spec not in self._sound_specs:
                check_spaces(spec)
                self._sound_specs.append(spec)
        worker.specs, worker.lockstep = specs, lockstep

    def _answer_hello(self, worker: WorkerProcess, answer: Mapping[str, Any]) -> None:
        if answer["protocol"] != wire.PROTOCOL:
            raise StartError(
                f"{worker.interpreter} speaks protocol {answer['protocol']}, this manyarms speaks {wire.PROTOCOL}",
                do="use the same version of manyarms on both sides",
            )
        if answer["numpy"] is None:
            raise StartError(
                f"the interpreter {worker.interpreter} (Python {answer['python']}) has no numpy",
                why=answer["message"],
                do=f"{worker.interpreter} -m pip install numpy",
            )
        worker.send(
            {
                "simulator": worker.simulator.id,
                "options": dict(worker.simulator.options),
                "rows": len(worker.rows),
                "search_path": search_path(worker.simulator.python is None),
                "rename": dict(worker.simulator.rename),
                "cpus": worker.cpus,
                "max_episode_steps": self.config.max_episode_steps,
            }
        )
        worker.phase = BUILDING

    def _send_plan(self, worker: WorkerProcess) -> None:
        assert self._plan is not None
        worker.send({**self._plan, "first_row": worker.rows[0], "rows": len(worker.rows)})
        worker.phase = ATTACHING

    def _wait_for_all(self, phase: int) -> None:
        """Converse with all workers until each has come as far as `phase`, or say what kept them."""
        began = time.monotonic()
        deadline = began + self.config.start_timeout
        failures: dict[int, ManyarmsError] = {}
        while True:
            if self._start_again(failures):
                deadline = time.monotonic() + self.config.start_timeout
            if not any(worker.phase < phase and worker.index not in failures for worker in self.workers):
                break
            seconds = deadline - time.monotonic()
            events = self._epoll.poll(max(0.0, seconds))
            if not events or seconds < 0:  # one that sends byte after byte must not keep us here
                if not failures:
                    late = [worker for worker in self.workers if worker.phase < phase]
                    failures.update({worker.index: self.late(worker) for worker in late})
                break
            for worker in dict.fromkeys(self._by_fd[fd] for fd, _ in events if fd in self._by_fd):
                try:
                    self._converse(worker)
                except (ConnectionError, OSError):
                    failures[worker.index] = died_at_start(worker)
                except ManyarmsError as error:
                    failures[worker.index] = error
                if worker.index in failures:
                    self._forget(worker)
                    now = time.monotonic()
                    deadline = min(deadline, now + max(_GRACE_AFTER_FAILURE, now - began))
        if failures:
            raise one_error(list(failures.values()), len(self.workers))

    def _start_again(self, failures: dict[int, ManyarmsError]) -> bool:
        """Start workers again that failed where others with the same simulator have started; tell whether any was."""
        if self.config.on_failure == "raise":
            return False
        sound = {id(w.simulator) for w in self.workers if w.phase >= BUILT and w.index not in failures}
        failed = [worker for worker in self.workers if worker.index in failures and id(worker.simulator) in sound]
        again = [worker for worker in failed if worker.failures_in_a_row < self.config.max_restarts]
        for worker in again:
            error = failures.pop(worker.index)
            logger.warning(
                "%s failed to start: %s\n  then: it is started again, as others with the same simulator have started",
                *(worker.describe(), error),
            )
            worker.failures_in_a_row += 1
            self.take_down(worker)
            self._spawn(worker)
        return bool(again)

    # -- starting again -----------------------------------------------------------------------------------------------

    def _start_those_due(self, timeout: float | None, dead: list[WorkerProcess]) -> float | None:
        """Start the workers whose pause is over; return how long to sleep at most."""
        now = time.monotonic()
        for worker in [worker for worker in self._down if worker.phase == DOWN and worker.restart_at <= now]:
            try:
                self._spawn(worker)
            except ManyarmsError as error:  # its display or its interpreter has gone
                worker.last_error = error
                worker.end()
                dead.append(worker)
        due = min((worker.restart_at for worker in self._down), default=now) - now
        return max(0.0, due) if timeout is None else max(0.0, min(timeout, due))

    def _hear(self, worker: WorkerProcess, dead: list[WorkerProcess], risen: list[WorkerProcess]) -> None:
        """Take in a message of a worker that starts again."""
        try:
            self._converse(worker)
        except (ConnectionError, OSError, ManyarmsError) as error:
            worker.last_error = error
            dead.append(worker)
            return
        if worker.phase == READY:
            risen.append(worker)

    def overdue(self) -> list[WorkerProcess]:
        """Return workers that start again and have taken too long; they are no longer waited for."""
        now = time.monotonic()
        late = [worker for worker in self._down if worker.phase != DOWN and worker.restart_at < now]
        for worker in late:
            worker.last_error = self.late(worker)
            self._down.remove(worker)
        return late

    def late(self, worker: WorkerProcess) -> StartError:
        """Say that a worker did not start in time."""
        tail = worker.log_tail()
        return StartError(
            f"{worker.describe()} did not start within {self.config.start_timeout:g} s",
            why=f"it last printed:\n{tail}" if tail else "",
            do="raise start_timeout, or start fewer workers at once",
            log=str(worker.log_path or ""),
        )


def check_process() -> None:
    """Refuse to start workers where that cannot work."""
    if sys.platform != "linux":
        raise ConfigError("manyarms runs on Linux", why="workers share memory by memfd and are watched by pidfd")
    worker = sys.modules.get("manyarms.workers.serve")
    if worker is not None and worker.serving:
        raise ConfigError(
            "make_vec was called inside a worker",
            why="the worker imports the file that defines the simulator, and that file calls make_vec when imported",
            do="put what the script does under: if __name__ == '__main__':",
        )


def _share_out(rows: Sequence[SimulatorConfig], per_worker: int) -> list[tuple[int, int, SimulatorConfig]]:
    """Give neighbouring rows of the same simulator to one worker, `per_worker` at most."""
    shares: list[tuple[int, int, SimulatorConfig]] = []
    first = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or i - first == per_worker or rows[i] is not rows[first]:
            shares.append((first, i, rows[first]))
            first = i
    return shares


def what_to_build(simulator: SimulatorConfig) -> dict[str, Any]:
    """Return what another process has to know to build a simulator."""
    return {
        "simulator": simulator.id,
        "options": dict(simulator.options),
        "search_path": search_path(simulator.python is None),
    }


def search_path(same_interpreter: bool) -> list[str]:
    """Return where a worker looks for modules besides its own path.

    In this same interpreter, wherever we would. In another, only where the user's own code lies: what belongs to an
    installation (its library, its site-packages, our own source) would shadow that interpreter's.
    """
    entries = list(dict.fromkeys(os.path.abspath(entry or ".") for entry in [*sys.path, ""]))
    if same_interpreter:
        return entries
    prefixes = tuple(os.path.abspath(p) for p in (sys.prefix, sys.base_prefix, Path(manyarms.__file__).parent.parent))
    return [
        entry
        for entry in entries
        if os.path.isdir(entry)
        and not _INSTALLED.intersection(Path(entry).parts)
        and not any(Path(entry).is_relative_to(prefix) for prefix in prefixes)
    ]


def raise_fd_limit(needed: int) -> None:
    """Lift the soft limit on open files as far as it must be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise ConfigError(
                f"these workers need {needed} open files, but the limit is {hard}",
                do=f"ulimit -n {needed}, or raise rows_per_worker",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
