from __future__ import annotations

from typing import Iterator

import numpy as np

from ..furniture import DRAWER_TRAVEL, DRAWERS, HANDLE_REACH, cabinet, cabinet_contacts
from ..scene import TABLE_HEIGHT, model_xml
from ..task import TabletopTask, Waypoint, above, forward_facing
from ..world import World
from .open_drawer import PITCH


class CloseDrawer(TabletopTask):
    """Push the drawer shut that stands open."""

    name = "close_drawer"
    horizon = 150
    variations = tuple(DRAWERS)
    templates = ("close the {} drawer", "shut the {} drawer", "push the {} drawer closed")
    _chosen = "top"

    def xml(self) -> str:
        return model_xml(cabinet(), rest=cabinet_contacts())

    def lay_out(self, world: World, rng: np.random.Generator, variation: int) -> None:
        self._chosen = self.variations[variation]
        world.mount(
            "cabinet", (rng.uniform(0.48, 0.54), rng.uniform(-0.12, 0.12), TABLE_HEIGHT), rng.uniform(-0.2, 0.2)
        )
        world.set_joint("drawer_" + self._chosen, rng.uniform(0.5, 0.8) * DRAWER_TRAVEL)

    def _open(self, world: World) -> float:
        return world.joint("drawer_" + self._chosen)

    def succeeded(self, world: World) -> bool:
        return self._open(world) < 0.02

    def reward(self, world: World) -> float:
        reach = np.linalg.norm(world.tip_pose()[0] - world.site("handle_" + self._chosen))
        return float(0.3 * np.exp(-5.0 * reach) + 0.7 * (1.0 - np.clip(self._open(world) / DRAWER_TRAVEL, 0, 1)))

    def state(self, world: World) -> np.ndarray:
        handle = world.site("handle_" + self._chosen)
        return np.concatenate([handle, [world.joint("drawer_" + name) for name in DRAWERS]])

    def expert(self, world: World, variation: int) -> Iterator[Waypoint]:
        frame = world.rotation("cabinet")
        outward = -frame[:, 0]
        name = self.variations[variation]
        push = frame @ forward_facing(PITCH[name])
        depth = world.joint("drawer_" + name)
        # On the panel beside the handle: a handle is too thin to push by.
        panel = world.site("handle_" + name) + frame @ np.array([HANDLE_REACH - 0.114, 0.055, 0.0])
        yield Waypoint(above(panel + outward * 0.16, 0.15), push, False)
        yield Waypoint(above(panel + outward * 0.10, 0.03), push)
        yield Waypoint(panel + outward * 0.03, push, speed=0.6)
        for share in np.linspace(0.25, 1.0, 4):
            yield Waypoint(panel - outward * depth * share + outward * 0.004, push, speed=0.4)
