"""Waits for processes that are to end: what is killed is gone when the kernel has got round to it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable

import psutil


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and that nobody has reaped yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually(true: Callable[[], object], seconds: float = 300.0) -> bool:
    """Wait until something is so, on a busy machine too; tell whether it is."""
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(true())


def wait_until_gone(pids: Iterable[int]) -> None:
    """Wait until processes have ended; those that do not are killed, and fail the test."""
    pids = list(pids)
    eventually(lambda: not any(map(alive, pids)))
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == [], "these did not end"
