from __future__ import annotations

from typing import Iterator

import numpy as np

from ..scene import OBJECT, TABLE_HEIGHT, model_xml
from ..task import TabletopTask, Waypoint, above, turned
from ..world import World
from ..worlds import Array, Worlds

_LEVER = 0.1
_HEIGHT = 0.14
_GOAL = 1.1
_SIDES = ("left", "right")


def _tap(side: str, y: float) -> str:
    turn, colour = (1, ".8 .2 .2 1") if y > 0 else (-1, ".2 .35 .85 1")
    return f"""
<body name="{side}" pos="0 {y} {_HEIGHT}">
  <joint name="{side}" type="hinge" axis="0 0 {turn}" range="0 1.57" damping="0.15" frictionloss="0.03"
         armature="0.005"/>
  <geom type="cylinder" pos="0 0 -0.01" size="0.016 0.016" material="metal" mass="0.05" {OBJECT}/>
  <geom type="capsule" fromto="0 0 0 -{_LEVER} 0 0" size="0.009" material="metal" mass="0.05" {OBJECT}/>
  <geom type="sphere" pos="-{_LEVER} 0 0" size="0.013" rgba="{colour}" mass="0.02" {OBJECT}/>
  <site name="{side}_end" pos="-{0.85 * _LEVER} 0 0" rgba="0 0 0 0"/>
</body>
"""


class TurnTap(TabletopTask):
    """Turn the left (hot) or the right (cold) tap on by its lever."""

    name = "turn_tap"
    horizon = 150
    variations = _SIDES
    templates = ("turn the {} tap", "rotate the {} lever of the tap", "turn on the {} tap")

    def xml(self) -> str:
        basin = f"""
<body name="tap" pos="0.38 0 {TABLE_HEIGHT}">
  <geom type="box" pos="0 0 0.06" size="0.03 0.2 0.06" rgba=".88 .89 .9 1" {OBJECT}/>
  <geom type="capsule" fromto="0 0 0.12 0 0 0.22" size="0.014" material="metal" {OBJECT}/>
  <geom type="capsule" fromto="0 0 0.22 -0.09 0 0.22" size="0.014" material="metal" {OBJECT}/>
  <geom type="capsule" fromto="-0.09 0 0.22 -0.1 0 0.19" size="0.014" material="metal" {OBJECT}/>
  {_tap("left", 0.16)}{_tap("right", -0.16)}
</body>"""
        pairs = [("tap", "left"), ("tap", "right")]
        excludes = "".join('<exclude body1="%s" body2="%s"/>' % pair for pair in pairs)
        return model_xml(basin, rest="<contact>%s</contact>" % excludes)

    def lay_out(self, world: World, rng: np.random.Generator, variation: int) -> None:
        world.mount("tap", (rng.uniform(0.34, 0.4), rng.uniform(-0.08, 0.08), TABLE_HEIGHT), rng.uniform(-0.15, 0.15))

    def _angle(self, worlds: Worlds) -> Array:
        return worlds.pick(worlds.joint(_SIDES), worlds.variation)

    def _end(self, worlds: Worlds) -> Array:
        return worlds.pick(worlds.site(("left_end", "right_end")), worlds.variation)

    def succeeded(self, worlds: Worlds) -> Array:
        return self._angle(worlds) > _GOAL

    def progress(self, worlds: Worlds) -> Array:
        xp = worlds.xp
        reach = worlds.distance(worlds.tip_position(), self._end(worlds))
        return 0.4 * xp.exp(-5.0 * reach) + 0.6 * xp.clip(self._angle(worlds) / _GOAL, 0, 1)

    def state(self, worlds: Worlds) -> Array:
        return worlds.xp.concatenate([self._end(worlds), worlds.joint(_SIDES)], axis=1)

    def expert(self, world: World, variation: int) -> Iterator[Waypoint]:
        side = self.variations[variation]
        sign = 1.0 if side == "left" else -1.0
        frame, pivot = world.rotation("tap"), world.position(side)

        def beside(angle: float, gap: float) -> np.ndarray:
            # A point at the lever's end, on the side it is pushed from.
            along = np.array([-np.cos(angle), -sign * np.sin(angle), 0.0])
            across = np.array([-np.sin(angle), sign * np.cos(angle), 0.0])
            return pivot + frame @ (0.85 * _LEVER * along + gap * across)

        yaw = float(np.arctan2(frame[1, 0], frame[0, 0])) - sign * np.pi / 2  # the hand's broad side along the lever
        start = beside(0.0, 0.045)
        yield Waypoint(above(start, 0.1), turned(yaw), False)
        yield Waypoint(above(start, -0.005), turned(yaw), speed=0.6)
        for angle in np.linspace(0.15, 1.3, 7):
            yield Waypoint(above(beside(float(angle), 0.014), -0.005), turned(yaw), speed=0.5)
