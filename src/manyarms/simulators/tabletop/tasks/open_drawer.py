from __future__ import annotations

from typing import Iterator

import numpy as np

from ..furniture import DRAWER_TRAVEL, DRAWERS, cabinet, cabinet_contacts
from ..scene import TABLE_HEIGHT, model_xml
from ..task import TabletopTask, Waypoint, above, forward_facing
from ..world import World

#: How the hand is tilted when it takes a handle: steeply low on the table, where the wrist has no room.
PITCH = {"bottom": 1.15, "middle": 0.95, "top": 0.75}


class OpenDrawer(TabletopTask):
    """Pull one of three drawers open by its handle."""

    name = "open_drawer"
    horizon = 150
    variations = tuple(DRAWERS)
    templates = ("open the {} drawer", "pull the {} drawer out", "grip the {} handle and pull the {} drawer open")
    _chosen = "top"

    def descriptions(self, variation: int) -> list:
        name = self.variations[variation]
        return [template.replace("{}", name) for template in self.templates]

    def xml(self) -> str:
        return model_xml(cabinet(), rest=cabinet_contacts())

    def lay_out(self, world: World, rng: np.random.Generator, variation: int) -> None:
        self._chosen = self.variations[variation]
        world.mount(
            "cabinet", (rng.uniform(0.48, 0.54), rng.uniform(-0.12, 0.12), TABLE_HEIGHT), rng.uniform(-0.2, 0.2)
        )

    def _share(self, world: World) -> float:
        return world.joint("drawer_" + self._chosen) / DRAWER_TRAVEL

    def succeeded(self, world: World) -> bool:
        return self._share(world) > 0.7

    def reward(self, world: World) -> float:
        reach = np.linalg.norm(world.tip_pose()[0] - world.site("handle_" + self._chosen))
        return float(0.4 * np.exp(-5.0 * reach) + 0.6 * np.clip(self._share(world) / 0.7, 0, 1))

    def state(self, world: World) -> np.ndarray:
        handle = world.site("handle_" + self._chosen)
        return np.concatenate([handle, [world.joint("drawer_" + name) for name in DRAWERS]])

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
