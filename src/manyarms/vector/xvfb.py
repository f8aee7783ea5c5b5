"""X servers without a screen: started on a number they find by themselves, and ended with nothing left behind."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from manyarms.errors import StartError
from manyarms.vector.endings import has_ended
from manyarms.vector.keeper import FileIdentity, Keeper, end_all, file_identity
from manyarms.vector.xauthority import PATIENCE, SOCKETS, authority_entry, knock

_LOCKS = "/tmp/.X{}-lock"

#: Has the kernel send a program SIGTERM when the thread that started it ends (PR_SET_PDEATHSIG), then becomes it.
_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"


class Parent:
    """A thread to start servers in: they end with it, so it must not be one that the user may end."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="manyarms-displays", daemon=True)
        self._thread.start()

    def start(self, kind: Callable[..., Xvfb], *arguments: Any) -> Xvfb:
        """Return what `kind` makes of the arguments, in this thread."""
        future: Future[Xvfb] = Future()

        def make() -> None:
            try:
                future.set_result(kind(*arguments))
            except Exception as error:  # noqa: BLE001 (it is raised again where it was asked for)
                future.set_exception(error)

        self._orders.put(make)
        return future.result()

    def close(self) -> None:
        """End the thread."""
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        while order := self._orders.get():
            order()


class Xvfb:
    """An X server without a screen, on a display number it finds by itself; it ends with the thread that made it."""

    def __init__(self, folder: Path, screen: str) -> None:
        program = shutil.which("Xvfb")
        if program is None:
            raise StartError(
                "displays need Xvfb, which is not installed", do="apt-get install xvfb, or use display='external'"
            )
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        self.number = -1
        self._log = folder / "log"
        self._authority = folder / "authority"
        self._cookie = secrets.token_bytes(16)
        self._authority.write_bytes(authority_entry(self._cookie))
        self._left_behind: dict[str, FileIdentity] = {}
        """The files that it would leave behind if it was killed, and which files they are."""
        # The keeper would kill it without knowing its files, so it is marked when it is up. Until then it ends by
        # itself, with nothing left, when its parent is gone or nobody can read its number any more.
        self._marks: set[int] = set()
        self.number_fd, theirs = os.pipe()
        self._told = b""
        command = [sys.executable, "-S", "-E", "-c", _WITH_PARENT, program, "-displayfd", str(theirs)]
        command += ["-screen", "0", screen, "+extension", "GLX", "-nolisten", "tcp"]
        command += ["-auth", str(self._authority), "-noreset"]  # clients that come while it resets are turned away
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    command,
                    pass_fds=(theirs,),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            self._stop_listening()
            raise StartError(f"{program} could not be started: {error.strerror}") from error
        finally:
            os.close(theirs)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def variables(self) -> dict[str, str]:
        """What a client must have in its environment."""
        return {"DISPLAY": f":{self.number}", "XAUTHORITY": str(self._authority)}

    def read_number(self) -> bool:
        """Read what it tells of its number; True when it is up, for then it tells."""
        more = os.read(self.number_fd, 64)
        if not more:
            raise StartError("Xvfb ended when it was started", why=self.said())
        self._told += more
        if not self._told.endswith(b"\n"):
            return False
        self.number = int(self._told)
        keeper = Keeper.instance()
        for path in (f"{SOCKETS}{self.number}", _LOCKS.format(self.number)):
            with contextlib.suppress(OSError):
                self._left_behind[path] = file_identity(path)
                keeper.add_file(path, self._left_behind[path])
        self._marks = {keeper.mark(self.pid)}  # after its files: whoever is killed must leave none behind
        self._stop_listening()
        return True

    def problem(self) -> str:
        """Say why it does not answer; nothing if it does."""
        return knock(f":{self.number}", [self._cookie], PATIENCE)

    def ask_to_end(self) -> None:
        """Have it end by itself, which removes its files."""
        if self._process.returncode is None:
            self._process.terminate()

    def end(self, deadline: float) -> None:
        """Wait for the end, kill it and what it has started, and remove what it left behind."""
        if self._process.returncode is None:
            has_ended(self.pid, deadline - time.monotonic())
            self._process.kill()
            end_all(self._marks)
            self._process.wait()
            self._stop_listening()
        for path, which in self._left_behind.items():
            with contextlib.suppress(OSError):
                if file_identity(path) == which:  # else another server has taken the number since
                    os.unlink(path)
            Keeper.instance().remove_file(path, which)
        self._left_behind.clear()

    def _stop_listening(self) -> None:
        if self.number_fd >= 0:
            os.close(self.number_fd)
            self.number_fd = -1

    def said(self) -> str:
        """Return what it printed, in a line."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "; ".join(line.strip() for line in lines if line.replace("(EE)", "").strip())[-500:]


def wait_until_up(servers: Sequence[Xvfb], deadline: float) -> None:
    """Wait until all servers are ready for clients, taking note of each at once."""
    missing = {server.number_fd: server for server in servers}
    poller = select.poll()
    for fd in missing:
        poller.register(fd, select.POLLIN)
    while missing:
        ready = poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            said = next(iter(missing.values())).said()
            raise StartError(
                f"{len(missing)} of {len(servers)} Xvfb did not start in time",
                why=said,
                do="start fewer workers at once",
            )
        for fd, _ in ready:
            if missing[fd].read_number():
                del missing[fd]
                poller.unregister(fd)
