"""The main side of `workers/nursery.py`: processes that fork workers, one for each interpreter and environment."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from manyarms.vector.endings import has_ended
from manyarms.vector.keeper import Keeper
from manyarms.workers import wire
from manyarms.workers.messages import check
from manyarms.workers.nursery import send_request

#: Forking and reaping take milliseconds; a nursery that takes this long has been stopped, or is out of memory.
_PATIENCE = 20.0

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
        Keeper.instance().add_group(self._process.pid)
        self._talk(lambda sock: sock.sendall(wire.frame(dict(plan))), _PATIENCE)

    def wait_until_ready(self, timeout: float) -> bool:
        """Wait until everything is imported; tell whether it may fork."""
        with contextlib.suppress(NurseryGone):
            return self._talk(lambda sock: check(wire.receive(sock, timeout), "prepared"), timeout)["ready"]
        return False

    def bear(self, fds: Sequence[int], env: Mapping[str, str], name: str) -> ForkedChild:
        """Fork a worker that gets `fds`, of which the last is its log."""
        request = {"env": dict(env), "name": name}
        return ForkedChild(self._talk(lambda sock: send_request(sock, request, fds), _PATIENCE)["pid"], self)

    def reap(self, pid: int) -> int | None:
        """Return how a worker ended; None when it has not."""
        return self._talk(lambda sock: send_request(sock, {"reap": pid}), _PATIENCE)["code"]

    def _talk(self, exchange: Any, timeout: float) -> Any:
        if self._socket is None:
            raise NurseryGone
        try:
            self._socket.settimeout(timeout)
            return exchange(self._socket)
        except (OSError, ValueError) as error:
            self.close()  # half an answer would be taken for the next one
            raise NurseryGone from error

    def close(self) -> None:
        """End the process; workers it has borne live on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            Keeper.instance().remove_group(self._process.pid)


class ForkedChild:
    """A worker that a nursery has forked."""

    def __init__(self, pid: int, nursery: Nursery) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, have the nursery reap it, and return the exit code."""
        try:
            if not has_ended(self.pid, timeout):
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            code = self._nursery.reap(self.pid)
        except (ProcessLookupError, NurseryGone):
            code = None  # its nursery died before it, and someone else has reaped it
        self.returncode = LOST if code is None else code
        return self.returncode
