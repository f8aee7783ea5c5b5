"""A stand-in for OmniGibson: its keys, shapes, signatures and defects; goals are decided by bddl itself.

OMNIGIBSON_STANDIN_VERSION says which release it stands for (3.7.2), OMNIGIBSON_STANDIN_FORK whether single scenes can
be reset and observations be skipped, OMNIGIBSON_STANDIN_FAULTS what goes wrong (see kit.py), OMNIGIBSON_STANDIN_LOG
where it writes down what it was asked to do.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from .macros import gm

__version__ = os.environ.get("OMNIGIBSON_STANDIN_VERSION", "3.7.2")

app: Any = None
sim: Any = None

from .envs import Environment, VectorEnvironment  # noqa: E402 (as OmniGibson, it needs the names above)
from .kit import launch, relaunch  # noqa: E402


def clear():
    """Make a new stage."""
    relaunch()


def shutdown(due_to_signal=False):
    if app is not None:
        app.close()
    elif not due_to_signal:
        raise SystemExit(0)


def shutdown_handler(*args, **kwargs):
    shutdown(due_to_signal=True)
    return signal.default_int_handler(*args, **kwargs)


signal.signal(signal.SIGINT, shutdown_handler)

__all__ = ["Environment", "VectorEnvironment", "app", "clear", "gm", "launch", "shutdown", "sim"]
