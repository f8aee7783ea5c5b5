"""The main side of `workers/nursery.py`: processes that fork workers, one for each interpreter and environment."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from manyarms.vector.endings import has_ended, signal_name
from manyarms.vector.keeper import Keeper, end_all
from manyarms.vector.patience import STOPPED, Suspicion, process_letter, stat_fields
from manyarms.workers import wire
from manyarms.workers.messages import check
from manyarms.workers.nursery import send_request

#: Forking takes milliseconds; a nursery is looked at this often until it has, and given up after that many seconds in
#: which it could have answered.
_LOOK_SECONDS = 0.05
_PATIENCE = 2.0

#: Where /proc/PID/stat has them, counted from the state on.
_STATE, _PARENT, _EXIT_CODE = 0, 1, 49

#: What `Child.wait` returns for a process whose exit code nobody can know any more.
LOST = 1000


class NurseryGone(Exception):
    """The nursery has died or does not answer: start workers by themselves."""


class Child(Protocol):
    """A worker process, however it was started."""

    pid: int
    returncode: int | None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, reap and return the exit code; raises `subprocess.TimeoutExpired`."""
        ...


class Nursery:
    """A process that has imported what workers need, and forks them."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], plan: Mapping[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), f"manyarms.workers.main nursery {plan['simulator']}"],
                pass_fds=(theirs.fileno(),),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise NurseryGone from error
        finally:
            theirs.close()
        self._socket: socket.socket | None = ours
        self._mark = Keeper.instance().mark(self._process.pid)  # it does nothing before it has the plan
        self._send(lambda sock: sock.sendall(wire.frame(dict(plan))), _PATIENCE)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, timeout: float) -> bool:
        """Wait until everything is imported; tell whether it may fork."""
        with contextlib.suppress(NurseryGone):
            return self._answer("prepared", timeout, timeout)["ready"]
        return False

    def bear(self, fds: Sequence[int], env: Mapping[str, str], name: str) -> ForkedChild:
        """Fork a worker that gets `fds`, of which the last is its log."""
        self._send(lambda sock: send_request(sock, {"env": dict(env), "name": name}, fds), _LOOK_SECONDS)
        return ForkedChild(self._answer("forked", math.inf, _PATIENCE)["pid"], self)

    def release(self, pid: int) -> None:
        """Have a worker reaped that has ended, and whose exit code is known."""
        with contextlib.suppress(NurseryGone):
            self._send(lambda sock: send_request(sock, {"reap": pid}), _LOOK_SECONDS)

    def _send(self, send: Callable[[socket.socket], None], timeout: float) -> None:
        """Send what fits into the socket's buffer; a nursery whose buffer stays full is given up."""
        if self._socket is None:
            raise NurseryGone
        self._socket.settimeout(timeout)
        try:
            send(self._socket)
        except OSError as error:
            raise self._given_up() from error

    def _answer(self, kind: str, seconds: float, idle_seconds: float) -> Any:
        """Return the next answer, of one kind; a nursery that is stopped, or idle for too long, is given up."""
        if self._socket is None:
            raise NurseryGone
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        deadline = time.monotonic() + seconds
        suspicion: Suspicion | None = None
        while not poller.poll(_LOOK_SECONDS * 1000):
            suspicion = suspicion or Suspicion(self.pid)
            stopped = process_letter(self.pid) in STOPPED
            if stopped or suspicion.idle_seconds() > idle_seconds or time.monotonic() > deadline:
                raise self._given_up()
        try:
            return check(wire.receive(self._socket, _PATIENCE), kind)  # what has begun to arrive comes whole
        except (OSError, ValueError) as error:
            raise self._given_up() from error

    def _given_up(self) -> NurseryGone:
        """Ask nothing more of it: half an answer would be taken for the next one.

        It stays, and does nothing: as long as it is there, the kernel keeps the exit codes of the workers it has borne.
        """
        self._hang_up()
        self._process.send_signal(signal.SIGSTOP)
        return NurseryGone()

    def fate(self) -> str:
        """Say how it went."""
        code = self._process.poll()
        if code is None:
            return "was gone"
        return f"had been killed by {signal_name(-code)}" if code < 0 else f"had ended with exit code {code}"

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """Have the process reap those of its workers that have ended, and end; the others live on."""
        if self._socket is not None and process_letter(self.pid) not in STOPPED:
            self._hang_up()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_PATIENCE)
        self._hang_up()
        end_all({self._mark})
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that the kernel cannot end (state D) is left to it
            self._process.wait(timeout=_PATIENCE)


class ForkedChild:
    """A worker that a nursery has forked."""

    def __init__(self, pid: int, nursery: Nursery) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, have it reaped, and return the exit code."""
        with contextlib.suppress(ProcessLookupError):  # its nursery died before it, and someone else has reaped it
            if not has_ended(self.pid, timeout):
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        self.returncode = self._exit_code()
        if self.returncode != LOST:
            self._nursery.release(self.pid)
        return self.returncode

    def _exit_code(self) -> int:
        """Read how it ended, which the kernel shows until its nursery reaps it: nobody need be asked, or wait."""
        fields = stat_fields(self.pid)
        if not fields or fields[_STATE] != "Z" or int(fields[_PARENT]) != self._nursery.pid:
            return LOST
        return os.waitstatus_to_exitcode(int(fields[_EXIT_CODE]))

    def why_lost(self) -> str:
        """Say why nobody can tell how it ended."""
        return f"the nursery that had forked it {self._nursery.fate()}: the kernel keeps exit codes for parents only"
