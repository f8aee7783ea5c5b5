"""The post between the main side and the workers: doorbells out, the bell back, and who is still expected."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from manyarms.vector.health import Command
from manyarms.vector.process import WorkerProcess
from manyarms.workers import wire
from manyarms.workers import words as w
from manyarms.workers.arena import Arena

#: Sequence numbers run from 1 to this; 0 means that nothing is expected.
_LAST_TICK = 0x7FFFFFFF


class Post:
    """Writes commands, rings, and hears which rows are done."""

    def __init__(self, arena: Arena, workers: Sequence[WorkerProcess], bell_fd: int) -> None:
        self.control = arena.array("control")
        self.in_flight = 0
        self._workers = workers
        self._bell_fd = bell_fd
        rows = len(self.control)
        self._words = [arena.words("control", row) for row in range(rows)]
        self._bell_size = min(1 << 16, rows * wire.RECORD.size)
        self._tick = 0
        self._ticks = self.control[:, w.SEQUENCE]
        self._done = self.control[:, w.DONE]
        self._expected = [0] * rows
        self._sent_at = [0.0] * rows
        self._heard = b""
        """Records that were read but not yet looked at."""
        self._stepping_all = False
        self._worker_of = [worker for worker in workers for _ in worker.rows]
        self._bytes = [bytes([i]) for worker in workers for i in range(len(worker.rows))]
        self._all_doorbells: list[tuple[int, bytes]] = []
        self.note_doorbells()

    def note_doorbells(self) -> None:
        """Look up where to ring; to be called whenever a worker has come or gone."""
        self._stepping_all = False
        self._all_doorbells = [(worker.command_fd, bytes(range(len(worker.rows)))) for worker in self._workers]

    def expected_of(self, rows: Sequence[int]) -> list[int]:
        """Return those of `rows` that have a command under way."""
        expected = self._expected
        return [row for row in rows if expected[row]]

    def expects(self, row: int) -> bool:
        """Tell whether a row has a command under way."""
        return self._expected[row] > 0

    def withdraw(self, row: int) -> bool:
        """Expect nothing more of a row; return whether something was."""
        expected = self._expected[row] > 0
        if expected:
            self._expected[row] = 0
            self.in_flight -= 1
        return expected

    def send_step_to_all(self) -> None:
        """Have every row step, with one doorbell a worker."""
        self._tick = tick = self._tick % _LAST_TICK + 1
        if not self._stepping_all:
            self.control[:, w.COMMAND] = w.STEP
            self.control[:, w.PAYLOAD] = 0
            self._stepping_all = True
        self._ticks[:] = tick
        count = self.in_flight = len(self._expected)
        self._expected = [tick] * count
        self._sent_at = [time.monotonic()] * count
        for fd, data in self._all_doorbells:
            try:
                os.write(fd, data)
            except BrokenPipeError:
                continue  # the worker is dying, and its pidfd will say so, with the cause

    def send(self, row: int, command: int, payload: bytes) -> None:
        """Send one row a command."""
        self._mark(row, command, len(payload))
        self._worker_of[row].ring(self._bytes[row] + payload)

    def send_group(self, rows: Sequence[int], commands: Mapping[int, tuple[int, bytes]]) -> None:
        """Send the rows of a lock-step group their commands at once; those without one are held."""
        payload = b""
        for row in rows:
            if row in commands:
                command, data = commands[row]
                self._mark(row, command, len(data))
                payload += data
            else:
                self.control[row, w.COMMAND] = w.NOTHING
                self.control[row, w.PAYLOAD] = 0
        self._worker_of[rows[0]].ring(bytes([wire.GROUP]) + payload)

    def _mark(self, row: int, command: int, size: int) -> None:
        self._stepping_all = False
        self._tick = self._tick % _LAST_TICK + 1
        words = self._words[row]
        words[w.COMMAND], words[w.SEQUENCE], words[w.PAYLOAD] = command, self._tick, size
        self._expected[row] = self._tick
        self._sent_at[row] = time.monotonic()
        self.in_flight += 1

    def hear_all(self, poll: Callable[[float], list[tuple[int, int]]], timeout: float) -> bool:
        """Listen until every row that was sent a step has rung; False when something else must be seen to first.

        As many bytes as were expected may be other bytes: the arena says who is done.
        """
        bell_fd, size = self._bell_fd, self._bell_size
        missing = len(self._expected) * wire.RECORD.size
        while missing > 0:
            events = poll(timeout)
            if len(events) != 1 or events[0][0] != bell_fd:
                return False
            data = os.read(bell_fd, size)
            self._heard += data
            missing -= len(data)
        return np.count_nonzero(self._done == self._tick) == len(self._expected)

    def accept_all(self) -> None:
        """Take it that all rows are done, as their status says."""
        self._heard = b""
        self._expected = [0] * len(self._expected)
        self.in_flight = 0

    def accept(self) -> list[int]:
        """Return the rows whose records have arrived, in the order in which they were done."""
        try:
            data = self._heard + os.read(self._bell_fd, self._bell_size)
        except BlockingIOError:
            data = self._heard
        if not data:
            return []
        self._heard = b""
        whole = len(data) - len(data) % wire.RECORD.size
        strange = whole != len(data)
        expected, words, done = self._expected, self._words, []
        for row, tick in wire.RECORD.iter_unpack(data[:whole] if strange else data):
            if row < len(expected) and expected[row] == tick and words[row][w.DONE] == tick:
                expected[row] = 0
                done.append(row)
            else:
                # From a worker that was replaced meanwhile, or from one that writes where it should not.
                strange = True
        self.in_flight -= len(done)
        return done + self._look_in_the_arena() if strange else done

    def _look_in_the_arena(self) -> list[int]:
        """Return rows that are done by their own word, when the bell cannot be trusted."""
        said = np.flatnonzero(self.control[:, w.DONE] == self._ticks).tolist()
        return [row for row in said if self._expected[row] == self._ticks[row] and self.withdraw(row)]

    def oldest_commands(self) -> dict[WorkerProcess, Command]:
        """Return the oldest command of every worker that has one."""
        oldest: dict[WorkerProcess, Command] = {}
        for row, tick in enumerate(self._expected):
            if tick > 0:
                worker, sent = self._worker_of[row], self._sent_at[row]
                if worker not in oldest or sent < oldest[worker].sent_at:
                    words = self._words[row]
                    oldest[worker] = Command(tick, sent, words[w.COMMAND], words[w.NUM_ACTIONS])
        return oldest
