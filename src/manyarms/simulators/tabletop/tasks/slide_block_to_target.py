from __future__ import annotations

from typing import Iterator

import numpy as np

from ..furniture import zone
from ..scene import OBJECT, TABLE_HEIGHT, model_xml
from ..task import COLOURS, TabletopTask, Waypoint, turned
from ..world import World
from ..worlds import Array, Worlds

_HALF = 0.05
_HEIGHT = 0.03
_REACHED = 0.035


class SlideBlockToTarget(TabletopTask):
    """Push a flat block onto the square of the named colour."""

    name = "slide_block_to_target"
    horizon = 150
    variations = tuple(COLOURS)
    templates = ("slide the block to the {} target", "push the block onto the {} square", "move the block to {}")

    def xml(self) -> str:
        block = (
            f'<body name="block" pos="0.3 0 {TABLE_HEIGHT + _HEIGHT}"><freejoint name="block"/><geom name="block" '
            f'type="box" size="{_HALF} {_HALF} {_HEIGHT}" rgba=".45 .3 .2 1" mass="0.2" {OBJECT}/></body>'
        )
        return model_xml(block + zone("target", _HALF + 0.01, ".1 .7 .2 1"))

    def lay_out(self, world: World, rng: np.random.Generator, variation: int) -> None:
        start = np.array([rng.uniform(0.2, 0.34), rng.uniform(-0.1, 0.1)])
        angle, distance = rng.uniform(-np.pi, np.pi), rng.uniform(0.12, 0.17)
        goal = start + distance * np.array([np.cos(angle), np.sin(angle)])
        world.place("block", (*start, TABLE_HEIGHT + _HEIGHT), angle + rng.uniform(-0.15, 0.15))
        world.mount("target", (*goal, TABLE_HEIGHT + 0.0008), angle)
        world.paint("target", list(COLOURS.values())[variation])

    def _distance(self, worlds: Worlds) -> Array:
        return worlds.distance(worlds.position("target")[:, :2], worlds.position("block")[:, :2])

    def succeeded(self, worlds: Worlds) -> Array:
        return self._distance(worlds) < _REACHED

    def progress(self, worlds: Worlds) -> Array:
        xp = worlds.xp
        touch = worlds.distance(worlds.tip_position(), worlds.position("block"))
        return 0.3 * xp.exp(-5.0 * touch) + 0.7 * xp.exp(-8.0 * self._distance(worlds))

    def state(self, worlds: Worlds) -> Array:
        heading = worlds.rotation("block")[:, :2, 0]
        return worlds.xp.concatenate([worlds.position("block"), heading, worlds.position("target")], axis=1)

    def expert(self, world: World, variation: int) -> Iterator[Waypoint]:
        for _ in range(3):
            away = (world.position("target") - world.position("block"))[:2]
            distance = float(np.linalg.norm(away))
            direction = np.append(away / distance, 0.0)
            # Fingers apart, across the way: two points of contact keep the block from turning.
            yaw = float(np.arctan2(direction[1], direction[0]))
            yaw = (yaw + np.pi / 2) % np.pi - np.pi / 2
            grip = turned(yaw)
            behind = world.position("block") - direction * (_HALF * 1.25 + 0.03)
            low = TABLE_HEIGHT + 0.018
            yield Waypoint(np.array([behind[0], behind[1], low + 0.12]), grip, True)
            yield Waypoint(np.array([behind[0], behind[1], low]), grip, speed=0.6)
            end = behind + direction * (distance + 0.015)
            for share in np.linspace(0.25, 1.0, 4):
                ahead = behind + (end - behind) * share
                yield Waypoint(np.array([ahead[0], ahead[1], low]), grip, speed=0.4)
            back = end - direction * 0.05
            yield Waypoint(np.array([back[0], back[1], low]), grip)
            yield Waypoint(np.array([back[0], back[1], low + 0.12]), grip)
