"""From a name to a simulator, looked up where the simulator lives: inside the worker's interpreter.

Names are ``<simulator>/<task>`` (built in or a plug-in's), ``package.module:factory`` or ``path/to/file.py:factory``;
`plugins.py` looks them up. Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List, Optional, Tuple

from .. import plugins

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


def split_id(simulator_id: str) -> Tuple[str, str]:
    """Split ``<simulator>/<task>``; an import string has no task."""
    name, slash, task = simulator_id.partition("/")
    if ":" in name or not slash or plugins.is_import_string(simulator_id):
        return simulator_id, ""
    return name, task


def resolve(simulator_id: str) -> Tuple[Callable[..., Any], Dict[str, Any]]:
    """Return what builds the simulator, and the arguments its name stands for."""
    name, task = split_id(simulator_id)
    return plugins.load("simulators", name), {} if plugins.is_import_string(name) else {"task": task}


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
