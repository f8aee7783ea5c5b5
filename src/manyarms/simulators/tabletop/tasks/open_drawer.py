from __future__ import annotations

from typing import Iterator

import numpy as np

from ..drawers import PITCH, DrawerTask
from ..furniture import DRAWER_TRAVEL
from ..task import Waypoint, above, forward_facing
from ..world import World
from ..worlds import Array, Worlds


class OpenDrawer(DrawerTask):
    """Pull one of three drawers open by its handle."""

    name = "open_drawer"
    templates = ("open the {} drawer", "pull the {} drawer out", "grip the {} handle and pull the {} drawer open")

    def succeeded(self, worlds: Worlds) -> Array:
        return self.share_open(worlds) > 0.7

    def progress(self, worlds: Worlds) -> Array:
        return 0.4 * self.nearness(worlds) + 0.6 * worlds.xp.clip(self.share_open(worlds) / 0.7, 0, 1)

    def expert(self, world: World, variation: int) -> Iterator[Waypoint]:
        yield from pull_drawer(world, self.variations[variation], 0.85 * DRAWER_TRAVEL)


def pull_drawer(world: World, name: str, distance: float) -> Iterator[Waypoint]:
    """Yield the way to a drawer's handle and out with it."""
    frame = world.rotation("cabinet")
    outward = -frame[:, 0]
    grip = frame @ forward_facing(PITCH[name])
    handle = world.site("handle_" + name)
    yield Waypoint(above(handle + outward * 0.18, 0.15), grip, True)
    yield Waypoint(above(handle + outward * 0.09, 0.04), grip)
    yield Waypoint(above(handle + outward * 0.03, 0.012), grip, speed=0.6)
    yield Waypoint(handle, grip, speed=0.4)
    yield Waypoint(handle, grip, False)
    for share in np.linspace(0.34, 1.0, 3):
        yield Waypoint(handle + outward * distance * share, grip, speed=0.4)
