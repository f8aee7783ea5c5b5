"""How processes end: waited for without being reaped, and the signals that ended them by name."""

from __future__ import annotations

import os
import select
import signal


def has_ended(pid: int, timeout: float | None) -> bool:
    """Wait for the end of a child without reaping it: until then its number, and its group's, are its own."""
    pidfd = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(None if timeout is None else max(0.0, timeout) * 1000))
    finally:
        os.close(pidfd)


def signal_name(number: int) -> str:
    """Return what a signal is called; those for real time have a number only."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
