"""Ends what we have started, whichever way we go: every process that bears a mark of ours; and removes files.

A simulator starts helpers that lead sessions of their own and whose parents end at once: no process group holds them,
and nobody alive is their ancestor. So every process that we start gets a mark, which all that comes from it inherits: a
number in the place of its soft limit on file locks (RLIMIT_LOCKS), which Linux has ignored since 2.4.25. Neither a new
session nor a new program nor a cleared environment changes it, anyone of the same user may read it, and each worker has
its own: a worker's offspring is ended while its neighbours' goes on. What the user's own process starts has none.

Other ways fall short. Variables cannot be seen in what a forked worker forks, and programs write over them. Who adopts
orphans (PR_SET_CHILD_SUBREAPER) has to reap them, and once it has died itself, nobody knows whose they were. Control
groups can seldom be written.

The keeper is a process of its own. When the main process ends, be it by ``kill -9``, it ends all that bears a mark of
that process, removes the paths it was told of and ends. It watches the main process itself (a pidfd), not a pipe to it:
a pipe may be held open by a child that the user's code forked.

Run as a file with ``python -S``: standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Container

#: RLIMIT_LOCKS, which Python has no name for.
_LOCKS = 10

#: A mark is a main process, 19 bits that tell it from another of the same number, and a count of what it has started.
_SERIAL_BITS = 22
_MAIN_SHIFT = _SERIAL_BITS + 19

#: How long the keeper waits for processes that are killed, and how often anyone who waits for them looks.
_SECONDS_TO_GO = 5.0
_LOOK_SECONDS = 0.005

#: Inode and time of change: a file that takes the place of another is not it.
FileIdentity = tuple[int, int]


def file_identity(path: str) -> FileIdentity:
    status = os.lstat(path)
    return status.st_ino, status.st_mtime_ns


def mark_of(pid: int) -> int:
    """Return the mark of a process; 0 where it has none, is gone or is someone else's."""
    try:
        found = resource.prlimit(pid, _LOCKS)[0]
    except (ProcessLookupError, PermissionError):
        return 0
    return found if found > 0 and main_of(found) else 0


def main_of(mark: int) -> int:
    """Return the main process that has given a mark."""
    return mark >> _MAIN_SHIFT


def marks_of_run(mark: int) -> range:
    """Return all marks of the main process that has given this one."""
    first = mark >> _SERIAL_BITS << _SERIAL_BITS
    return range(first, first + (1 << _SERIAL_BITS))


def end_all(marks: Container[int], patience: float = 0.0) -> None:
    """Kill every process that bears one of the marks, and wait that long for their ends.

    Looks until it finds none that it has not killed: who is killed starts nothing more.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + patience
    while True:
        found = {int(name) for name in os.listdir("/proc") if name.isdecimal() and _kill(int(name), marks)}
        if not found or (found <= killed and time.monotonic() >= deadline):
            return
        if found <= killed:
            time.sleep(_LOOK_SECONDS)
        killed |= found


def _kill(pid: int, marks: Container[int]) -> bool:
    """Kill a process if it bears one of the marks; False if it does not, or has ended."""
    if not _bears(pid, marks):
        return False
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        if not _bears(pid, marks) or poller.poll(0):  # the number has become another's, or is a zombie's
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def _bears(pid: int, marks: Container[int]) -> bool:
    mark = mark_of(pid)
    return mark > 0 and mark in marks


def _refusal() -> Exception:
    from manyarms.errors import ConfigError  # the keeper itself does without

    return ConfigError(
        "the hard limit on file locks (RLIMIT_LOCKS) is set",
        why="Linux ignores it; manyarms numbers the processes it starts with it, so that none is left behind",
        do="start without it: remove 'locks' from /etc/security/limits.conf, or LimitLOCKS= from the service",
    )


def _limit(pid: int, value: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        resource.prlimit(pid, _LOCKS, (value, resource.RLIM_INFINITY))


class Keeper:
    """The main side: tells the keeper process what there is to clean up. One for the whole process."""

    _instance: Keeper | None = None
    _lock = threading.Lock()

    def __init__(self, last_mark: int = 0) -> None:
        if resource.getrlimit(_LOCKS)[1] != resource.RLIM_INFINITY:
            raise _refusal()
        fresh = os.getpid() << _MAIN_SHIFT | secrets.randbits(_MAIN_SHIFT - _SERIAL_BITS) << _SERIAL_BITS
        self._last_mark = last_mark or fresh
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._owner = os.getpid()
        self._socket = ours
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", __file__, str(self._last_mark), str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # no signal of the terminal's is for it
        )
        theirs.close()
        _limit(self._process.pid, resource.RLIM_INFINITY)  # else whoever ends us by a mark would end it before its work
        atexit.register(self.dismiss)

    @classmethod
    def instance(cls) -> Keeper:
        """Return this process's keeper, started when first asked for; a forked child gets one of its own."""
        with cls._lock:
            keeper = cls._instance
            if keeper is None or keeper._owner != os.getpid():
                keeper = cls()
            elif keeper._process.poll() is not None:
                keeper = cls(keeper._last_mark)
            cls._instance = keeper
            return keeper

    def mark(self, pid: int) -> int:
        """Mark a process of ours that has started none yet, and so all that will come from it; return the mark."""
        with self._lock:
            self._last_mark += 1
            mark = self._last_mark
        _limit(pid, mark)
        return mark

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


def keep(mark: int, sock: socket.socket) -> None:
    """Keep the list until the main process is gone or has closed its end, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    main_pid = main_of(mark)
    held: dict[str, dict[str, None]] = {"path": {}, "file": {}}
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
    end_all(marks_of_run(mark), _SECONDS_TO_GO)
    clean_up(held)


def take_note(held: dict[str, dict[str, None]], message: bytes) -> None:
    """Add to the list, or take from it."""
    order, _, value = message.decode().partition(" ")
    if order.startswith("+"):
        held[order[1:]][value] = None
    elif order:
        held[order[1:]].pop(value, None)


def clean_up(held: dict[str, dict[str, None]]) -> None:
    """Remove every path, and every file that is still the same."""
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
