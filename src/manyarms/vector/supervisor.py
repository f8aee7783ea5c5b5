"""Starts workers side by side, shakes hands with each, sees them die, and ends them."""

from __future__ import annotations

import os
import resource
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import manyarms
from manyarms.errors import ConfigError, ManyarmsError, StartError, UnknownName, did_you_mean
from manyarms.simulators.base import Spec
from manyarms.simulators.registry import split_id
from manyarms.vector.config import SimulatorConfig, VectorConfig
from manyarms.vector.memory import LEAST_WORKER_BYTES, check_room
from manyarms.vector.process import WorkerProcess
from manyarms.workers import wire

#: File descriptors a worker costs the main process: socket, pipe, pidfd, log.
_FDS_PER_WORKER = 4
_SPARE_FDS = 128

#: After the first worker has failed, how long the others may still take to say the same.
_GRACE_AFTER_FAILURE = 3.0


#: Directories of installed packages, whichever environment they belong to.
_INSTALLED = {"site-packages", "dist-packages"}


class Supervisor:
    """All workers of a vector environment."""

    def __init__(self, rows: Sequence[SimulatorConfig], config: VectorConfig) -> None:
        self.config = config
        self.workers: list[WorkerProcess] = []
        for first, last, simulator in _share_out(rows, config.rows_per_worker):
            self.workers.append(WorkerProcess(len(self.workers), range(first, last), simulator, config))
        self.arena_fd = os.memfd_create("manyarms")
        self.bell_fd, self._bell_end = os.pipe()
        os.set_blocking(self.bell_fd, False)
        self.epoll = select.epoll()
        self.epoll.register(self.bell_fd, select.EPOLLIN)
        self._by_pidfd: dict[int, WorkerProcess] = {}

    def start(self) -> list[Spec]:
        """Start all workers and return the spec of every row."""
        count = len(self.workers)
        check_room(count * LEAST_WORKER_BYTES, f"{count} worker processes", "lower num_envs or raise rows_per_worker")
        raise_fd_limit(count * _FDS_PER_WORKER + _SPARE_FDS)
        for worker in self.workers:
            worker.spawn(self._bell_end, self.arena_fd)
        found = self._shake_hands(self._greet)
        specs: list[Spec] = []
        for worker in self.workers:
            answer = found[worker.index]
            worker.lockstep = answer["lockstep"]
            own = [Spec.from_json(spec) for spec in answer["specs"]]
            specs += own * len(worker.rows) if worker.lockstep else own
        return specs

    def attach(self, plan: Mapping[str, Any]) -> None:
        """Have all workers map the arena."""
        for worker in self.workers:
            worker.send({**plan, "first_row": worker.rows[0], "rows": len(worker.rows)})
        self._shake_hands(lambda worker, answer: answer)
        for worker in self.workers:
            self.watch(worker)

    def watch(self, worker: WorkerProcess) -> None:
        """Hear of a worker's death from now on."""
        self._by_pidfd[worker.pidfd] = worker
        self.epoll.register(worker.pidfd, select.EPOLLIN)

    def wait(self, timeout: float | None) -> list[WorkerProcess]:
        """Sleep until the bell rings or a worker dies; return the dead."""
        dead = []
        for fd, _ in self.epoll.poll(timeout):
            worker = self._by_pidfd.pop(fd, None)
            if worker is not None:
                self.epoll.unregister(fd)
                dead.append(worker)
        return dead

    def close(self, timeout: float = 5.0) -> None:
        """End every worker; those that do not end in time are killed."""
        for worker in self.workers:
            worker.ask_to_close()
        deadline = time.monotonic() + timeout
        for worker in self.workers:
            worker.end(deadline - time.monotonic())
        self._by_pidfd.clear()
        if self.arena_fd >= 0:
            self.epoll.close()
            for fd in (self.arena_fd, self.bell_fd, self._bell_end):
                os.close(fd)
            self.arena_fd = -1

    def _greet(self, worker: WorkerProcess, answer: dict[str, Any]) -> dict[str, Any] | None:
        """Answer a worker's hello; return its spec when that comes."""
        if answer["kind"] == "spec":
            return answer
        if answer.get("protocol") != wire.PROTOCOL:
            raise StartError(
                f"{worker.interpreter} speaks protocol {answer.get('protocol')}, this manyarms speaks {wire.PROTOCOL}",
                do="use the same version of manyarms on both sides",
            )
        if answer["numpy"] is None:
            raise StartError(
                f"the interpreter {worker.interpreter} (Python {answer['python']}) has no numpy",
                why=answer.get("message", ""),
                do=f"{worker.interpreter} -m pip install numpy",
            )
        worker.send(
            {
                "simulator": worker.simulator.id,
                "options": dict(worker.simulator.options),
                "rows": len(worker.rows),
                "search_path": search_path(worker.simulator.python is None),
                "cpus": self._cpus(worker.index),
                "max_episode_steps": self.config.max_episode_steps,
            }
        )
        return None

    def _cpus(self, index: int) -> list[int]:
        if not self.config.pin_cpus:
            return []
        allowed = sorted(os.sched_getaffinity(0))
        return [allowed[index % len(allowed)]]

    def _shake_hands(self, step: Callable[[WorkerProcess, dict[str, Any]], Any]) -> dict[int, Any]:
        """Read answers from all workers until `step` has given a result for each, or the time is over."""
        deadline = time.monotonic() + self.config.start_timeout
        waiting = {worker.socket.fileno(): worker for worker in self.workers}
        results: dict[int, Any] = {}
        failures: list[ManyarmsError] = []
        poller = select.poll()
        for fd in waiting:
            poller.register(fd, select.POLLIN)
        while waiting:
            ready = poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ready:
                failures += [self._late(worker) for worker in waiting.values()] if not failures else []
                break
            for fd, _ in ready:
                worker = waiting[fd]
                try:
                    answer = worker.receive()
                    if answer["kind"] == "failed":
                        raise start_failure(worker, answer)
                    result = step(worker, answer)
                    if result is None:
                        continue
                    results[worker.index] = result
                except (ConnectionError, OSError):
                    failures.append(died_at_start(worker))
                except ManyarmsError as error:
                    failures.append(error)
                if failures and worker.index not in results:
                    deadline = min(deadline, time.monotonic() + _GRACE_AFTER_FAILURE)
                poller.unregister(fd)
                del waiting[fd]
        if failures:
            raise one_error(failures, len(self.workers))
        return results

    def _late(self, worker: WorkerProcess) -> StartError:
        tail = worker.log_tail()
        return StartError(
            f"{worker.describe()} did not start within {self.config.start_timeout:g} s",
            why=f"it last printed:\n{tail}" if tail else "",
            do="raise start_timeout, or start fewer workers at once",
            log=str(worker.log_path or ""),
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


def start_failure(worker: WorkerProcess, answer: Mapping[str, Any]) -> ManyarmsError:
    """Turn a worker's account of why it could not build its simulator into an error that helps."""
    simulator, task = split_id(worker.simulator.id)
    if answer["type"] == "UnknownSimulator":
        return UnknownName(
            f"there is no simulator named {simulator!r}",
            why=did_you_mean(simulator, answer["known"]),
            do="write '<simulator>/<task>' or 'package.module:factory', or install the plug-in that provides it",
        )
    if answer["type"] == "UnknownTask":
        return UnknownName(
            f"{simulator} has no task {task!r}", why=answer["message"], do=did_you_mean(task, answer["known"])
        )
    do = ""
    if answer["type"] in ("ModuleNotFoundError", "ImportError"):
        missing = answer["module"] or "it"
        do = f"{worker.interpreter} -m pip install {missing}, or name the interpreter that has it with python="
    elif answer["type"] == "TypeError" and "unexpected keyword argument" in answer["message"]:
        do = "check the spelling of the options given to make_vec"
    return StartError(
        f"{worker.simulator.id} could not be built: {answer['type']}: {answer['message']}",
        why=answer["traceback"],
        do=do,
        log=str(worker.log_path or ""),
    )


def died_at_start(worker: WorkerProcess) -> ManyarmsError:
    """Explain a worker that ended before it was ready."""
    error = worker.death(doing="while starting")
    return StartError(error.what, why=error.why, do=error.do, log=error.log)


def one_error(failures: Sequence[ManyarmsError], workers: int) -> ManyarmsError:
    """Tell the same failure of many workers once."""
    kinds: dict[str, list[ManyarmsError]] = {}
    for failure in failures:
        # Workers differ in their numbers only.
        kinds.setdefault(failure.what.split(") ", 1)[-1], []).append(failure)
    first = next(iter(kinds.values()))[0]
    if (len(failures) == 1 and workers == 1) or (len(kinds) == 1 and isinstance(first, UnknownName)):
        return first
    note = f"{len(failures)} of {workers} workers failed to start" + (" in the same way" if len(kinds) == 1 else "")
    if len(kinds) == 1:
        return type(first)(first.what, why="\n".join(filter(None, [note, first.why])), do=first.do, log=first.log)
    return StartError(note, why="\n".join(str(group[0]) for group in kinds.values()), do=first.do)
