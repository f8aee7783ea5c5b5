from __future__ import annotations

from typing import Iterator

import numpy as np

from ..furniture import DRAWER_TRAVEL, cabinet, cabinet_contacts
from ..scene import TABLE_HEIGHT, block, model_xml
from ..task import COLOURS, TabletopTask, Waypoint, above, square_grip, turned
from ..world import World
from ..worlds import Array, Worlds

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

    def _offset(self, worlds: Worlds) -> Array:
        """Return where the item is, as seen from the drawer: [N, 3]."""
        away = worlds.position("item") - worlds.position("drawer_top")
        return (worlds.rotation("drawer_top").swapaxes(1, 2) @ away[:, :, None])[:, :, 0]

    def succeeded(self, worlds: Worlds) -> Array:
        offset = self._offset(worlds)
        x, y, z = offset[:, 0], offset[:, 1], offset[:, 2]
        return (abs(x) < 0.1) & (abs(y) < 0.11) & (z > -0.04) & (z < 0.035) & ~worlds.grasped("item")

    def progress(self, worlds: Worlds) -> Array:
        xp = worlds.xp
        reach = worlds.distance(worlds.tip_position(), worlds.position("item"))
        return 0.4 * xp.exp(-5.0 * reach) + 0.6 * xp.exp(-5.0 * xp.linalg.norm(self._offset(worlds), axis=1))

    def state(self, worlds: Worlds) -> Array:
        places = [worlds.position("item"), worlds.position("drawer_top"), worlds.joint(("drawer_top",))]
        return worlds.xp.concatenate(places, axis=1)

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
