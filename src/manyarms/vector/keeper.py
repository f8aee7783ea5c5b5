"""Cleans up after the main process, whichever way it goes.

A process of its own that holds a list of process groups and paths. When the main process ends, be it by ``kill -9``,
it kills the groups, removes the paths and ends. It watches the main process itself (a pidfd), not a pipe to it: a pipe
may be held open by a child that the user's code forked.

Run as a file with ``python -S``: standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading

#: Inode and time of change: a file that takes the place of another is not it.
FileIdentity = tuple[int, int]


def file_identity(path: str) -> FileIdentity:
    status = os.lstat(path)
    return status.st_ino, status.st_mtime_ns


class Keeper:
    """The main side: tells the keeper process what there is to clean up. One for the whole process."""

    _instance: Keeper | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._owner = os.getpid()
        self._socket = ours
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", __file__, str(os.getpid()), str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # no signal of the terminal's is for it
        )
        theirs.close()
        atexit.register(self.dismiss)

    @classmethod
    def instance(cls) -> Keeper:
        """Return this process's keeper, started when first asked for; a forked child gets one of its own."""
        with cls._lock:
            if (
                cls._instance is None
                or cls._instance._owner != os.getpid()
                or cls._instance._process.poll() is not None
            ):
                cls._instance = cls()
            return cls._instance

    def add_group(self, group: int) -> None:
        """Have a process group killed when we are gone."""
        self._tell(f"+group {group}")

    def remove_group(self, group: int) -> None:
        self._tell(f"-group {group}")

    def add_path(self, path: str) -> None:
        """Have a file or directory removed when we are gone."""
        self._tell(f"+path {path}")

    def remove_path(self, path: str) -> None:
        self._tell(f"-path {path}")

    def add_file(self, path: str, which: FileIdentity) -> None:
        """Have a file removed when we are gone, unless another has taken its place."""
        self._tell(f"+file {which[0]} {which[1]} {path}")

    def remove_file(self, path: str, which: FileIdentity) -> None:
        self._tell(f"-file {which[0]} {which[1]} {path}")

    def _tell(self, line: str) -> None:
        # A keeper that was killed is not worth failing for: workers still end with our end of their pipes.
        with contextlib.suppress(OSError):
            self._socket.send(line.encode())

    def dismiss(self) -> None:
        """End the keeper; what it still holds is cleaned up now."""
        if self._owner != os.getpid():
            return
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)


def keep(main_pid: int, sock: socket.socket) -> None:
    """Keep the list until the main process is gone or has closed its end, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    held: dict[str, dict[str, None]] = {"group": {}, "path": {}, "file": {}}
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    with contextlib.suppress(ProcessLookupError):  # gone already: then it is no longer our parent
        poller.register(os.pidfd_open(main_pid), select.POLLIN)
    gone = os.getppid() != main_pid
    while not gone:
        for fd, _ in poller.poll():
            if fd != sock.fileno():
                gone = True
                continue
            message = sock.recv(65536)
            take_note(held, message)
            gone = gone or not message
    # What it had said before it went is still on its way, all the more if it went while we were starting.
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        while message := sock.recv(65536):
            take_note(held, message)
    clean_up(held)


def take_note(held: dict[str, dict[str, None]], message: bytes) -> None:
    """Add to the list, or take from it."""
    order, _, value = message.decode().partition(" ")
    if order.startswith("+"):
        held[order[1:]][value] = None
    elif order:
        held[order[1:]].pop(value, None)


def clean_up(held: dict[str, dict[str, None]]) -> None:
    """Kill every group, and remove every path and every file that is still the same."""
    for group in held["group"]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(int(group), signal.SIGKILL)
    for path in held["path"]:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(path)
    for line in held["file"]:
        inode, changed, path = line.split(" ", 2)
        with contextlib.suppress(OSError):
            if file_identity(path) == (int(inode), int(changed)):
                os.unlink(path)


if __name__ == "__main__":
    keep(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
