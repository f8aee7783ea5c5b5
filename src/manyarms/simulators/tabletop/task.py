"""What a task is: a scene, a way to lay it out at random, a goal, and way points for the expert.

A task is one file in `tasks/` with one class, or a class elsewhere that is named by an import string; nothing else has
to know of it.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Type

import numpy as np

from ...plugins import import_object, is_import_string
from ..base import SpecError, UnknownTask
from ..choices import snake_case
from .world import World
from .worlds import Array, Twins, Worlds

#: The tip's rotation when the fingers point down.
DOWN = np.array([[1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, -1.0]])

COLOURS: Dict[str, Tuple[float, float, float, float]] = {
    "red": (0.85, 0.15, 0.15, 1),
    "green": (0.15, 0.62, 0.25, 1),
    "blue": (0.15, 0.35, 0.85, 1),
    "yellow": (0.95, 0.80, 0.15, 1),
    "purple": (0.55, 0.25, 0.75, 1),
    "orange": (0.95, 0.50, 0.10, 1),
    "cyan": (0.10, 0.70, 0.75, 1),
    "white": (0.95, 0.95, 0.95, 1),
}


class Waypoint(NamedTuple):
    """A pose the expert moves the tip to, and what the gripper does there."""

    position: np.ndarray
    rotation: np.ndarray = DOWN
    opened: Optional[bool] = None
    """True, False, or as it is."""
    speed: float = 1.0
    """Fraction of the usual pace; slow for contact."""


class TabletopTask(ABC):
    """One task. Subclasses say what is in the scene and when it is solved."""

    name = ""
    horizon = 200
    """Control steps after which an episode has failed."""
    variations: Sequence[str] = ("",)
    """What differs between them, as it reads in the descriptions."""
    templates: Sequence[str] = ()
    """Descriptions; ``{}`` stands for the variation."""
    view = "front"
    """The camera that shows most of it, for pictures and films."""
    graspable: Sequence[str] = ()
    """Free bodies the gripper may carry."""

    @abstractmethod
    def xml(self) -> str:
        """Return the whole model."""

    @abstractmethod
    def lay_out(self, world: World, rng: np.random.Generator, variation: int) -> None:
        """Place everything for a new episode of one world."""

    @abstractmethod
    def succeeded(self, worlds: Worlds) -> Array:
        """Tell which worlds have reached their goal: [N]."""

    def progress(self, worlds: Worlds) -> Array:
        """Return how far each world has come towards its goal, 0 to 1: [N]; optional, for shaped rewards."""
        return worlds.xp.where(self.succeeded(worlds), 1.0, 0.0)

    @abstractmethod
    def state(self, worlds: Worlds) -> Array:
        """Return what an expert needs to know, positions of things and goals: [N, K]."""

    @abstractmethod
    def expert(self, world: World, variation: int) -> Iterator[Waypoint]:
        """Yield way points of one world; each is asked for when the one before is reached, to look at it again."""

    def descriptions(self, variation: int) -> List[str]:
        """Return several ways to say what is to be done."""
        return [template.replace("{}", self.variations[variation]) for template in self.templates]

    def all_descriptions(self) -> Tuple[str, ...]:
        """Return the descriptions of every variation, each once."""
        found = [text for i in range(len(self.variations)) for text in self.descriptions(i)]
        return tuple(dict.fromkeys(found))


def begin(task: TabletopTask, world: World, episode: int, variation: Optional[int] = None) -> int:
    """Lay out the episode of a number, the same in any process; return its variation, drawn unless it is given."""
    rng = np.random.default_rng(episode)
    drawn = int(rng.integers(len(task.variations)))
    played = drawn if variation is None else variation
    if not 0 <= played < len(task.variations):
        raise SpecError("%s has variations 0 to %d" % (task.name, len(task.variations) - 1))
    world.restart()
    world.remember(variation=played)
    task.lay_out(world, rng, played)
    world.forward()
    return played


def check_rows(task: TabletopTask, world: World) -> None:
    """Refuse a task that answers for one world only, such as one written before there were `Worlds`."""
    twins = Twins(world)
    for name, axes in (("succeeded", 1), ("progress", 1), ("state", 2)):
        what = "%s.%s() gets worlds as arrays with a row per world, and returns a row for each" % (task.name, name)
        try:
            shape = np.shape(getattr(task, name)(twins))
        except Exception as error:
            raise SpecError("%s: with two worlds it raised %r (docs/add/task.md)" % (what, error)) from error
        if len(shape) != axes or shape[0] != 2:
            raise SpecError("%s: of two worlds it returned the shape %s (docs/add/task.md)" % (what, shape))


@lru_cache(maxsize=1)
def discover() -> Dict[str, Type[TabletopTask]]:
    """Return all tasks of ours by name."""
    from . import tasks

    found: Dict[str, Type[TabletopTask]] = {}
    for module in sorted(pkgutil.iter_modules(tasks.__path__), key=lambda m: m.name):
        loaded = importlib.import_module(tasks.__name__ + "." + module.name)
        for value in vars(loaded).values():
            if isinstance(value, type) and issubclass(value, TabletopTask) and value.__module__ == loaded.__name__:
                found[value.name] = value
    return found


def find(name: str) -> Type[TabletopTask]:
    """Return a task by its name, in either spelling, or by an import string (``package.module:Class``)."""
    if is_import_string(name):
        task = import_object(name)
        if not (isinstance(task, type) and issubclass(task, TabletopTask) and task.name):
            raise SpecError("%s is not a TabletopTask with a name" % name)
        return task
    known, found = discover(), snake_case(name)
    if found not in known:
        raise UnknownTask(name, list(known))
    return known[found]


def turned(yaw: float, base: np.ndarray = DOWN) -> np.ndarray:
    """Return a rotation of the tip, turned about the vertical."""
    cos, sin = np.cos(yaw), np.sin(yaw)
    return np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]]) @ base


def above(position: np.ndarray, height: float) -> np.ndarray:
    """Return the point so much higher."""
    return position + np.array([0.0, 0.0, height])


def square_grip(frame: np.ndarray) -> np.ndarray:
    """Return the rotation from above that takes a thing with four equal sides by the nearest two of them."""
    yaw = float(np.arctan2(frame[1, 0], frame[0, 0]))
    return turned((yaw + np.pi / 4) % (np.pi / 2) - np.pi / 4)


def forward_facing(pitch: float = 0.0) -> np.ndarray:
    """Return a rotation of the tip that points away from the robot, tilted down by `pitch`; fingers close sideways."""
    direction = np.array([np.cos(pitch), 0.0, -np.sin(pitch)])
    side = np.array([0.0, 1.0, 0.0])
    return np.stack([np.cross(side, direction), side, direction], axis=1)


def scatter(
    rng: np.random.Generator, count: int, low: Sequence[float], high: Sequence[float], apart: float
) -> List[np.ndarray]:
    """Return places on the table that keep a distance from each other."""
    places: List[np.ndarray] = []
    for _ in range(10_000):
        place = rng.uniform(low, high)
        if all(np.linalg.norm(place - other) >= apart for other in places):
            places.append(place)
            if len(places) == count:
                return places
    raise ValueError("%d things do not fit %g m apart" % (count, apart))
