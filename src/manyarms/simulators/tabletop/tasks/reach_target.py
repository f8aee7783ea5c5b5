from __future__ import annotations

from typing import Iterator

import numpy as np

from ..scene import GHOST, TABLE_HEIGHT, model_xml
from ..task import COLOURS, DOWN, TabletopTask, Waypoint, scatter
from ..world import World
from ..worlds import Array, Worlds

_BALLS = ("target", "distractor_0", "distractor_1")


class ReachTarget(TabletopTask):
    """Bring the fingertips to the ball of the named colour."""

    name = "reach_target"
    horizon = 100
    variations = tuple(COLOURS)
    templates = ("reach the {} target", "touch the {} ball with the panda gripper", "move to the {} sphere")

    def __init__(self, radius: float = 0.03) -> None:
        """Call it reached within `radius` of the ball's centre."""
        self.radius = radius

    def xml(self) -> str:
        ball = '<body name="{0}" pos="0.3 0 1"><geom name="{0}" type="sphere" size="0.025" {1}/></body>'
        return model_xml("".join(ball.format(name, GHOST) for name in _BALLS))

    def lay_out(self, world: World, rng: np.random.Generator, variation: int) -> None:
        low, high = (0.1, -0.3, TABLE_HEIGHT + 0.06), (0.42, 0.3, TABLE_HEIGHT + 0.45)
        colours = [variation, *rng.choice(np.delete(np.arange(len(COLOURS)), variation), 2, replace=False)]
        for name, place, colour in zip(_BALLS, scatter(rng, 3, low, high, 0.12), colours):
            world.mount(name, place)
            world.paint(name, list(COLOURS.values())[colour])

    def _distance(self, worlds: Worlds) -> Array:
        return worlds.distance(worlds.tip_position(), worlds.position("target"))

    def succeeded(self, worlds: Worlds) -> Array:
        return self._distance(worlds) < self.radius

    def progress(self, worlds: Worlds) -> Array:
        return worlds.xp.exp(-5.0 * self._distance(worlds))

    def state(self, worlds: Worlds) -> Array:
        return worlds.position("target")

    def expert(self, world: World, variation: int) -> Iterator[Waypoint]:
        yield Waypoint(world.position("target"), DOWN)
