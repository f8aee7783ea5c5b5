from __future__ import annotations

from typing import Iterator

import numpy as np

from ..scene import GHOST, OBJECT, TABLE_HEIGHT, block, model_xml
from ..task import DOWN, TabletopTask, Waypoint, above, scatter
from ..world import World
from ..worlds import Array, Worlds

_CRUMBS = tuple("crumb_%d" % i for i in range(5))
_CRUMB = 0.009
_PAN = (0.08, 0.1)

_BROOM = f"""
<body name="broom" pos="0.1 0 {TABLE_HEIGHT + 0.03}"><freejoint name="broom"/>
  <geom type="box" size="0.016 0.085 0.028" rgba=".85 .68 .25 1" mass="0.08" {OBJECT}/>
  <geom type="box" pos="0 0 0.056" size="0.012 0.013 0.030" rgba=".2 .35 .6 1" mass="0.02" {OBJECT}/>
</body>
"""

_DUSTPAN = f"""
<body name="dustpan" pos="0.42 0 {TABLE_HEIGHT}">
  <geom name="pan" type="box" pos="0 0 0.001" size="{_PAN[0]} {_PAN[1]} 0.0008" rgba=".2 .5 .75 1" {GHOST}/>
  <geom type="box" pos="0 {_PAN[1]} 0.012" size="{_PAN[0]} 0.004 0.012" rgba=".15 .4 .65 1" {OBJECT}/>
  <geom type="box" pos="0 -{_PAN[1]} 0.012" size="{_PAN[0]} 0.004 0.012" rgba=".15 .4 .65 1" {OBJECT}/>
  <geom type="box" pos="{_PAN[0]} 0 0.012" size="0.004 {_PAN[1]} 0.012" rgba=".15 .4 .65 1" {OBJECT}/>
</body>
"""


class SweepToDustpan(TabletopTask):
    """Take the broom and sweep all crumbs onto the dustpan."""

    name = "sweep_to_dustpan"
    horizon = 250
    templates = (
        "sweep the dirt to the dustpan",
        "use the broom to push the crumbs into the dustpan",
        "clean up the table",
    )
    graspable = ("broom",)

    def xml(self) -> str:
        crumbs = "".join(block(name, _CRUMB, ".35 .25 .18 1", 0.004) for name in _CRUMBS)
        return model_xml(_BROOM + _DUSTPAN + crumbs)

    def lay_out(self, world: World, rng: np.random.Generator, variation: int) -> None:
        y = rng.uniform(-0.15, 0.15)
        world.mount("dustpan", (rng.uniform(0.40, 0.44), y, TABLE_HEIGHT))
        world.place("broom", (rng.uniform(0.06, 0.1), y + rng.uniform(-0.01, 0.01), TABLE_HEIGHT + 0.029))
        places = scatter(rng, len(_CRUMBS), (0.17, y - 0.05), (0.25, y + 0.05), 0.03)
        for name, place in zip(_CRUMBS, places):
            world.place(name, (*place, TABLE_HEIGHT + _CRUMB), rng.uniform(-np.pi, np.pi))

    def _swept(self, worlds: Worlds) -> Array:
        """Tell which crumbs are on the dustpan: [N, crumbs]."""
        offsets = abs(worlds.position(_CRUMBS) - worlds.position(("dustpan",)))
        return (offsets[:, :, 0] < _PAN[0]) & (offsets[:, :, 1] < _PAN[1])

    def succeeded(self, worlds: Worlds) -> Array:
        return self._swept(worlds).all(1)

    def progress(self, worlds: Worlds) -> Array:
        xp = worlds.xp
        gap = worlds.distance(worlds.position(_CRUMBS), worlds.position(("dustpan",))).mean(1)
        return 0.5 * (self._swept(worlds).sum(1) / len(_CRUMBS)) + 0.4 * xp.exp(-4.0 * gap)

    def state(self, worlds: Worlds) -> Array:
        return worlds.xp.concatenate([worlds.position(name) for name in ("broom", "dustpan", *_CRUMBS)], axis=1)

    def expert(self, world: World, variation: int) -> Iterator[Waypoint]:
        handle = above(world.position("broom"), 0.05)
        yield Waypoint(above(handle, 0.1), DOWN, True)
        yield Waypoint(handle, DOWN, speed=0.6)
        yield Waypoint(handle, DOWN, False)
        pan = world.position("dustpan")
        end = np.array([pan[0] - 0.02, pan[1], handle[2] + 0.001])
        for share in np.linspace(0.15, 1.0, 7):
            yield Waypoint(handle + (end - handle) * share, DOWN, speed=0.35)
