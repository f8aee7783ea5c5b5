"""Every simulator that has a name, tried by starting a worker and stepping it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from manyarms import plugins
from manyarms.doctor.processes import ask
from manyarms.doctor.stacks import Stack, Where, stack_of
from manyarms.errors import ManyarmsError, StartError, UnknownName, did_you_mean
from manyarms.simulators import registry
from manyarms.simulators.about import FAULT, Row, absent, fault, ok
from manyarms.vector import make_vec
from manyarms.workers import main

_STEPS = 5

_LIST_PLUG_INS = (
    "import json, runpy, sys; runpy.run_path(sys.argv[1])['adopt_package'](); "
    "from manyarms.plugins import plug_ins; print(json.dumps(sorted(plug_ins('simulators'))))"
)
_LIST_MISSING = (
    "import importlib.util, json, sys; "
    "print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))"
)


def known(python: str | None, seconds: float) -> list[str]:
    """Return the names of all simulators: our own, and those of plug-ins where the workers run."""
    if python is None:
        return plugins.names("simulators")
    answer = ask([python, "-c", _LIST_PLUG_INS, main.__file__], seconds)
    return sorted({*registry.BUILT_IN, *(json.loads(answer.said) if not answer.failure else [])})


def check_names(named: Sequence[str], names: Sequence[str]) -> None:
    """Refuse simulators that nobody knows."""
    for simulator in named:
        name = registry.split_id(simulator)[0]
        if not plugins.is_import_string(name) and name not in names:
            raise UnknownName(f"there is no simulator named {name!r}", do=did_you_mean(name, names))


def needs_xvfb(simulator: str) -> bool:
    """Tell whether a simulator is tried on an X server of our own."""
    return stack_of(registry.split_id(simulator)[0]).trial().options.get("display") == "xvfb"


def rows(simulator: str, python: str | None, named: bool, seconds: float) -> list[Row]:
    """Check what a simulator stands on, then start a worker and step it; one that was named must be there."""
    stack = stack_of(registry.split_id(simulator)[0])
    where = Where(python or sys.executable, seconds / 4)
    missing = _missing(stack, where)
    if missing and not stack.is_wanted():
        how = stack.install.format(python=where.python)
        found = f"not installed ({', '.join(missing)} cannot be found by {where.python})"
        return [fault(simulator, found, how) if named else absent(simulator, found, how)]
    parts = stack.parts(where)
    if any(part.status == FAULT for part in parts):
        return [*parts, fault(simulator, "not started, for what is wrong above", "mend that first")]
    return [*parts, try_out(simulator, stack, python, named, seconds)]


def _missing(stack: Stack, where: Where) -> list[str]:
    """Return the modules that a simulator lacks, without importing any."""
    if not stack.needs:
        return []
    answer = ask([where.python, "-c", _LIST_MISSING, *stack.needs], where.seconds)
    return json.loads(answer.said) if not answer.failure else []


def try_out(simulator: str, stack: Stack, python: str | None, named: bool, seconds: float) -> Row:
    """Start a worker, reset and step it, and look at its pictures."""
    trial = stack.trial()
    name, task = registry.split_id(simulator)
    full = simulator if task or plugins.is_import_string(name) else f"{name}/{trial.task}"
    # Before the check as a whole is late, so that the error's own words are heard.
    limits = {"start_timeout": 0.6 * seconds, "reset_timeout": 0.3 * seconds, "step_timeout": 0.3 * seconds}
    settings: dict[str, Any] = {**limits, "on_failure": "raise", "action_bounds": "clip", **trial.options}
    began = time.monotonic()
    try:
        with make_vec(full, 1, python=python, **settings) as envs:
            observations, _ = envs.reset(seed=0)
            started = time.monotonic() - began
            envs.action_space.seed(0)
            for _ in range(_STEPS):
                observations, *_ = envs.step(envs.action_space.sample())
            blank, seen = _look_at(observations)
    except ManyarmsError as error:
        return _failed(simulator, full, error, named, stack.install.format(python=python or sys.executable))
    note = f"every pixel of {', '.join(blank)} is the same"
    if blank and full != simulator:  # of what we have chosen ourselves we know that there is something to see
        return fault(simulator, f"{full}: {note}", "see the rows of EGL and Xvfb")
    pictures = f", {len(seen)} cameras" if len(seen) > 1 else ", 1 camera" if seen else ""
    return ok(
        simulator, f"{full}: up in {started:.1f} s, {_STEPS} steps{pictures}" + (f", but {note}" if blank else "")
    )


def _failed(simulator: str, full: str, error: ManyarmsError, named: bool, install: str) -> Row:
    """Tell a failure; one for want of a module or of a task says nothing against a simulator that nobody named."""
    is_traceback = 'File "' in error.why
    found = "; ".join([error.what] if is_traceback else [error.what, *error.why.strip().splitlines()[-1:]])
    if isinstance(error, UnknownName) and full == f"{simulator}/":
        return absent(
            simulator, f"not tried, for it needs the name of a task: {found}", f"manyarms doctor {full}<task>"
        )
    start = error if isinstance(error, StartError) else None
    if start and start.missing_module and not named:
        return absent(simulator, found, error.do)
    more = install if start and start.missing_part else f"manyarms check {full}   # tells more"
    return fault(simulator, found, error.do or more)


def _look_at(observations: Any) -> tuple[list[str], list[str]]:
    """Return the pictures that show nothing, and all pictures."""
    fields = observations if isinstance(observations, dict) else {"the observation": observations}
    pictures = {
        key: value
        for key, value in fields.items()
        if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 4
    }
    return [key for key, value in pictures.items() if value.max() == value.min()], list(pictures)
