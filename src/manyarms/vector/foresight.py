"""What would keep a simulator from starting, told before anything is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from manyarms import plugins, workers
from manyarms.errors import UnknownName, did_you_mean
from manyarms.simulators import registry
from manyarms.simulators.base import UnknownTask
from manyarms.vector.config import SimulatorConfig, VectorConfig
from manyarms.vector.process import common_environment
from manyarms.vector.supervisor import what_to_build
from manyarms.workers import wire

_FORESEE = Path(workers.__file__).parent / "foresee.py"
_SECONDS = 60.0


def foresee(simulator: SimulatorConfig) -> list[str]:
    """Return what a simulator lacks on this machine, in words; raise for one, or for a task, that there is not.

    One that lives in another interpreter is asked there; of those without a name of their own nothing is known.
    """
    name = registry.split_id(simulator.id)[0]
    if plugins.is_import_string(name):
        return []
    try:
        factory = registry.resolve(simulator.id)[0]
    except plugins.UnknownPlugin as error:
        if simulator.python is not None:
            return []  # it may be a plug-in of that interpreter
        raise UnknownName(
            f"there is no simulator named {name!r}",
            why=did_you_mean(name, error.known),
            do="`manyarms list simulators` shows those that are here",
        ) from None
    except ImportError as error:
        return [] if simulator.python is not None else [f"{name} cannot be imported: {error}"]
    if getattr(factory, "foresee", None) is None:
        return []
    found = _asked_here(simulator) if simulator.python is None and not simulator.env else _asked_there(simulator)
    if "unknown" in found:
        raise UnknownName(
            f"{name} has no task {found['unknown']!r}",
            why=found["why"],
            do=did_you_mean(found["unknown"], found["known"]),
        )
    return [str(lack) for lack in found["lacks"]]


def _asked_here(simulator: SimulatorConfig) -> dict[str, Any]:
    try:
        return {"lacks": registry.foresee(simulator.id, dict(simulator.options))}
    except UnknownTask as error:
        return {"unknown": error.task, "known": error.known, "why": str(error)}


def _asked_there(simulator: SimulatorConfig) -> dict[str, Any]:
    python = simulator.python or sys.executable
    told, env = wire.encode(what_to_build(simulator)), common_environment(simulator, VectorConfig())
    try:
        done = subprocess.run(
            [python, str(_FORESEE)], env=env, check=False, input=told, capture_output=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"lacks": []}  # a busy machine says nothing against it
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return {"lacks": [f"{python} cannot run workers: {said[-1] if said else f'exit code {done.returncode}'}"]}
    return json.loads(done.stdout.splitlines()[-1])  # a launcher may have said something before
