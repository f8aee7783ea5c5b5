"""What a simulator stands on, checked in a module of its own that bears the simulator's name.

Such a module may have ``NEEDS`` (modules that make it installed), ``INSTALL`` (how to come by them), ``is_wanted()``
(whether the user means to have it although some are missing), ``parts(where)`` (rows of its own, before it is tried)
and ``trial()`` (with what it is tried). A simulator without one is tried by its bare name.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyarms.simulators.about import Row


@dataclass(frozen=True)
class Where:
    """Where a simulator is looked for."""

    python: str
    """The interpreter of its workers."""
    seconds: float
    """How long a question may take."""


@dataclass(frozen=True)
class Trial:
    """How a simulator is tried when nobody says with what."""

    task: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `make_vec`."""


@dataclass(frozen=True)
class Stack:
    """What is known of a simulator."""

    needs: Sequence[str] = ()
    install: str = ""
    is_wanted: Callable[[], bool] = lambda: False
    parts: Callable[[Where], list[Row]] = lambda _: []
    trial: Callable[[], Trial] = Trial


def stack_of(simulator: str) -> Stack:
    """Return what is known of a simulator."""
    if not simulator.isidentifier() or importlib.util.find_spec(f"{__name__}.{simulator}") is None:
        return Stack()
    module = importlib.import_module(f"{__name__}.{simulator}")
    names = ("NEEDS", "INSTALL", "is_wanted", "parts", "trial")
    return Stack(**{name.lower(): getattr(module, name) for name in names if hasattr(module, name)})
