from __future__ import annotations

from typing import Iterator

import numpy as np

from ..furniture import DRAWER_TRAVEL, cabinet, cabinet_contacts
from ..scene import TABLE_HEIGHT, block, model_xml
from ..task import COLOURS, TabletopTask, Waypoint, above, square_grip, turned
from ..world import World

_HALF = 0.02


class PutItemInDrawer(TabletopTask):
    """Put the cube into the drawer that stands open."""

    name = "put_item_in_drawer"
    horizon = 200
    view = "left_shoulder"
    variations = tuple(COLOURS)
    templates = (
        "put the {} item in the drawer",
        "pick up the {} block and drop it into the open drawer",
        "place the {} cube in the top drawer",
    )
    graspable = ("item",)

    def xml(self) -> str:
        return model_xml(cabinet() + block("item", _HALF), rest=cabinet_contacts())

    def lay_out(self, world: World, rng: np.random.Generator, variation: int) -> None:
        side = rng.choice([-1.0, 1.0])
        world.mount("cabinet", (rng.uniform(0.47, 0.52), -side * 0.12, TABLE_HEIGHT), rng.uniform(-0.1, 0.1))
        world.set_joint("drawer_top", 0.95 * DRAWER_TRAVEL)
        place = (rng.uniform(0.08, 0.25), side * rng.uniform(0.18, 0.3), TABLE_HEIGHT + _HALF)
        world.place("item", place, rng.uniform(-np.pi / 4, np.pi / 4))
        world.paint("item", list(COLOURS.values())[variation])

    def _offset(self, world: World) -> np.ndarray:
        drawer = world.rotation("drawer_top")
        return drawer.T @ (world.position("item") - world.position("drawer_top"))

    def succeeded(self, world: World) -> bool:
        x, y, z = self._offset(world)
        return bool(abs(x) < 0.1 and abs(y) < 0.11 and -0.04 < z < 0.035) and not world.grasped("item")

    def progress(self, world: World) -> float:
        reach = np.linalg.norm(world.tip_pose()[0] - world.position("item"))
        return float(0.4 * np.exp(-5.0 * reach) + 0.6 * np.exp(-5.0 * np.linalg.norm(self._offset(world))))

    def state(self, world: World) -> np.ndarray:
        return np.concatenate([world.position("item"), world.position("drawer_top"), [world.joint("drawer_top")]])

    def expert(self, world: World, variation: int) -> Iterator[Waypoint]:
        item, grip = world.position("item"), square_grip(world.rotation("item"))
        yield Waypoint(above(item, 0.12), grip, True)
        yield Waypoint(above(item, 0.002), grip, speed=0.6)
        yield Waypoint(above(item, 0.002), grip, False)
        drawer = world.position("drawer_top") + world.rotation("drawer_top") @ np.array([-0.03, 0.0, 0.0])
        yield Waypoint(np.array([item[0], item[1], drawer[2] + 0.16]), grip)
        yield Waypoint(above(drawer, 0.16), turned(0.0))
        yield Waypoint(above(drawer, 0.05), turned(0.0), speed=0.6)
        yield Waypoint(above(drawer, 0.05), turned(0.0), True)
        yield Waypoint(above(drawer, 0.16), turned(0.0))
