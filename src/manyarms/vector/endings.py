"""How processes end: waited for without being reaped, the signals that ended them by name, and Ctrl-C held back."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from types import FrameType

from manyarms.vector.keeper import end_all

_SECONDS_TO_GO = 5.0


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back for a moment: a process that has started but is not yet known would be left behind."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # interrupts are raised in the main thread, by a handler in Python
        return
    held: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[0])


def has_ended(pid: int, timeout: float | None) -> bool:
    """Wait for the end of a child without reaping it: until then its number, and its group's, are its own."""
    pidfd = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(None if timeout is None else max(0.0, timeout) * 1000))
    finally:
        os.close(pidfd)


def reap(process: subprocess.Popen[bytes], mark: int) -> int:
    """End a process that was marked and all it has started, wait for their ends, and return its exit code."""
    end_all({mark}, _SECONDS_TO_GO)
    with contextlib.suppress(subprocess.TimeoutExpired):  # one that the kernel cannot end (state D) is left to it
        process.wait(timeout=_SECONDS_TO_GO)
    return process.returncode or 0


def signal_name(number: int) -> str:
    """Return what a signal is called; those for real time have a number only."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
