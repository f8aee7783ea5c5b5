from __future__ import annotations

from typing import Iterator

import numpy as np

from ..furniture import zone
from ..scene import TABLE_HEIGHT, block, model_xml
from ..task import COLOURS, TabletopTask, Waypoint, above, scatter, square_grip, turned
from ..world import World
from ..worlds import Array, Worlds

_HALF = 0.022
_BLOCKS = ("block_0", "block_1")
_OTHERS = ("other_0", "other_1")


class StackBlocks(TabletopTask):
    """Stack both blocks of the named colour on the grey square."""

    name = "stack_blocks"
    horizon = 250
    variations = tuple(colour for colour in COLOURS if colour != "white")
    templates = (
        "stack the two {} blocks on the square",
        "place one {} block on the grey plate and the other {} one on top",
        "build a tower of {} cubes",
    )
    graspable = (*_BLOCKS, *_OTHERS)

    def xml(self) -> str:
        blocks = "".join(block(name, _HALF) for name in (*_BLOCKS, *_OTHERS))
        return model_xml(blocks + zone("plate", 0.05, ".55 .56 .58 1"))

    def lay_out(self, world: World, rng: np.random.Generator, variation: int) -> None:
        other = int(rng.choice(np.delete(np.arange(len(self.variations)), variation)))
        places = scatter(rng, 5, (0.1, -0.28), (0.4, 0.28), 0.115)
        world.mount("plate", (*places[0], TABLE_HEIGHT + 0.0008), rng.uniform(-0.5, 0.5))
        for name, place in zip((*_BLOCKS, *_OTHERS), places[1:]):
            world.place(name, (*place, TABLE_HEIGHT + _HALF), rng.uniform(-np.pi / 4, np.pi / 4))
            colour = self.variations[variation if name in _BLOCKS else other]
            world.paint(name, COLOURS[colour])

    def _stacked(self, worlds: Worlds) -> Array:
        """Return 0, 0.5 or 1: nothing, a block on the plate, a tower."""
        blocks, plate = worlds.position(_BLOCKS), worlds.position("plate")
        first = blocks[:, :, 2].argmin(1)
        lower, upper = worlds.pick(blocks, first), worlds.pick(blocks, 1 - first)
        on_plate = (abs(lower - plate)[:, :2] < 0.05).all(1) & (lower[:, 2] < TABLE_HEIGHT + 1.5 * _HALF)
        aside, above_it = worlds.distance(lower[:, :2], upper[:, :2]), upper[:, 2] - lower[:, 2]
        on_top = (aside < 1.2 * _HALF) & (abs(above_it - 2 * _HALF) < 0.006)
        return 0.5 * on_plate + 0.5 * (on_plate & on_top)

    def succeeded(self, worlds: Worlds) -> Array:
        return (self._stacked(worlds) == 1.0) & ~worlds.grasped("block_0") & ~worlds.grasped("block_1")

    def progress(self, worlds: Worlds) -> Array:
        return 0.9 * self._stacked(worlds)

    def state(self, worlds: Worlds) -> Array:
        return worlds.xp.concatenate([worlds.position(name) for name in (*_BLOCKS, "plate")], axis=1)

    def expert(self, world: World, variation: int) -> Iterator[Waypoint]:
        plate = world.position("plate")
        for i, name in enumerate(_BLOCKS):
            item, grip = world.position(name), square_grip(world.rotation(name))
            yield Waypoint(above(item, 0.12), grip, True)
            yield Waypoint(above(item, 0.002), grip, speed=0.6)
            yield Waypoint(above(item, 0.002), grip, False)
            yield Waypoint(above(item, 0.16), grip)
            drop = np.array([plate[0], plate[1], TABLE_HEIGHT + _HALF * (1 + 2 * i) + 0.004])
            if i:
                drop[:2] = world.position(_BLOCKS[0])[:2]
            yield Waypoint(above(drop, 0.12), turned(0.0))
            yield Waypoint(drop, turned(0.0), speed=0.4)
            yield Waypoint(drop, turned(0.0), True)
            yield Waypoint(above(drop, 0.12), turned(0.0), speed=0.6)
