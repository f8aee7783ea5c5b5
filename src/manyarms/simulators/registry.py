"""From a name to a simulator, looked up where the simulator lives: inside the worker's interpreter.

Three kinds of names: ``<simulator>/<task>`` (built in, or a plug-in's entry point in the group
``manyarms.simulators``), ``package.module:factory`` and ``path/to/file.py:factory``. Standard library only, Python 3.8
and later.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

ENTRY_POINT_GROUP = "manyarms.simulators"

#: Built-in simulators: name -> import string. Nothing is imported before it is asked for.
BUILT_IN = {
    "behavior": "manyarms.simulators.behavior.simulator:BehaviorSimulator",
    "gym": "manyarms.simulators.gymnasium:GymnasiumSimulator",
    "libero": "manyarms.simulators.libero.simulator:LiberoSimulator",
    "rlbench": "manyarms.simulators.rlbench.simulator:RLBenchSimulator",
    "tabletop": "manyarms.simulators.tabletop.simulator:TabletopSimulator",
}

#: What must be known of them before they are imported. ``about``: what it is; ``worker_bytes``: what a worker may
#: come to hold (forked ones share much of it); ``start_timeout``: seconds in which one must have started;
#: ``evaluation_options``: how one is set up to judge a policy;
#: ``draws_through_qt``: whether it can draw without an X server depends on its Qt, and has to be tried.
FACTS: Dict[str, Dict[str, Any]] = {
    "behavior": {
        "about": "BEHAVIOR-1K: household activities on OmniGibson and Isaac Sim",
        "start_timeout": 1200.0,  # it compiles shaders when it is first started
        "evaluation_options": {"instances": "eval", "challenge_rules": True},
    },
    "gym": {"about": "any registered Gymnasium environment"},
    "libero": {
        "about": "LIBERO: five suites of tasks on robosuite 1.4",
        "worker_bytes": 2100 << 20,
        "evaluation_options": {"faithful": True},
    },
    "rlbench": {"about": "RLBench: 106 tasks on CoppeliaSim 4.1", "draws_through_qt": True},
    "tabletop": {"about": "our own: RLBench-style tasks on MuJoCo, nothing to install"},
}


class UnknownSimulator(LookupError):
    """No simulator has this name; `known` are the names to choose from."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__("no simulator named %r" % name)
        self.name = name
        self.known = sorted(known)


def split_id(simulator_id: str) -> Tuple[str, str]:
    """Split ``<simulator>/<task>``; an import string has no task."""
    name, slash, task = simulator_id.partition("/")
    if ":" in name or not slash or is_import_string(simulator_id):
        return simulator_id, ""
    return name, task


def is_import_string(text: str) -> bool:
    """Tell ``package.module:factory`` and ``dir/file.py:factory`` from ``gym/package:Env-v0``."""
    module, colon, attribute = text.rpartition(":")
    if not colon or not module or not attribute.replace(".", "_").isidentifier():
        return False
    return module.endswith(".py") or module.replace(".", "_").isidentifier()


def import_object(text: str) -> Any:
    """Import what ``package.module:attribute`` or ``file.py:attribute`` names."""
    module_name, _, path = text.rpartition(":")
    if not module_name:
        raise ImportError("%r is not an import string: write 'package.module:name'" % text)
    module = load_file(module_name) if module_name.endswith(".py") else importlib.import_module(module_name)
    value: Any = module
    for part in path.split("."):
        if not hasattr(value, part):
            raise ImportError("%s has no attribute %r" % (module_name, path))
        value = getattr(value, part)
    return value


def load_file(path: str) -> Any:
    """Import a Python file under a name of its own, so that ``if __name__ == "__main__"`` does not run."""
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        raise ImportError("there is no file %s" % path)
    name = "manyarms_file_" + os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("%s is not a Python file" % path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def plug_ins() -> Dict[str, Any]:
    """Return the entry points of installed plug-ins by name."""
    from importlib import metadata

    if sys.version_info >= (3, 10):
        found: Any = metadata.entry_points(group=ENTRY_POINT_GROUP)
    else:
        found = metadata.entry_points().get(ENTRY_POINT_GROUP, ())
    return {point.name: point for point in found}


def resolve(simulator_id: str) -> Tuple[Callable[..., Any], Dict[str, Any]]:
    """Return what builds the simulator, and the arguments its name stands for."""
    name, task = split_id(simulator_id)
    if is_import_string(name):
        return import_object(name), {}
    if name in BUILT_IN:
        return import_object(BUILT_IN[name]), {"task": task}
    points = plug_ins()
    if name in points:
        return points[name].load(), {"task": task}
    raise UnknownSimulator(name, [*BUILT_IN, *points])


def fact(simulator_id: str, name: str, default: Any) -> Any:
    """Return what is known of a built-in simulator; of others nothing is."""
    return FACTS.get(split_id(simulator_id)[0], {}).get(name, default)


def tasks_of(name: str) -> Dict[str, str]:
    """Return the tasks that a simulator can tell without being started: names -> what is to be done."""
    hook = getattr(resolve(name)[0], "list_tasks", None)
    return hook() if hook is not None else {}


def foresee(simulator_id: str, options: Dict[str, Any]) -> List[str]:
    """Return what a simulator with these options would lack here, in words, without starting anything."""
    factory, arguments = resolve(simulator_id)
    hook = getattr(factory, "foresee", None)
    return hook(**{**arguments, **options}) if hook is not None else []


def preload(simulator_id: str, options: Dict[str, Any]) -> None:
    """Import what building a simulator will need, in the process that its workers are forked from."""
    factory, arguments = resolve(simulator_id)
    hook = getattr(factory, "preload", None)
    if hook is not None:
        hook(**{**arguments, **options})


def build(
    simulator_id: str, options: Dict[str, Any], rows: int, max_episode_steps: Optional[int] = None
) -> Tuple[List[Any], bool]:
    """Build the simulators of a worker: one a row, or one for all rows of a lock-step group (and say which).

    The worker keeps the time limit, but a simulator with a clock of its own must hear of it.
    """
    factory, arguments = resolve(simulator_id)
    arguments = {**arguments, **options}
    if max_episode_steps and "max_episode_steps" in inspect.signature(factory).parameters:
        arguments["max_episode_steps"] = max_episode_steps
    if getattr(factory, "lockstep", False):
        return [factory(rows=rows, **arguments)], True
    return [_build_one(factory, arguments) for _ in range(rows)], False


def _build_one(factory: Callable[..., Any], arguments: Dict[str, Any]) -> Any:
    if isinstance(factory, type) and hasattr(factory, "observe"):
        return factory(**arguments)
    ours, theirs = _share(factory, arguments)
    product = factory(**theirs)
    if hasattr(product, "observe") and hasattr(product, "spec"):
        return product
    if not hasattr(product, "observation_space"):
        raise TypeError("%r gave %r, which is neither a simulator nor a Gymnasium environment" % (factory, product))
    from .gymnasium import GymnasiumSimulator

    return GymnasiumSimulator(env=product, **ours)


def _share(factory: Callable[..., Any], arguments: Dict[str, Any]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Part the options of the Gymnasium adapter from those of a factory, which comes first where both know one."""
    named = inspect.signature(factory).parameters
    ours = {name: arguments[name] for name in ("wrappers", "cameras") if name in arguments and name not in named}
    theirs = {name: value for name, value in arguments.items() if name not in ours}
    if ours.get("cameras"):
        theirs.setdefault("render_mode", "rgb_array")
    return ours, theirs
