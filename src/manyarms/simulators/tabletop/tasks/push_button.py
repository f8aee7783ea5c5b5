from __future__ import annotations

from typing import Iterator

import numpy as np

from ..scene import OBJECT, TABLE_HEIGHT, model_xml
from ..task import COLOURS, TabletopTask, Waypoint, above
from ..world import World
from ..worlds import Array, Worlds

_TRAVEL = 0.012

_BUTTON = f"""
<body name="button" pos="0.3 0 {TABLE_HEIGHT}">
  <geom type="cylinder" pos="0 0 0.012" size="0.05 0.012" rgba=".25 .26 .28 1" {OBJECT}/>
  <body name="cap" pos="0 0 0.034">
    <joint name="cap" type="slide" axis="0 0 -1" range="0 {_TRAVEL}" stiffness="120" damping="3" armature="0.05"/>
    <geom name="cap" type="cylinder" size="0.032 0.010" rgba=".8 .1 .1 1" mass="0.03" {OBJECT}/>
  </body>
</body>
"""


class PushButton(TabletopTask):
    """Press the button down."""

    name = "push_button"
    horizon = 100
    variations = tuple(COLOURS)
    templates = ("push the {} button", "press down the button with the {} cap", "click the {} button")

    def xml(self) -> str:
        return model_xml(_BUTTON, rest='<contact><exclude body1="button" body2="cap"/></contact>')

    def lay_out(self, world: World, rng: np.random.Generator, variation: int) -> None:
        world.mount("button", (rng.uniform(0.1, 0.42), rng.uniform(-0.3, 0.3), TABLE_HEIGHT))
        world.paint("cap", list(COLOURS.values())[variation])

    def succeeded(self, worlds: Worlds) -> Array:
        return worlds.joint("cap") > 0.7 * _TRAVEL

    def progress(self, worlds: Worlds) -> Array:
        xp = worlds.xp
        distance = worlds.distance(worlds.tip_position(), worlds.position("cap"))
        return 0.5 * xp.exp(-5.0 * distance) + 0.5 * xp.clip(worlds.joint("cap") / _TRAVEL, 0, 1)

    def state(self, worlds: Worlds) -> Array:
        return worlds.xp.concatenate([worlds.position("cap"), worlds.joint(("cap",))], axis=1)

    def expert(self, world: World, variation: int) -> Iterator[Waypoint]:
        cap = world.position("cap")
        yield Waypoint(above(cap, 0.08), opened=False)
        yield Waypoint(above(cap, 0.002), speed=0.5)
        yield Waypoint(above(cap, -0.008), speed=0.3)
