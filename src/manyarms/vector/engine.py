"""Commands out, rows back: doorbells, the bell, and what happens to rows whose worker fails.

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

from manyarms.errors import RowStateError, WorkerError, several
from manyarms.vector.config import VectorConfig
from manyarms.vector.groups import ABORTED, ENDED, LIVE, NEW, LockstepGroup
from manyarms.vector.health import Command, Health
from manyarms.vector.layout import arena_fields
from manyarms.vector.memory import check_room
from manyarms.vector.process import READY, WorkerProcess
from manyarms.vector.reasons import simulator_error
from manyarms.vector.spaces import MergedSpec
from manyarms.vector.supervisor import Supervisor
from manyarms.workers import wire
from manyarms.workers import words as w
from manyarms.workers.arena import Arena, Layout

#: Sequence numbers run from 1 to this; 0 means that nothing is expected.
_LAST_TICK = 0x7FFFFFFF


class Engine:
    """Rings workers, collects what they finish, replaces those that fail."""

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
        self.health = Health(supervisor, config)
        self.state = np.full(rows, NEW)
        self.seeds: list[int | None] = [None] * rows
        self.replies: dict[int, Any] = {}
        self.aborted: dict[int, WorkerError] = {}
        """Rows that come back without a result, and why; whoever collects them takes them out."""
        self._doomed: dict[int, WorkerError] = {}
        """Rows whose episode was lost while nothing was under way: told at the next step."""
        self._queued: list[tuple[int, int, bytes]] = []
        """Commands for workers that are being started again."""
        self._lost: set[int] = set()
        """Rows whose worker is given up."""
        self._raise = config.on_failure == "raise"
        self._tick = 0
        self._expected = [0] * rows
        self._sent_at = [0.0] * rows
        self._ready: list[int] = []
        self._failures: list[WorkerError] = []
        self._in_flight = 0
        self._bell_size = min(1 << 16, rows * wire.RECORD.size)
        self._ticks = self.control[:, w.SEQUENCE]
        self._stepping_all = False
        self._status_memory = self.arena.region("status")
        self._nothing_to_tell = w.status_bytes(num_steps=1) * rows
        self._worker_of = [worker for worker in self.workers for _ in worker.rows]
        self._bytes = [bytes([i]) for worker in self.workers for i in range(len(worker.rows))]
        self._groups: dict[int, LockstepGroup] = {}
        for worker in self.workers:
            if worker.lockstep:
                group = LockstepGroup(worker, merged.rows[worker.rows[0]].partial_reset)
                self._groups.update(dict.fromkeys(worker.rows, group))
        # The usual case, all rows at once, is one doorbell a worker.
        self._all_doorbells: list[tuple[int, bytes]] = []
        self._note_doorbells()

    def _note_doorbells(self) -> None:
        self._all_doorbells = [(worker.command_fd, bytes(range(len(worker.rows)))) for worker in self.workers]

    @property
    def in_flight(self) -> int:
        """How many rows have a command that is not yet collected."""
        return self._in_flight + len(self._ready)

    # -- sending ------------------------------------------------------------------------------------------------------

    def step_all(self) -> bool:
        """Send the actions that lie in the arena to every row and wait; True when no row has anything else to tell.

        The usual case of `step`, `collect_all` and reading the status, at a third of their cost.
        """
        if self._groups or self._in_flight or self._ready or self.health.needs_care:
            self._step_all_with_care()
            return False
        self._tick = tick = self._tick % _LAST_TICK + 1
        if not self._stepping_all:
            self.control[:, w.COMMAND] = w.STEP
            self.control[:, w.PAYLOAD] = 0
            self._stepping_all = True
        self._ticks[:] = tick
        self._expected = [tick] * len(self._expected)
        self._sent_at = [time.monotonic()] * len(self._expected)
        self._in_flight = len(self._expected)
        for fd, data in self._all_doorbells:
            try:
                os.write(fd, data)
            except BrokenPipeError:
                continue  # the worker is dying, and its pidfd will say so, with the cause
        self.collect_all()
        return not self.aborted and self._status_memory.tobytes() == self._nothing_to_tell

    def _step_all_with_care(self) -> None:
        """Step every row; those whose episode was aborted, or whose worker is due for recycling, begin a new one."""
        rows = range(len(self._expected))
        self.require_idle(rows)
        for row in rows:
            due = self.state[row] == ENDED and self.health.wants_recycling(self._worker_of[row])
            if self.state[row] == ABORTED or due:
                seed = self.health.next_seed(row, self.seeds[row])
                self._begin(row, {"task": None, "seed": seed, "init_state": None, "options": None})
            else:
                self._step(row)
        self._after_submit()
        self.collect_all()

    def step(self, rows: Sequence[int]) -> None:
        """Send the actions that lie in the arena to some rows."""
        for row in rows:
            self._step(row)
        self._after_submit()

    def _step(self, row: int) -> None:
        error = self._doomed.pop(row, None)
        if error is None:
            self._submit(row, w.STEP, b"")
        else:
            self._deliver_aborted(row, error)

    def reset(self, rows: Sequence[int], starts: Sequence[dict[str, Any]]) -> None:
        """Begin an episode in each row."""
        for row, start in zip(rows, starts, strict=True):
            self.seeds[row] = start.get("seed")
            self._begin(row, start)
        self._after_submit()

    def _begin(self, row: int, start: dict[str, Any]) -> None:
        self._doomed.pop(row, None)
        worker = self._worker_of[row]
        if self.health.wants_recycling(worker) and not any(self.state[r] == LIVE for r in worker.rows if r != row):
            self.health.recycle(worker)
        self._submit(row, w.RESET, wire.encode(start))

    def call(self, rows: Sequence[int], payloads: Sequence[bytes]) -> list[Any]:
        """Call a method of each row's simulator and wait for the answers."""
        self.require_idle(rows)
        for row, payload in zip(rows, payloads, strict=True):
            if row in self._groups:
                self._groups[row].outstanding += 1
            self._dispatch(row, w.CALL, payload)
        wanted = set(rows)
        while wanted - set(self._ready) and not self._failures:
            self._pump(None)
        self._raise_failures()
        self._ready = [row for row in self._ready if row not in wanted]
        failed = [self.aborted.pop(row) for row in rows if row in self.aborted]
        if failed:
            raise several(failed)
        return [self.replies.pop(row)["result"] for row in rows]

    def require_idle(self, rows: Sequence[int]) -> None:
        """Refuse rows that still have a command under way, or whose worker is given up."""
        gone = [row for row in rows if row in self._lost] if self._lost else []
        if gone:
            raise RowStateError(f"the workers of rows {_list(gone)} have died", do="close this and make a new one")
        if not (self._in_flight or self._ready or self._groups):
            return
        waiting = {row for group in self._groups.values() for row in group.pending}.union(self._ready)
        waiting.update(row for row, _, _ in self._queued)
        busy = [row for row in rows if self._expected[row] > 0 or row in waiting]
        if busy:
            raise RowStateError(f"rows {_list(busy)} have not been received yet", do="recv() them before sending again")

    def _submit(self, row: int, command: int, payload: bytes) -> None:
        group = self._groups.get(row)
        if group is not None:
            group.pending[row] = (command, payload)
        elif self._worker_of[row].phase == READY:
            self._dispatch(row, command, payload)
        else:
            self._queued.append((row, command, payload))
            self._in_flight += 1

    def _after_submit(self) -> None:
        if not self._groups:
            return
        for group in self._unique_groups():
            if len(group.pending) == len(group.rows):
                self._flush(group)

    def _dispatch(self, row: int, command: int, payload: bytes) -> None:
        """Write one row's command and ring for it."""
        self._mark(row, command, len(payload))
        _ring(self._worker_of[row].command_fd, self._bytes[row] + payload)

    def _mark(self, row: int, command: int, size: int) -> None:
        self._stepping_all = False
        self._tick = self._tick % _LAST_TICK + 1
        words = self.control[row]
        words[w.COMMAND], words[w.SEQUENCE], words[w.PAYLOAD] = command, self._tick, size
        self._expected[row] = self._tick
        self._sent_at[row] = time.monotonic()
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
        if group.outstanding or not group.pending or group.worker.phase != READY:
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
        groups = self._unique_groups()
        held = sorted(row for group in groups for row in group.pending)
        if count and not self.in_flight and all(group.worker.phase == READY for group in groups if group.pending):
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

    def collect(self, count: int, timeout: float | None) -> list[int]:
        """Wait until `count` rows are done and return all that are; raise what cannot be mended."""
        self._flush_groups()
        count = min(count, self._reachable(count))
        deadline = None if timeout is None else time.monotonic() + timeout
        self._drain()
        while len(self._ready) < count and not self._failures:
            if not self._pump(deadline):
                break
            if not self._in_flight and len(self._ready) < count:
                # Nothing else can come: let those go that waited for company.
                self._flush_groups()
        self._raise_failures()
        done, self._ready = self._ready, []
        return done

    def collect_all(self) -> list[int]:
        """Wait for every row in flight; a row that fails does not keep the others from being awaited."""
        while self._in_flight or self._groups:
            self._flush_groups()
            if not self._in_flight and not any(group.pending for group in self._groups.values()):
                break
            self._pump(None)
        done, self._ready = self._ready, []
        if self._failures:
            self.replies.clear()
            self._raise_failures()
        return done

    def abandon(self) -> None:
        """Wait for whatever is under way and forget it, as after an interrupt."""
        for group in self._unique_groups():
            group.pending.clear()
        while self._in_flight:
            self._pump(None)
        for forgotten in (self._ready, self._failures, self.replies, self.aborted):
            forgotten.clear()

    def _raise_failures(self) -> None:
        if self._failures:
            failures, self._failures = self._failures, []
            raise several(failures)

    def _pump(self, deadline: float | None) -> bool:
        """Sleep until something happens, then take it in; False when the time is over."""
        now = time.monotonic()
        limit = self.health.check_every if deadline is None else min(deadline - now, self.health.check_every)
        dead, risen = self.supervisor.wait(max(0.0, limit))
        self._drain()  # what a worker finished before it died counts
        for worker in dead:
            self._fail(worker, self.health.cause_of_death(worker, self._seed_of(worker)))
        for worker in risen:
            self._resume(worker)
        if self.health.check_is_due():
            for worker, error in self.health.check(self._oldest_commands(), self._seed_of):
                self._fail(worker, error)
        return deadline is None or time.monotonic() < deadline

    def _drain(self) -> bool:
        """Take in every record on the bell; return whether there was one."""
        try:
            data = os.read(self.supervisor.bell_fd, self._bell_size)
        except BlockingIOError:
            return False
        if len(data) % wire.RECORD.size:
            self._take_in_by_status()
            return True
        expected, ready, words = self._expected, self._ready, self._status_words
        strange = False
        for row, tick in wire.RECORD.iter_unpack(data):
            if row >= len(expected) or expected[row] != tick:
                # From a worker that was replaced meanwhile, or from one that writes where it should not.
                strange = True
                continue
            expected[row] = 0
            self._in_flight -= 1
            if self._groups and row in self._groups:
                self._come_back(row)
            if words[row][w.REPLY]:
                self._take_reply(row)
            else:
                ready.append(row)
        if strange:
            self._take_in_by_status()
        return True

    def _take_in_by_status(self) -> None:
        """Find out from the arena which rows are done, when the bell cannot be trusted."""
        for row in np.flatnonzero(self.control[:, w.DONE] == self._ticks).tolist():
            if self._expected[row] == self._ticks[row]:
                self._expected[row] = 0
                self._in_flight -= 1
                if row in self._groups:
                    self._come_back(row)
                if self._status_words[row][w.REPLY]:
                    self._take_reply(row)
                else:
                    self._ready.append(row)

    def _come_back(self, row: int) -> None:
        """Note that a row of a group is back, and whether its episode goes on: its neighbours' steps wait for that."""
        words = self._status_words[row]
        self._groups[row].outstanding -= 1
        if self.control[row, w.COMMAND] != w.CALL:
            self.state[row] = ENDED if words[w.TERMINATED] or words[w.TRUNCATED] else LIVE

    def _take_reply(self, row: int) -> None:
        worker = self._worker_of[row]
        try:
            reply = worker.receive()
            error = reply.get("error")
        except (OSError, ValueError, KeyError, AttributeError, struct.error):
            # Half an answer, or nonsense: nothing it says can be trusted any more.
            self._deliver_aborted(row, self.health.nonsense(worker, self.seeds[row]))
            self._fail(worker, self.aborted[row])
            return
        if error is None:
            self.replies[row] = reply
            self._ready.append(row)
            return
        told = simulator_error(worker, row, self.seeds[row], error)
        if error["phase"] == "call":
            self.aborted[row] = told
            self._ready.append(row)
        elif self._raise:
            self.state[row] = NEW
            self._failures.append(told)
        elif error["phase"] == "step" and not worker.lockstep and self.health.forgive(worker):
            self.health.note(told)
            self._deliver_aborted(row, told)
        else:
            self._deliver_aborted(row, told)
            self._fail(worker, told)

    # -- when a worker fails ------------------------------------------------------------------------------------------

    def _deliver_aborted(self, row: int, error: WorkerError) -> None:
        """Have a row come back without a result."""
        self.status[row] = 0
        self.state[row] = ABORTED
        self.aborted[row] = error
        self._ready.append(row)

    def _fail(self, worker: WorkerProcess, error: WorkerError) -> None:
        """Abort the episodes of a worker's rows, take it down, and start it again unless it has had its chances."""
        self.health.note(error)
        group = self._groups.get(worker.rows[0])
        for row in worker.rows:
            if self._expected[row] > 0:
                self._expected[row] = 0
                self._in_flight -= 1
                self._lose_row(row, error)
            elif group is not None and row in group.pending and group.pending[row][0] == w.STEP:
                del group.pending[row]
                self._lose_row(row, error)
            elif self.state[row] == LIVE:
                self._doomed[row] = error
        if group is not None:
            group.outstanding = 0
        final = self.health.take_down(worker, error)
        self._note_doorbells()
        self._stepping_all = False
        if final is not None:
            self._give_up(worker, final)

    def _lose_row(self, row: int, error: WorkerError) -> None:
        if self._raise:
            self.state[row] = NEW
        else:
            self._deliver_aborted(row, error)

    def _give_up(self, worker: WorkerProcess, error: WorkerError) -> None:
        self._lost.update(worker.rows)
        self._failures.append(error)
        left = [command for command in self._queued if command[0] not in self._lost]
        self._in_flight -= len(self._queued) - len(left)
        self._queued = left
        for row in worker.rows:
            self._doomed.pop(row, None)
            if row in self._groups:
                self._groups[row].pending.clear()

    def _resume(self, worker: WorkerProcess) -> None:
        """Send a worker that is up again what has been waiting for it."""
        self._note_doorbells()
        waiting = [command for command in self._queued if self._worker_of[command[0]] is worker]
        self._queued = [command for command in self._queued if self._worker_of[command[0]] is not worker]
        for row, command, payload in waiting:
            self._in_flight -= 1
            self._dispatch(row, command, payload)
        if worker.rows[0] in self._groups:
            self._flush(self._groups[worker.rows[0]])

    def note_ends(self, rows: Sequence[int]) -> None:
        """Count episodes that came to their end."""
        for row in rows:
            self.health.episode_ended(self._worker_of[row])

    def _seed_of(self, worker: WorkerProcess) -> int | None:
        """Return the seed of the row that a worker is, or was last, at work on."""
        busy = [row for row in worker.rows if self._expected[row] > 0]
        return self.seeds[(busy or worker.rows)[0]]

    def _oldest_commands(self) -> dict[WorkerProcess, Command]:
        """Return the oldest command of every worker that has one."""
        oldest: dict[WorkerProcess, Command] = {}
        for row, tick in enumerate(self._expected):
            if tick > 0:
                worker = self._worker_of[row]
                sent = self._sent_at[row]
                if worker not in oldest or sent < oldest[worker][1]:
                    words = self.control[row]
                    oldest[worker] = (tick, sent, words[w.COMMAND] != w.STEP, int(words[w.NUM_ACTIONS]))
        return oldest


def _ring(fd: int, data: bytes) -> None:
    """Ring a doorbell. Where nobody answers, the worker is dying and its pidfd will say so, with the cause."""
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(fd, data) :]


def _list(rows: Sequence[int]) -> str:
    text = ", ".join(map(str, rows[:8]))
    return text + (f", … ({len(rows)} in all)" if len(rows) > 8 else "")
