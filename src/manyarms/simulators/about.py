"""What is known of a simulator before it is imported, and what the doctor finds on a machine.

Standard library only, Python 3.8 and later: this is read where nothing of the simulator is installed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple

OK, FAULT, ABSENT = "ok", "fault", "absent"

MARKS = {OK: "✓", FAULT: "✗", ABSENT: "–"}


@dataclass(frozen=True)
class About:
    """The facts of one simulator: its module begins with ``about = About(…)`` and imports nothing heavy.

    Built-in simulators are found by the name of that module, plug-ins by an entry point that names theirs.
    """

    what: str = ""
    """What it is, in a line."""
    factory: str = ""
    """The import string of its class."""
    needs: Tuple[str, ...] = ()
    """The modules without which it is not installed."""
    install: str = ""
    """The command that installs it; ``{python}`` stands for the interpreter of its workers."""
    variables: Tuple[str, ...] = ()
    """Environment variables that are set to install it: with one of them, it is checked though modules are missing."""
    findings: str = ""
    """The import string of a function that checks what it stands on: ``findings(python) -> List[Finding]``.

    It is called in the interpreter of its workers, which the user calls `python`.
    """
    task: str = ""
    """The task that the doctor tries, where nobody names one."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of `make_vec` with which the doctor tries it."""
    evaluation_options: Mapping[str, Any] = field(default_factory=dict)
    """Its options while a policy is evaluated."""
    start_timeout: Optional[float] = None
    """Seconds in which a worker must have started; None: as for all."""
    worker_bytes: Optional[int] = None
    """What a worker may come to hold; forked ones share much of it."""
    needs_display: bool = False
    """Whether its cameras draw on an X display. Whether they can do without has to be tried: it depends on its Qt."""
    renders_from_gpu_0: bool = False
    """Whether it may hang on GPUs that do not begin with the first."""


class MissingPart(ImportError):
    """Something that a simulator stands on is not there; the message says what, and how to come by it."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    status: str
    """"ok", "fault", or "absent": optional, and not there."""
    found: str
    fix: str = ""
    """The command that mends it, or that brings what is absent."""

    @property
    def mark(self) -> str:
        return MARKS[self.status]


def ok(name: str, found: str) -> Finding:
    return Finding(name, OK, found)


def fault(name: str, found: str, fix: str) -> Finding:
    return Finding(name, FAULT, found, fix)


def absent(name: str, found: str, fix: str = "") -> Finding:
    return Finding(name, ABSENT, found, fix)
