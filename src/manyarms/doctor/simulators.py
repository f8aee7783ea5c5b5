"""Every simulator that has a name: what it stands on, and a worker that is started and stepped."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from manyarms import plugins
from manyarms.doctor.examination import Answer, ask
from manyarms.errors import ManyarmsError, StartError, UnknownName, did_you_mean
from manyarms.simulators import registry
from manyarms.simulators.about import FAULT, About, Finding, absent, fault, ok
from manyarms.vector import make_vec
from manyarms.vector.xauthority import check_external
from manyarms.workers import main

_STEPS = 5

#: What is asked in the interpreter that workers run in; its last line is the answer.
_BEGIN = "import json, runpy, sys; runpy.run_path(sys.argv[1])['adopt_package'](); from manyarms import plugins; "
_PLUG_INS = _BEGIN + "print(json.dumps(sorted(plugins.plug_ins('simulators'))))"
_FINDINGS = (
    _BEGIN + "found = plugins.import_object(sys.argv[2])(sys.argv[3]); print(json.dumps([vars(f) for f in found]))"
)
_MISSING = (
    "import importlib.util, json, sys; "
    "print(json.dumps([name for name in sys.argv[2:] if importlib.util.find_spec(name) is None]))"
)


def _ask_there(python: str, code: str, seconds: float, *arguments: str) -> tuple[Answer, Any]:
    """Return how an interpreter answered, and what."""
    answer = ask([python, "-c", code, main.__file__, *arguments], seconds)
    return answer, json.loads(answer.said.splitlines()[-1]) if not answer.failure else []


def known(python: str | None, seconds: float) -> list[str]:
    """Return the names of all simulators: our own, and those of plug-ins where the workers run."""
    if python is None:
        return plugins.names("simulators")
    return sorted({*registry.BUILT_IN, *_ask_there(python, _PLUG_INS, seconds)[1]})


def check_names(named: Sequence[str], names: Sequence[str]) -> None:
    """Refuse simulators that nobody knows."""
    for simulator in named:
        name = registry.split_id(simulator)[0]
        if not plugins.is_import_string(name) and name not in names:
            raise UnknownName(f"there is no simulator named {name!r}", do=did_you_mean(name, names))


def needs_xvfb(simulator: str) -> bool:
    """Tell whether a simulator is tried on an X server of our own."""
    return registry.about(simulator).needs_display and _display() == "xvfb"


def _display() -> str:
    """Return where to draw: an Xvfb of the worker's own if there is one, else the display that is here."""
    return "external" if shutil.which("Xvfb") is None and os.environ.get("DISPLAY") else "xvfb"


def findings(simulator: str, python: str | None, named: bool, seconds: float) -> list[Finding]:
    """Check what a simulator stands on, then start a worker and step it; one that was named must be there."""
    about, interpreter = registry.about(simulator), python or sys.executable
    missing = _ask_there(interpreter, _MISSING, seconds / 4, *about.needs)[1] if about.needs else []
    install = about.install.format(python=interpreter)
    if missing and not any(map(os.environ.get, about.variables)):
        found = f"not installed ({', '.join(missing)} cannot be found by {interpreter})"
        return [fault(simulator, found, install) if named else absent(simulator, found, install)]
    parts = _parts(registry.split_id(simulator)[0], about, interpreter, seconds / 2)
    if any(part.status == FAULT for part in parts):
        return [*parts, fault(simulator, "not started, for what is wrong above", "mend that first")]
    return [*parts, try_out(simulator, about, python, named, seconds)]


def _parts(name: str, about: About, python: str, seconds: float) -> list[Finding]:
    """Check what a simulator stands on, in the interpreter of its workers."""
    found: list[Finding] = []
    if about.findings:
        answer, parts = _ask_there(python, _FINDINGS, seconds, about.findings, python)
        found += [Finding(**part) for part in parts]
        if answer.failure:
            found.append(fault("parts", f"{python}: {answer.failure}", about.install.format(python=python)))
    if about.needs_display:
        found.append(display())
    return [replace(part, name=f"{name}: {part.name}") for part in found]


def display() -> Finding:
    """Look for something to draw on: an Xvfb of each worker's own, or the display that is there."""
    if shutil.which("Xvfb") is not None:
        return ok("display", "each worker gets an Xvfb of its own (display='xvfb')")
    fix = "apt-get install xvfb"
    shown = os.environ.get("DISPLAY", "")
    if not shown:
        return fault("display", "DISPLAY is not set, and Xvfb is not installed", fix)
    try:
        check_external(shown)
    except ManyarmsError as error:
        return fault("display", error.what, fix)
    return ok("display", f"{shown}, which is there (display='external')")


def try_out(simulator: str, about: About, python: str | None, named: bool, seconds: float) -> Finding:
    """Start a worker, reset and step it, and look at its pictures."""
    name, task = registry.split_id(simulator)
    full = simulator if task or plugins.is_import_string(name) else f"{name}/{about.task}"
    # Before the check as a whole is late, so that the error's own words are heard.
    limits = {"start_timeout": 0.6 * seconds, "reset_timeout": 0.3 * seconds, "step_timeout": 0.3 * seconds}
    settings: dict[str, Any] = {**limits, "on_failure": "raise", "action_bounds": "clip", **about.options}
    if about.needs_display:
        settings["display"] = _display()
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
        return _failed(simulator, full, error, named, about.install.format(python=python or sys.executable))
    note = f"every pixel of {', '.join(blank)} is the same"
    if blank and full != simulator:  # of what we have chosen ourselves we know that there is something to see
        return fault(simulator, f"{full}: {note}", "see the lines of EGL and Xvfb")
    pictures = f", {len(seen)} cameras" if len(seen) > 1 else ", 1 camera" if seen else ""
    return ok(
        simulator, f"{full}: up in {started:.1f} s, {_STEPS} steps{pictures}" + (f", but {note}" if blank else "")
    )


def _failed(simulator: str, full: str, error: ManyarmsError, named: bool, install: str) -> Finding:
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
