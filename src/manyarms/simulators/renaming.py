"""Other names for a simulator's fields and cameras, so that unlike simulators can be seen by one policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Mapping, Sequence, Tuple

import numpy as np

from .base import LENGTH_SUFFIX, SpecError

Fields = Dict[str, np.ndarray]


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
    translated: Dict[int, Tuple[Fields, Fields]] = {}

    def inside(out: Fields) -> Fields:
        """Return the same arrays under the simulator's own names; the worker's dicts stay the same for ever."""
        known = translated.get(id(out))
        if known is None or known[0] is not out:
            known = translated[id(out)] = out, {_own(name, own_field): array for name, array in out.items()}
        return known[1]

    def cameras_inside(cameras: Sequence[str]) -> Tuple[str, ...]:
        return tuple(own_camera.get(name, name) for name in cameras)

    observe, expect = simulator.observe, getattr(simulator, "expect", None)
    if getattr(simulator, "lockstep", False):
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


__all__ = ["rename"]
