"""Signals while training: Ctrl-C and SIGTERM end it with a checkpoint, SIGUSR1 asks for one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """Someone wants training to end, at a moment when it can at once. No error: nothing may swallow it."""


class Interrupts:
    """Notes what signals ask for. A second Ctrl-C ends the process as it would without us."""

    def __init__(self, *, at_once: bool = True) -> None:
        """Where `at_once` is False, nothing is cut short: several ranks have to agree first."""
        self.stop: str | None = None
        """The signal that asked for the end."""
        self.save = False
        """Whether a checkpoint is asked for."""
        self._at_once = at_once
        self._can_stop = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number, handler in (
                (signal.SIGINT, self._end),
                (signal.SIGTERM, self._end),
                (signal.SIGUSR1, self._checkpoint),
            ):
                self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def may_stop(self) -> Iterator[None]:
        """Inside, nothing is lost when training ends at once."""
        if self.stop and self._at_once:
            raise Stopped
        self._can_stop = self._at_once
        try:
            yield
        finally:
            self._can_stop = False

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self.stop is not None:
            raise KeyboardInterrupt
        self.stop = signal.Signals(number).name
        if self._can_stop:
            self._can_stop = False
            raise Stopped

    def _checkpoint(self, number: int, frame: FrameType | None) -> None:
        self.save = True
