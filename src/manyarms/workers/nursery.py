"""A process that has imported what workers need, and forks them: they start in milliseconds and share its memory.

It runs in the simulator's interpreter, holds no simulator, display or thread, and ends when the main side lets go of
its socket. A worker that has ended stays its child until the main side has read how, from /proc, and says so.
"""

from __future__ import annotations

import array
import gc
import importlib
import os
import random
import signal
import socket
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import serve, wire
from .messages import check

#: What every worker imports sooner or later.
_MODULES = ("numpy", "manyarms.workers.arena", "manyarms.workers.lockstep", "manyarms.workers.rows")


def nurse(socket_fd: int) -> Optional[List[int]]:
    """Fork workers until the main side has gone; in a worker, return its file descriptors."""
    serve.serving = True  # what is imported from here on must not start workers of its own
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=socket_fd)
    os.set_inheritable(socket_fd, False)
    try:
        sock.sendall(wire.frame(prepare(check(wire.receive(sock), "build"))))
        while True:
            request, fds = receive_request(sock)
            if "reap" in check(request, "reap" if "reap" in request else "fork"):
                os.waitpid(request["reap"], os.WNOHANG)
                continue
            pid = os.fork()
            if pid == 0:
                sock.close()
                become_worker(request, fds.pop())
                return fds
            for fd in fds:
                os.close(fd)
            sock.sendall(wire.frame({"pid": pid}))
    except (ConnectionError, wire.Unreadable):
        os._exit(0)  # at once: the main side waits for it


def prepare(plan: Dict[str, Any]) -> Dict[str, Any]:
    """Import what the simulator needs; say whether it is safe to fork after that."""
    serve.extend_path(plan["search_path"])
    try:
        for name in _MODULES:
            importlib.import_module(name)
        from ..simulators.registry import preload

        preload(plan["simulator"], plan["options"])
    except (Exception, SystemExit):
        return {"ready": False}  # a worker that is started by itself meets the same, and tells it
    gc.collect()
    gc.freeze()  # a collection in a worker would copy every page it walks over
    return {"ready": len(os.listdir("/proc/self/task")) == 1}


def receive_request(sock: socket.socket) -> Tuple[Dict[str, Any], List[int]]:
    """Read a request and the file descriptors that come with it."""
    numbers = array.array("i")
    head, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(8 * numbers.itemsize))
    if not head:
        raise wire.Disconnected("the main side has gone")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return wire.receive(sock), list(numbers)


def become_worker(request: Dict[str, Any], log_fd: int) -> None:
    """Give a forked process what a process of its own would have: a group, an environment, a log, random numbers."""
    os.setsid()
    for fd in (1, 2):
        os.dup2(log_fd, fd)
    os.close(log_fd)
    os.environ.update(request["env"])
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # workers that draw from the global generator must not all draw the same
    try:
        with open("/proc/self/comm", "w") as comm:  # what `top` shows
            comm.write(request["name"])
    except OSError:
        return


def send_request(sock: socket.socket, request: Dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Ask, from the main side."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([b"?"], rights)
    sock.sendall(wire.frame(request))
