"""From a name to a simulator, looked up where the simulator lives: inside the worker's interpreter.

Names are ``<simulator>/<task>`` (built in or a plug-in's), ``package.module:factory`` or ``path/to/file.py:factory``;
`plugins.py` looks them up. What a simulator shows can go by other names, so that one policy can see unlike ones.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import ModuleType
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import plugins
from .about import About
from .base import LENGTH_SUFFIX, Simulator, SpecError

#: Built-in simulators: name -> the module that begins with its `about`. None is imported before it is asked for.
BUILT_IN = {
    "behavior": "manyarms.simulators.behavior",
    "gym": "manyarms.simulators.gymnasium",
    "libero": "manyarms.simulators.libero",
    "rlbench": "manyarms.simulators.rlbench",
    "tabletop": "manyarms.simulators.tabletop",
}


def split_id(simulator_id: str) -> Tuple[str, str]:
    """Split ``<simulator>/<task>``; an import string has no task."""
    name, slash, task = simulator_id.partition("/")
    if ":" in name or not slash or plugins.is_import_string(simulator_id):
        return simulator_id, ""
    return name, task


def about(simulator_id: str) -> About:
    """Return what is known of a simulator before it is imported; nothing of one that has no module for that."""
    name = split_id(simulator_id)[0]
    target = BUILT_IN.get(name, "")
    if name and not target and not plugins.is_import_string(name):
        point = plugins.plug_ins("simulators").get(name)
        target = point.value if point is not None else ""
    if not target or ":" in target:
        return About()
    try:
        return plugins.import_object(target + ":about")
    except ImportError:
        return About()  # whoever starts it will hear why


def resolve(simulator_id: str) -> Tuple[Callable[..., Any], Dict[str, Any]]:
    """Return what builds the simulator, and the arguments its name stands for."""
    name, task = split_id(simulator_id)
    found = plugins.load("simulators", name)
    if isinstance(found, ModuleType):
        found = plugins.import_object(plugins.import_object(found.__name__ + ":about").factory)
    return found, {} if plugins.is_import_string(name) else {"task": task}


def tasks_of(name: str) -> Dict[str, str]:
    """Return the tasks that a simulator can tell without being started: names -> what is to be done."""
    return _ability(resolve(name)[0], "list_tasks")()


def foresee(simulator_id: str, options: Dict[str, Any]) -> List[str]:
    """Return what a simulator with these options would lack here, in words, without starting anything."""
    factory, arguments = resolve(simulator_id)
    return _ability(factory, "foresee")(**{**arguments, **options})


def preload(simulator_id: str, options: Dict[str, Any]) -> None:
    """Import what building a simulator will need, in the process that its workers are forked from."""
    factory, arguments = resolve(simulator_id)
    _ability(factory, "preload")(**{**arguments, **options})


def is_lockstep(simulator_id: str) -> bool:
    """Tell whether a simulator's scenes can only step together."""
    return _ability(resolve(simulator_id)[0], "lockstep")


def _ability(factory: Callable[..., Any], name: str) -> Any:
    """Return what a factory's class says; any callable may be one, and one that says nothing has the default."""
    return getattr(factory, name, getattr(Simulator, name))


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
    if _ability(factory, "lockstep"):
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


def rename(simulator: Any, names: Mapping[str, str]) -> None:
    """Have a simulator go by `names` (its own field or camera -> ours) towards the worker; inside nothing changes."""
    if not names:
        return
    spec = simulator.spec
    unknown = [name for name in names if name not in spec.observations and name not in spec.cameras]
    if unknown:
        known = ", ".join([*spec.observations, *spec.cameras])
        raise SpecError("rename: there is no field or camera %r; there are %s" % (unknown[0], known))
    fields = {names.get(name, name): field for name, field in spec.observations.items()}
    if len(fields) < len(spec.observations):
        raise SpecError("rename gives two fields the same name")
    shown = {name: replace(field, camera=names.get(field.camera, field.camera)) for name, field in fields.items()}
    simulator.spec = replace(spec, observations=shown)
    own_field = {names.get(name, name): name for name in spec.observations}
    own_camera = {names.get(name, name): name for name in spec.cameras}
    translated: Dict[int, Tuple[Dict[str, Any], Dict[str, Any]]] = {}

    def inside(out: Dict[str, Any]) -> Dict[str, Any]:
        """Return the same arrays under the simulator's own names; the worker's dicts stay the same for ever."""
        known = translated.get(id(out))
        if known is None or known[0] is not out:
            known = translated[id(out)] = out, {_own(name, own_field): array for name, array in out.items()}
        return known[1]

    def cameras_inside(cameras: Sequence[str]) -> Tuple[str, ...]:
        return tuple(own_camera.get(name, name) for name in cameras)

    observe, expect = simulator.observe, getattr(simulator, "expect", None)
    if _ability(simulator, "lockstep"):
        simulator.observe = lambda outs, cameras: observe(
            {row: inside(out) for row, out in outs.items()}, cameras_inside(cameras)
        )
    else:
        simulator.observe = lambda out, cameras: observe(inside(out), cameras_inside(cameras))
    if expect is not None:
        simulator.expect = lambda cameras: expect(cameras_inside(cameras))


def _own(name: str, own: Mapping[str, str]) -> str:
    if name in own:
        return own[name]
    stem = name[: -len(LENGTH_SUFFIX)]
    return own[stem] + LENGTH_SUFFIX if name.endswith(LENGTH_SUFFIX) and stem in own else name
