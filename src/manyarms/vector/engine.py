"""Commands out, rows back: the doorbell, the bell, and the rules of lock-step groups.

The engine knows rows, workers and words; what the arrays mean is `VectorEnv`'s business.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from manyarms.errors import RowStateError, SimulatorError, WorkerError, WorkerTimeout, several
from manyarms.vector.config import VectorConfig
from manyarms.vector.groups import LIVE, NEW, LockstepGroup
from manyarms.vector.layout import arena_fields
from manyarms.vector.memory import check_room
from manyarms.vector.process import WorkerProcess
from manyarms.vector.spaces import MergedSpec
from manyarms.vector.supervisor import Supervisor
from manyarms.workers import wire
from manyarms.workers import words as w
from manyarms.workers.arena import Arena, Layout

#: Sequence numbers run from 1 to this; 0 means that nothing is expected.
_LAST_TICK = 0x7FFFFFFF


class Engine:
    """Rings workers, collects what they finish."""

    def __init__(self, supervisor: Supervisor, merged: MergedSpec, config: VectorConfig) -> None:
        self.supervisor = supervisor
        self.workers = supervisor.workers
        rows = config.num_envs
        layout = Layout.plan(rows, arena_fields(merged.spec, config))
        check_room(layout.size, f"shared memory for {rows} environments", "lower num_envs, max_chunk or the image size")
        os.ftruncate(supervisor.arena_fd, layout.size)
        self.arena = Arena(layout, supervisor.arena_fd, populate=True)
        self.control = self.arena.array("control")
        self.status = self.arena.array("status")
        self._status_words = [self.arena.words("status", row) for row in range(rows)]
        supervisor.attach(
            {
                "layout": layout.to_json(),
                "rename": merged.rename,
                "max_episode_steps": config.max_episode_steps,
                "profile": config.profile,
            }
        )
        self.state = np.full(rows, NEW)
        self.seeds: list[int | None] = [None] * rows
        self.replies: dict[int, Any] = {}
        self.sent_at = np.zeros(rows)
        self._tick = 0
        self._expected = [0] * rows
        self._ready: list[int] = []
        self._failures: list[WorkerError] = []
        self._in_flight = 0
        self._bell_size = min(1 << 16, rows * wire.RECORD.size)
        self._timeout = config.step_timeout
        self._ticks = self.control[:, w.SEQUENCE]
        self._stepping_all = False
        self._status_memory = self.arena.region("status")
        self._nothing_to_tell = w.status_bytes(num_steps=1) * rows
        self._lost: set[int] = set()
        self._worker_of = [worker for worker in self.workers for _ in worker.rows]
        self._doorbells = [(worker.command_fd, bytes([i])) for worker in self.workers for i in range(len(worker.rows))]
        self._groups: dict[int, LockstepGroup] = {}
        for worker in self.workers:
            if worker.lockstep:
                group = LockstepGroup(worker, merged.rows[worker.rows[0]].partial_reset)
                self._groups.update(dict.fromkeys(worker.rows, group))
        # The usual case, all rows at once, is one doorbell a worker.
        self._all_doorbells = [(worker.command_fd, bytes(range(len(worker.rows)))) for worker in self.workers]

    @property
    def in_flight(self) -> int:
        """How many rows have a command that is not yet collected."""
        return self._in_flight + len(self._ready)

    def step_all(self) -> bool:
        """Send the actions that lie in the arena to every row and wait; True when no row has anything else to tell.

        The usual case of `step`, `collect_all` and reading the status, at a third of their cost.
        """
        if self._groups or self._in_flight or self._ready or self._lost:
            self.require_idle(range(len(self._expected)))
            self.step(range(len(self._expected)))
            self.collect_all(self._timeout)
            return False
        self._tick = tick = self._tick % _LAST_TICK + 1
        if not self._stepping_all:
            self.control[:, w.COMMAND] = w.STEP
            self.control[:, w.PAYLOAD] = 0
            self._stepping_all = True
        self._ticks[:] = tick
        self._expected = [tick] * len(self._expected)
        self._in_flight = len(self._expected)
        for fd, data in self._all_doorbells:
            try:
                os.write(fd, data)
            except BrokenPipeError:
                continue  # the worker is dying, and its pidfd will say so, with the cause
        self.collect_all(self._timeout)
        return self._status_memory.tobytes() == self._nothing_to_tell

    def step(self, rows: Sequence[int]) -> None:
        """Send the actions that lie in the arena to some rows."""
        for row in rows:
            self._submit(row, w.STEP, b"")
        self._after_submit()

    def reset(self, rows: Sequence[int], starts: Sequence[dict[str, Any]]) -> None:
        """Begin an episode in each row."""
        for row, start in zip(rows, starts, strict=True):
            self.seeds[row] = start.get("seed")
            self._submit(row, w.RESET, wire.encode(start))
        self._after_submit()

    def call(self, rows: Sequence[int], payloads: Sequence[bytes]) -> list[Any]:
        """Call a method of each row's simulator and wait for the answers."""
        self.require_idle(rows)
        for row, payload in zip(rows, payloads, strict=True):
            if row in self._groups:
                self._groups[row].outstanding += 1
            self._dispatch(row, w.CALL, payload)
        done = self.collect(len(rows), None)
        assert sorted(done) == sorted(rows)
        return [self.replies.pop(row)["result"] for row in rows]

    def require_idle(self, rows: Sequence[int]) -> None:
        """Refuse rows that still have a command under way, or whose worker is gone."""
        if self._lost:
            gone = [row for row in rows if row in self._lost]
            if gone:
                raise RowStateError(f"the workers of rows {_list(gone)} have died", do="close this and make a new one")
        if not (self._in_flight or self._ready or self._groups):
            return
        waiting = {row for group in self._groups.values() for row in group.pending}.union(self._ready)
        busy = [row for row in rows if self._expected[row] > 0 or row in waiting]
        if busy:
            raise RowStateError(f"rows {_list(busy)} have not been received yet", do="recv() them before sending again")

    def collect(self, count: int, timeout: float | None) -> list[int]:
        """Wait until `count` rows are done and return all that are; raise what went wrong in any."""
        self._flush_groups()
        count = min(count, self._reachable(count))
        deadline = None if timeout is None else time.monotonic() + timeout
        while len(self._ready) < count and not self._failures:
            if not self._drain() and not self._sleep(deadline):
                break
        if self._failures:
            failures, self._failures = self._failures, []
            raise several(failures)
        done, self._ready = self._ready, []
        return done

    def collect_all(self, timeout: float | None) -> list[int]:
        """Wait for every row in flight; a row that fails does not keep the others from being awaited."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._in_flight or self._groups:
            self._flush_groups()
            if not self._in_flight:
                break
            # Sleeping first and reading after is two calls; reading first would often be three, and an exception.
            if not self._sleep(deadline):
                raise self._timed_out(timeout or 0.0)
            self._drain()
        done, self._ready = self._ready, []
        if self._failures:
            self.replies.clear()
            failures, self._failures = self._failures, []
            raise several(failures)
        return done

    def abandon(self) -> None:
        """Wait for whatever is under way and forget it, as after an interrupt."""
        for group in self._unique_groups():
            group.pending.clear()
        while self._in_flight:
            if not self._drain():
                self._sleep(None)
        self._ready.clear()
        self._failures.clear()
        self.replies.clear()

    # -- sending ------------------------------------------------------------------------------------------------------

    def _submit(self, row: int, command: int, payload: bytes) -> None:
        group = self._groups.get(row)
        if group is None:
            self._dispatch(row, command, payload)
        else:
            group.pending[row] = (command, payload)

    def _after_submit(self) -> None:
        if not self._groups:
            return
        for group in self._unique_groups():
            if len(group.pending) == len(group.rows):
                self._flush(group)

    def _dispatch(self, row: int, command: int, payload: bytes) -> None:
        """Write one row's command and ring for it."""
        self._mark(row, command, len(payload))
        fd, byte = self._doorbells[row]
        _ring(fd, byte + payload)

    def _mark(self, row: int, command: int, size: int) -> None:
        self._stepping_all = False
        self._tick = self._tick % _LAST_TICK + 1
        words = self.control[row]
        words[w.COMMAND], words[w.SEQUENCE], words[w.PAYLOAD] = command, self._tick, size
        self._expected[row] = self._tick
        self._in_flight += 1

    # -- lock-step groups ---------------------------------------------------------------------------------------------

    def _unique_groups(self) -> list[LockstepGroup]:
        return list({id(group): group for group in self._groups.values()}.values())

    def _flush_groups(self) -> None:
        if not self._groups:
            return
        for group in self._unique_groups():
            self._flush(group)

    def _flush(self, group: LockstepGroup) -> None:
        """Let a group leave when all that must go together has been sent."""
        if group.outstanding or not group.pending:
            return
        leaving = group.leaving(self.state)
        if not leaving:
            return
        payload = b""
        for row in group.rows:
            if row in leaving:
                command, data = group.pending.pop(row)
                self._mark(row, command, len(data))
                payload += data
            else:
                self.control[row, w.COMMAND] = w.NOTHING
                self.control[row, w.PAYLOAD] = 0
        group.outstanding = len(leaving)
        _ring(group.worker.command_fd, bytes([wire.GROUP]) + payload)

    def _reachable(self, count: int) -> int:
        """Return how many rows can come back; refuse to wait for a group that waits for us."""
        held = sorted(row for group in self._unique_groups() for row in group.pending)
        if count and not self.in_flight:
            if held:
                group = self._groups[held[0]]
                missing = [row for row in group.rows if row not in group.pending and self.state[row] == LIVE]
                raise RowStateError(
                    f"rows {_list(held)} wait for rows {_list(missing)} of their lock-step group",
                    do="send those rows too, or begin a new episode in them",
                )
            raise RowStateError("nothing has been sent", do="begin() or send() rows before recv()")
        return self.in_flight + len(held)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _drain(self) -> bool:
        """Take in every record on the bell; return whether there was one."""
        try:
            data = os.read(self.supervisor.bell_fd, self._bell_size)
        except BlockingIOError:
            return False
        expected, ready, words = self._expected, self._ready, self._status_words
        for row, tick in wire.RECORD.iter_unpack(data):
            if row >= len(expected) or expected[row] != tick:
                continue  # from a worker that has been given up meanwhile
            expected[row] = 0
            self._in_flight -= 1
            if self._groups and row in self._groups:
                self._groups[row].outstanding -= 1
            if words[row][w.REPLY]:
                self._take_reply(row)
            else:
                ready.append(row)
        return True

    def _take_reply(self, row: int) -> None:
        worker = self._worker_of[row]
        try:
            reply = worker.receive()
        except (OSError, ValueError, KeyError, struct.error):
            worker.kill()  # half an answer, or nonsense: nothing it says can be trusted any more
            self._lose(worker)
            return
        if "error" in reply:
            self.state[row] = NEW
            self._failures.append(simulator_error(worker, row, self.seeds[row], reply["error"]))
        else:
            self.replies[row] = reply
            self._ready.append(row)

    def _sleep(self, deadline: float | None) -> bool:
        """Wait for the bell or a death; False when the time is over."""
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        dead = self.supervisor.wait(timeout)
        if dead:
            self._drain()  # what it finished before it died counts
            for worker in dead:
                self._lose(worker)
        elif timeout == 0.0:
            return self._drain()
        return True

    def _lose(self, worker: WorkerProcess) -> None:
        """Account for a worker that is gone: its rows in flight come back as a failure."""
        if worker.rows[0] in self._lost:
            return
        self._failures.append(worker.death(seed=self.seeds[worker.rows[0]]))
        self._lost.update(worker.rows)
        for row in worker.rows:
            self.state[row] = NEW
            if self._expected[row] > 0:
                self._expected[row] = 0
                self._in_flight -= 1

    def _timed_out(self, seconds: float) -> WorkerTimeout:
        late = [row for row, tick in enumerate(self._expected) if tick > 0]
        workers = sorted({self._worker_of[row].index for row in late})
        first = self._worker_of[late[0]]
        return WorkerTimeout(
            f"{first.describe(self.seeds[late[0]])} did not answer within {seconds:g} s"
            + (f", nor did {len(workers) - 1} more" if len(workers) > 1 else ""),
            rows=late,
            do=f"raise step_timeout, or look at what the simulator is doing (py-spy dump --pid {first.pid})",
            log=str(first.log_path or ""),
        )


def _ring(fd: int, data: bytes) -> None:
    """Ring a doorbell. Where nobody answers, the worker is dying and its pidfd will say so, with the cause."""
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(fd, data) :]


def simulator_error(worker: WorkerProcess, row: int, seed: int | None, error: dict[str, Any]) -> SimulatorError:
    """Tell an exception raised inside a simulator."""
    where = f"row {row}" + (f", seed {seed}" if seed is not None else "")
    return SimulatorError(
        f"{worker.simulator.id} ({where}) raised {error['type']} in {error['phase']}: {error['message']}",
        rows=[row],
        why=error["traceback"],
        do="reset the row to go on" if error["phase"] != "reset" else "",
        log=str(worker.log_path or ""),
    )


def _list(rows: Sequence[int]) -> str:
    text = ", ".join(map(str, rows[:8]))
    return text + (f", … ({len(rows)} in all)" if len(rows) > 8 else "")
