"""A scripted policy from ground truth: grasp each thing from above and let it fall into the basket."""

from __future__ import annotations

from typing import Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from ..base import SpecError
from .scene import Scene

#: What an action of 1 moves the goal by: metres, radians.
_REACH, _TURN = 0.05, 0.5

_NEAR, _ALIGNED = 0.008, 0.06
_PATIENCE = 40
_GRIP_STEPS = 12

#: The arm comes to a way point with momentum, and beside a thing there may be another.
_SETTLE_STEPS = 6

#: How deep below its top a thing is held, and how far above its foot at least.
_DEPTH, _CLEARANCE = 0.03, 0.012
_ABOVE = 0.14

#: Radians of turning that are worth a metre less between the fingers.
_LAZINESS = 0.01


class Waypoint(NamedTuple):
    """Where the gripper is to go, and what it does there."""

    position: np.ndarray
    rotation: np.ndarray
    closed: bool
    steps: int = 0
    """How long it stays."""


class Expert:
    """Solves one episode; a thing that slips is fetched again."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._things = [goal[1] for goal in scene.goal]
        baskets = {goal[2] for goal in scene.goal if goal[0] == "in" and len(goal) == 3 and "basket" in goal[2]}
        if len(baskets) != 1 or any(goal[0] != "in" for goal in scene.goal):
            raise SpecError(
                "the expert of LIBERO only fills baskets, as in libero_object; %s is another kind of task"
                % scene.task.name
            )
        self._basket = baskets.pop()
        self._waypoints: Iterator[Waypoint] = iter(())
        self._current: Optional[Waypoint] = None
        self._spent = self._stayed = 0

    def act(self) -> np.ndarray:
        """Return the next action."""
        position, rotation = self._scene.tip()
        while self._current is None or self._is_done(self._current, position, rotation):
            self._current = next(self._waypoints, None)
            self._spent = self._stayed = 0
            if self._current is None:
                self._waypoints = iter(self._plan(position, rotation))
        self._spent += 1
        waypoint = self._current
        move = (waypoint.position - position) / _REACH
        turn = _turn_between(rotation, waypoint.rotation) / _TURN
        limit = max(1.0, float(np.abs(move).max()))
        action = np.concatenate([move / limit, np.clip(turn, -1.0, 1.0), [1.0 if waypoint.closed else -1.0]])
        return action.astype(np.float32)

    def _is_done(self, waypoint: Waypoint, position: np.ndarray, rotation: np.ndarray) -> bool:
        away = float(np.linalg.norm(waypoint.position - position))
        turned = float(np.linalg.norm(_turn_between(rotation, waypoint.rotation)))
        if (away > _NEAR or turned > _ALIGNED) and self._spent < _PATIENCE:
            return False
        self._stayed += 1
        return self._stayed > waypoint.steps

    def _plan(self, position: np.ndarray, rotation: np.ndarray) -> List[Waypoint]:
        """Fetch the first thing that is not where it belongs."""
        left = [thing for goal, thing in zip(self._scene.goal, self._things) if not self._scene.holds(goal)]
        if not left:
            return [Waypoint(position, rotation, closed=False, steps=1)]
        low, high, yaw, middle = self._measure(left[0], rotation)
        grip = _downward(yaw)
        at = np.array([*middle, max(low + _CLEARANCE, high - _DEPTH)])
        basket, rim = self._scene.site(self._basket)
        over = np.array([*basket[:2], rim + (at[2] - low) + 0.06])
        above = np.array([*at[:2], at[2] + _ABOVE])
        lifted = np.array([*at[:2], over[2]])
        return [
            Waypoint(above, grip, closed=False, steps=_SETTLE_STEPS),
            Waypoint(at, grip, closed=False),
            Waypoint(at, grip, closed=True, steps=_GRIP_STEPS),
            Waypoint(lifted, grip, closed=True),
            Waypoint(over, grip, closed=True),
            Waypoint(over, grip, closed=False, steps=_GRIP_STEPS),
        ]

    def _measure(self, thing: str, rotation: np.ndarray) -> Tuple[float, float, float, np.ndarray]:
        """Return a thing's foot and top, how to turn the fingers to its narrow side, and its middle from above."""
        corners = self._scene.corners(thing)
        now = float(np.arctan2(rotation[1, 0], rotation[0, 0]))  # the fingers open along the first axis
        turns = np.linspace(-np.pi / 2, np.pi / 2, 37)
        directions = np.stack([np.cos(now + turns), np.sin(now + turns)])
        widths = np.ptp(corners[:, :2] @ directions, axis=0)
        best = int(np.argmin(widths + _LAZINESS * np.abs(turns)))
        middle = (corners.max(0) + corners.min(0))[:2] / 2
        return float(corners[:, 2].min()), float(corners[:, 2].max()), now + float(turns[best]), middle


def _downward(yaw: float) -> np.ndarray:
    """Return the rotation of a gripper that points down and opens along a direction."""
    c, s = float(np.cos(yaw)), float(np.sin(yaw))
    opening, down = np.array([c, s, 0.0]), np.array([0.0, 0.0, -1.0])
    return np.stack([opening, np.cross(down, opening), down], axis=1)


def _turn_between(rotation: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Return the axis from one rotation to another, as long as the angle between them."""
    axis = 0.5 * np.cross(rotation, goal, axis=0).sum(axis=1)  # sin θ times the axis
    sine, cosine = float(np.linalg.norm(axis)), (float(np.trace(goal @ rotation.T)) - 1.0) / 2.0
    return axis * (float(np.arctan2(sine, cosine)) / sine) if sine > 1e-9 else axis
