from __future__ import annotations

from typing import Iterator

import numpy as np

from ..drawers import PITCH, DrawerTask
from ..furniture import DRAWER_TRAVEL, HANDLE_REACH
from ..task import Waypoint, above, forward_facing
from ..world import World
from ..worlds import Array, Worlds


class CloseDrawer(DrawerTask):
    """Push the drawer shut that stands open."""

    name = "close_drawer"
    templates = ("close the {} drawer", "shut the {} drawer", "push the {} drawer closed")

    def lay_out(self, world: World, rng: np.random.Generator, variation: int) -> None:
        super().lay_out(world, rng, variation)
        world.set_joint("drawer_" + self.variations[variation], rng.uniform(0.5, 0.8) * DRAWER_TRAVEL)

    def succeeded(self, worlds: Worlds) -> Array:
        return self.share_open(worlds) < 0.11

    def progress(self, worlds: Worlds) -> Array:
        return 0.3 * self.nearness(worlds) + 0.7 * (1.0 - worlds.xp.clip(self.share_open(worlds), 0, 1))

    def expert(self, world: World, variation: int) -> Iterator[Waypoint]:
        frame = world.rotation("cabinet")
        outward = -frame[:, 0]
        name = self.variations[variation]
        push = frame @ forward_facing(PITCH[name])
        for side in (0.055, -0.055, 0.055):
            depth = world.joint("drawer_" + name)
            # On the panel beside the handle: a handle is too thin to push by. The other side, if that did not do.
            panel = world.site("handle_" + name) + frame @ np.array([HANDLE_REACH - 0.114, side, 0.0])
            yield Waypoint(above(panel + outward * 0.16, 0.15), push, False)
            yield Waypoint(above(panel + outward * 0.10, 0.03), push)
            yield Waypoint(panel + outward * 0.03, push, speed=0.6)
            for share in np.linspace(0.25, 1.0, 4):
                yield Waypoint(panel - outward * depth * share + outward * 0.004, push, speed=0.4)
