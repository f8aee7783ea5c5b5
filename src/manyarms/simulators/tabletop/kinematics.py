"""From poses of the tip to joint angles."""

from __future__ import annotations

from typing import Iterator, Tuple

import numpy as np

from . import panda
from .worlds import Array, Worlds

LOW = np.array([low for low, _ in panda.JOINT_LIMITS])
HIGH = np.array([high for _, high in panda.JOINT_LIMITS])

_POSITION_TOLERANCE = 1e-3
_ROTATION_TOLERANCE = 5e-3
_DAMPING = 0.03
_LONGEST_STEP = 0.25
_ITERATIONS = 60
_SMALL_MOVE_ITERATIONS = 2

#: Other postures to begin from: the arm's joints, of which the first turns towards the goal.
_POSTURES = (
    (0.0, 0.4, 0.0, -1.9, 0.0, 2.3, 0.785),
    (0.0, -0.4, 0.0, -2.4, 0.0, 3.2, 0.785),
    (0.0, -0.4, 0.0, -2.4, 0.0, 2.0, -0.785),
)


class Kinematics:
    """Solves for every world of a batch; the worlds stay as they are."""

    def __init__(self, worlds: Worlds) -> None:
        self._worlds = worlds
        # With an axis for the worlds: on few numbers, numpy is slower where it has to add one.
        self._low, self._high, self._home = worlds.array([LOW]), worlds.array([HIGH]), worlds.array([panda.HOME])
        self._postures = worlds.array(_POSTURES)
        self._damping = worlds.array([_DAMPING**2 * np.eye(6)])
        self._longest_step, self._longest_rest = worlds.array([[_LONGEST_STEP]]), worlds.array([[0.1]])

    def solve(self, position: Array, rotation: Array, guess: Array) -> Tuple[Array, Array]:
        """Return joints [N, 7] that bring the tip to a pose, near `guess`, and for which worlds there are such [N]."""
        xp, worlds = self._worlds.xp, self._worlds
        joints, solved = guess, None
        for start in self._starts(position, guess):
            found, near = self._descend(position, rotation, worlds.clip(start, self._low, self._high), _ITERATIONS)
            joints = found if solved is None else xp.where(solved, joints, found)
            solved = near if solved is None else solved | near
            if worlds.all_set(solved):
                break
        assert solved is not None
        return joints, solved[:, 0]

    def approach(self, position: Array, rotation: Array) -> Array:
        """Return joints that bring the tip nearer to a pose, as near as a few iterations do: [N, 7]."""
        return self._descend(position, rotation, self._worlds.joints, _SMALL_MOVE_ITERATIONS)[0]

    def _starts(self, position: Array, guess: Array) -> Iterator[Array]:
        xp = self._worlds.xp
        yield guess
        yield xp.zeros_like(guess) + self._home
        bearing = xp.arctan2(position[:, 1], position[:, 0] + 0.3)
        for posture in self._postures:
            start = xp.zeros_like(guess) + posture
            start[:, 0] = bearing
            yield start

    def _descend(self, position: Array, rotation: Array, joints: Array, iterations: int) -> Tuple[Array, Array]:
        """Follow the damped Jacobian downhill; return joints, and which came near the goal [N, 1]."""
        xp, worlds = self._worlds.xp, self._worlds
        near = None
        for _ in range(iterations):
            tip_position, tip_rotation, jacobian = worlds.tip_at(joints)
            turn = worlds.rotation_vector(rotation @ tip_rotation.swapaxes(1, 2))
            error = xp.concatenate([position - tip_position, turn], axis=1)
            # Running sums of squares: after three numbers the distance, after six the whole error.
            squares = (error * error).cumsum(1)
            distance, whole = squares[:, 2:3], squares[:, 5:6]
            near = (distance < _POSITION_TOLERANCE**2) & (whole - distance < _ROTATION_TOLERANCE**2)
            if worlds.all_set(near):
                break
            # What is left of the arm's freedom keeps it away from its limits, while there is some way to go.
            rest = xp.minimum(xp.sqrt(whole), self._longest_rest) * (self._home - joints)
            # Δq = rest + Jᵀ (J Jᵀ + λ² I)⁻¹ (error - J rest)
            transposed = jacobian.swapaxes(1, 2)
            missing = error[:, :, None] - jacobian @ rest[:, :, None]
            solution = worlds.solve(jacobian @ transposed + self._damping, missing)
            change = rest + (transposed @ solution)[:, :, 0]
            step = change * (self._longest_step / xp.maximum(worlds.largest(abs(change)), self._longest_step))
            joints = xp.where(near, joints, worlds.clip(joints + step, self._low, self._high))
        return joints, near
