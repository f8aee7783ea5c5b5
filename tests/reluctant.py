"""A simulator whose module keeps its process from forking for as long as a file is there."""

from __future__ import annotations

import os
import time

from standins import Sleeper

__all__ = ["Sleeper"]


def _wait() -> None:
    while os.path.exists(os.environ.get("RELUCTANT", "")):
        time.sleep(0.05)


os.register_at_fork(before=_wait)
