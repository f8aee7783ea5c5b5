"""What tasks about one drawer of the cabinet have in common."""

from __future__ import annotations

import numpy as np

from .furniture import DRAWER_TRAVEL, DRAWERS, cabinet, cabinet_contacts
from .scene import TABLE_HEIGHT, model_xml
from .task import TabletopTask
from .world import World
from .worlds import Array, Worlds

#: How the hand is tilted when it takes a handle: steeply low on the table, where the wrist has no room.
PITCH = {"bottom": 1.15, "middle": 0.95, "top": 0.75}

_SLIDES = tuple("drawer_%s" % name for name in DRAWERS)
_HANDLES = tuple("handle_%s" % name for name in DRAWERS)


class DrawerTask(TabletopTask):
    """A cabinet at random, and one of its drawers."""

    horizon = 150
    view = "left_shoulder"  # drawers face the robot
    variations = tuple(DRAWERS)

    def xml(self) -> str:
        return model_xml(cabinet(), rest=cabinet_contacts())

    def lay_out(self, world: World, rng: np.random.Generator, variation: int) -> None:
        place = (rng.uniform(0.48, 0.54), rng.uniform(-0.12, 0.12), TABLE_HEIGHT)
        world.mount("cabinet", place, rng.uniform(-0.2, 0.2))

    def share_open(self, worlds: Worlds) -> Array:
        """Return how far the drawer is out, 0 to 1."""
        return worlds.pick(worlds.joint(_SLIDES), worlds.variation) / DRAWER_TRAVEL

    def nearness(self, worlds: Worlds) -> Array:
        """Return 1 at the handle, less further away."""
        return worlds.xp.exp(-5.0 * worlds.distance(worlds.tip_position(), self._handle(worlds)))

    def state(self, worlds: Worlds) -> Array:
        return worlds.xp.concatenate([self._handle(worlds), worlds.joint(_SLIDES)], axis=1)

    def _handle(self, worlds: Worlds) -> Array:
        return worlds.pick(worlds.site(_HANDLES), worlds.variation)
