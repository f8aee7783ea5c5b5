"""What tasks about one drawer of the cabinet have in common."""

from __future__ import annotations

import numpy as np

from .furniture import DRAWER_TRAVEL, DRAWERS, cabinet, cabinet_contacts
from .scene import TABLE_HEIGHT, model_xml
from .task import TabletopTask
from .world import World

#: How the hand is tilted when it takes a handle: steeply low on the table, where the wrist has no room.
PITCH = {"bottom": 1.15, "middle": 0.95, "top": 0.75}


class DrawerTask(TabletopTask):
    """A cabinet at random, and one of its drawers."""

    horizon = 150
    view = "left_shoulder"  # drawers face the robot
    variations = tuple(DRAWERS)
    _chosen = "top"

    def xml(self) -> str:
        return model_xml(cabinet(), rest=cabinet_contacts())

    def lay_out(self, world: World, rng: np.random.Generator, variation: int) -> None:
        self._chosen = self.variations[variation]
        place = (rng.uniform(0.48, 0.54), rng.uniform(-0.12, 0.12), TABLE_HEIGHT)
        world.mount("cabinet", place, rng.uniform(-0.2, 0.2))

    def share_open(self, world: World) -> float:
        """Return how far the drawer is out, 0 to 1."""
        return world.joint("drawer_" + self._chosen) / DRAWER_TRAVEL

    def nearness(self, world: World) -> float:
        """Return 1 at the handle, less further away."""
        return float(np.exp(-5.0 * np.linalg.norm(world.tip_pose()[0] - world.site("handle_" + self._chosen))))

    def state(self, world: World) -> np.ndarray:
        handle = world.site("handle_" + self._chosen)
        return np.concatenate([handle, [world.joint("drawer_" + name) for name in DRAWERS]])
