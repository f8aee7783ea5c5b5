from __future__ import annotations

from typing import Iterator

import numpy as np

from ..scene import OBJECT, TABLE_HEIGHT, model_xml
from ..task import COLOURS, TabletopTask, Waypoint, above, scatter, square_grip
from ..world import World
from ..worlds import Array, Worlds

_RADIUS, _HALF_HEIGHT = 0.028, 0.045
#: Fingers hold a square core: flat sides are what the physics of contact is good at.
_SIDE = 0.025
_LIFT = 0.12


def _cup(name: str) -> str:
    return f"""
<body name="{name}" pos="0.3 0 {TABLE_HEIGHT + _HALF_HEIGHT}"><freejoint name="{name}"/>
  <geom name="{name}" type="cylinder" size="{_RADIUS} {_HALF_HEIGHT}" mass="0" contype="0" conaffinity="0"/>
  <geom type="box" size="{_SIDE} {_SIDE} {_HALF_HEIGHT}" rgba="0 0 0 0" mass="0.12" {OBJECT}/>
  <geom type="cylinder" pos="0 0 {_HALF_HEIGHT}" size="{_RADIUS - 0.004} 0.0006" rgba=".12 .1 .1 1" mass="0"
        contype="0" conaffinity="0"/>
  <geom name="{name}_handle" type="capsule" fromto="{_RADIUS + 0.016} 0 -0.018 {_RADIUS + 0.016} 0 0.018" size="0.005"
        mass="0.004" contype="0" conaffinity="0"/>
  <geom name="{name}_low" type="capsule" fromto="{_RADIUS} 0 -0.022 {_RADIUS + 0.016} 0 -0.018" size="0.005"
        mass="0.002" contype="0" conaffinity="0"/>
  <geom name="{name}_high" type="capsule" fromto="{_RADIUS} 0 0.022 {_RADIUS + 0.016} 0 0.018" size="0.005"
        mass="0.002" contype="0" conaffinity="0"/>
</body>
"""


class PickUpCup(TabletopTask):
    """Lift the cup of the named colour; another one stands by."""

    name = "pick_up_cup"
    horizon = 150
    variations = tuple(COLOURS)
    templates = ("pick up the {} cup", "grasp the {} cup and lift it", "lift the {} mug off the table")
    graspable = ("cup", "other")

    def xml(self) -> str:
        return model_xml(_cup("cup") + _cup("other"))

    def lay_out(self, world: World, rng: np.random.Generator, variation: int) -> None:
        other = int(rng.choice(np.delete(np.arange(len(COLOURS)), variation)))
        places = scatter(rng, 2, (0.12, -0.26), (0.40, 0.26), 0.2)
        for name, place, colour in zip(("cup", "other"), places, (variation, other)):
            world.place(name, (*place, TABLE_HEIGHT + _HALF_HEIGHT), rng.uniform(-np.pi, np.pi))
            for part in ("", "_handle", "_low", "_high"):
                world.paint(name + part, list(COLOURS.values())[colour])

    def _height(self, worlds: Worlds) -> Array:
        return worlds.position("cup")[:, 2] - TABLE_HEIGHT - _HALF_HEIGHT

    def succeeded(self, worlds: Worlds) -> Array:
        return (self._height(worlds) > _LIFT - 0.02) & worlds.grasped("cup")

    def progress(self, worlds: Worlds) -> Array:
        xp = worlds.xp
        distance = worlds.distance(worlds.tip_position(), worlds.position("cup"))
        return 0.5 * xp.exp(-5.0 * distance) + 0.5 * xp.clip(self._height(worlds) / _LIFT, 0, 1)

    def state(self, worlds: Worlds) -> Array:
        return worlds.xp.concatenate([worlds.position("cup"), worlds.position("other")], axis=1)

    def expert(self, world: World, variation: int) -> Iterator[Waypoint]:
        cup, grip = world.position("cup"), square_grip(world.rotation("cup"))
        yield Waypoint(above(cup, 0.13), grip, True)
        yield Waypoint(above(cup, 0.015), grip, speed=0.6)
        yield Waypoint(above(cup, 0.015), grip, False)
        yield Waypoint(above(cup, 0.015 + _LIFT + 0.03), grip, speed=0.6)
