"""From a pose to joint angles, and from joint angles to a path that touches nothing."""

from __future__ import annotations

import math
from typing import List, Optional, Sequence, Set

import numpy as np

from . import panda
from .physics import mujoco
from .world import World, rotation_vector

LOW = np.array([low for low, _ in panda.JOINT_LIMITS])
HIGH = np.array([high for _, high in panda.JOINT_LIMITS])

_MIDDLE = np.array(panda.HOME)

_POSITION_TOLERANCE = 1e-3
_ROTATION_TOLERANCE = 5e-3
_DAMPED = 0.03**2 * np.eye(6)
_LONGEST_STEP = 0.25
_ITERATIONS = 60
_SMALL_MOVE_ITERATIONS = 2

#: Radians between two looks for contacts along a path.
_RESOLUTION = 0.05

_BODIES_OF_THE_ARM = {"panda_link%d" % i for i in range(8)} | {"panda_hand", "panda_left_finger", "panda_right_finger"}


class Kinematics:
    """Solves for a world on a copy of its state, which is left as it is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._model = world.model
        self._scratch = mujoco.MjData(world.model)
        self._jacobian = np.zeros((6, world.model.nv))
        self._reached = np.array(panda.HOME)
        self._arm = {world.model.body(name).id for name in _BODIES_OF_THE_ARM}

    def solve(self, position: np.ndarray, rotation: np.ndarray, guess: np.ndarray) -> Optional[np.ndarray]:
        """Return joint angles that bring the tip to a pose, near `guess`; None when there are none."""
        guesses = [guess, np.array(panda.HOME)]
        bearing = np.arctan2(position[1], position[0] + 0.3)
        for lean, elbow, wrist, roll in ((0.4, -1.9, 2.3, 0.785), (-0.4, -2.4, 3.2, 0.785), (-0.4, -2.4, 2.0, -0.785)):
            guesses.append(np.array([bearing, lean, 0.0, elbow, 0.0, wrist, roll]))
        for start in guesses:
            joints = self._descend(position, rotation, np.clip(start, LOW, HIGH))
            if joints is not None:
                return joints
        return None

    def approach(self, position: np.ndarray, rotation: np.ndarray, guess: np.ndarray) -> np.ndarray:
        """Return joint angles near `guess` that bring the tip nearer to a pose, as near as a few iterations do."""
        self._descend(position, rotation, guess, _SMALL_MOVE_ITERATIONS)
        return self._reached

    def _descend(
        self, position: np.ndarray, rotation: np.ndarray, joints: np.ndarray, iterations: int = _ITERATIONS
    ) -> Optional[np.ndarray]:
        """Follow the damped Jacobian downhill."""
        model, data, world = self._model, self._scratch, self._world
        joints = joints.copy()
        data.qpos[:] = world.data.qpos
        dofs, tip = world.arm_dofs, world.tip
        error = np.empty(6)
        for _ in range(iterations):
            data.qpos[world.arm_qpos] = joints
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            error[:3] = position - data.site_xpos[tip]
            error[3:] = rotation_vector(rotation @ data.site_xmat[tip].reshape(3, 3).T)
            if error[:3] @ error[:3] < _POSITION_TOLERANCE**2 and error[3:] @ error[3:] < _ROTATION_TOLERANCE**2:
                break
            mujoco.mj_jacSite(model, data, self._jacobian[:3], self._jacobian[3:], tip)
            jacobian = self._jacobian[:, dofs]
            # What is left of the arm's freedom keeps it away from its limits, while there is some way to go.
            rest = min(0.1, math.sqrt(error @ error)) * (_MIDDLE - joints)
            # Δq = rest + Jᵀ (J Jᵀ + λ² I)⁻¹ (error - J rest)
            square = jacobian @ jacobian.T + _DAMPED
            change = rest + jacobian.T @ np.linalg.solve(square, error - jacobian @ rest)
            largest = float(np.abs(change).max())
            joints = np.clip(joints + change * min(1.0, _LONGEST_STEP / max(largest, 1e-9)), LOW, HIGH)
        else:
            self._reached = joints
            return None
        self._reached = joints
        return joints

    # -- paths --------------------------------------------------------------------------------------------------------

    def plan(
        self, start: np.ndarray, goal: np.ndarray, rng: np.random.Generator, held: Sequence[str] = ()
    ) -> Optional[List[np.ndarray]]:
        """Return way points from `start` to `goal` on which the arm, and what it holds, touches nothing new."""
        ignored = self._contacts(start, held)
        if self._is_free(start, goal, ignored, held):
            return [goal]
        if not self._fits(goal, ignored, held):
            return None
        path = self._grow_trees(start, goal, ignored, held, rng)
        return None if path is None else self._shorten(path, ignored, held, rng)

    def _contacts(self, joints: np.ndarray, held: Sequence[str]) -> Set[tuple]:
        """Return which pairs of bodies touch, of which one is the arm or held by it."""
        model, data, world = self._model, self._scratch, self._world
        data.qpos[:] = world.data.qpos
        carried = [(name, *self._grip(name)) for name in held]
        data.qpos[world.arm_qpos] = joints
        mujoco.mj_kinematics(model, data)
        for name, offset, turn in carried:
            self._carry(name, offset, turn)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_collision(model, data)
        moving = self._arm | {model.body(name).id for name in held}
        found = set()
        for (first, second), distance in zip(data.contact.geom[: data.ncon].tolist(), data.contact.dist[: data.ncon]):
            pair = tuple(sorted((int(model.geom_bodyid[first]), int(model.geom_bodyid[second]))))
            if distance < 0 and len(moving.intersection(pair)) == 1:
                found.add(pair)
        return found

    def _grip(self, name: str) -> tuple:
        """Return a held body's place as seen from the tip."""
        position, rotation = self._world.tip_pose()
        return (
            rotation.T @ (self._world.position(name) - position),
            rotation.T @ self._world.rotation(name),
        )

    def _carry(self, name: str, offset: np.ndarray, turn: np.ndarray) -> None:
        data, world = self._scratch, self._world
        rotation = data.site_xmat[world.tip].reshape(3, 3)
        start = int(self._model.joint(name).qposadr[0])
        data.qpos[start : start + 3] = data.site_xpos[world.tip] + rotation @ offset
        quat = np.empty(4)
        mujoco.mju_mat2Quat(quat, (rotation @ turn).reshape(9))
        data.qpos[start + 3 : start + 7] = quat

    def _fits(self, joints: np.ndarray, ignored: Set[tuple], held: Sequence[str]) -> bool:
        return not self._contacts(joints, held) - ignored

    def _is_free(self, start: np.ndarray, goal: np.ndarray, ignored: Set[tuple], held: Sequence[str]) -> bool:
        count = max(1, int(np.ceil(np.abs(goal - start).max() / _RESOLUTION)))
        return all(self._fits(start + (goal - start) * i / count, ignored, held) for i in range(1, count + 1))

    def _grow_trees(
        self, start: np.ndarray, goal: np.ndarray, ignored: Set[tuple], held: Sequence[str], rng: np.random.Generator
    ) -> Optional[List[np.ndarray]]:
        """Grow a tree from either end until they meet (RRT-Connect)."""
        trees = [([start], [-1]), ([goal], [-1])]
        for attempt in range(150):
            (nodes, parents), (others, other_parents) = trees[attempt % 2], trees[1 - attempt % 2]
            sample = rng.uniform(LOW, HIGH) if attempt % 5 else 0.5 * (start + goal) + rng.normal(0, 0.5, 7)
            new = self._extend(nodes, parents, np.clip(sample, LOW, HIGH), ignored, held)
            if new is None:
                continue
            met = self._extend(others, other_parents, nodes[new], ignored, held, greedy=True)
            if met is not None and np.allclose(others[met], nodes[new]):
                path = _trace(nodes, parents, new)[::-1] + _trace(others, other_parents, met)[1:]
                return path[1:] if attempt % 2 == 0 else path[::-1][1:]
        return None

    def _extend(
        self,
        nodes: List[np.ndarray],
        parents: List[int],
        target: np.ndarray,
        ignored: Set[tuple],
        held: Sequence[str],
        greedy: bool = False,
    ) -> Optional[int]:
        """Add nodes towards a target; return the last one added."""
        nearest = int(np.argmin([np.linalg.norm(node - target) for node in nodes]))
        last: Optional[int] = None
        for _ in range(20 if greedy else 3):
            away = target - nodes[nearest]
            distance = np.linalg.norm(away)
            if distance < 1e-9:
                return nearest
            new = target if distance < 0.4 else nodes[nearest] + away * (0.4 / distance)
            if not self._is_free(nodes[nearest], new, ignored, held):
                break
            nodes.append(new)
            parents.append(nearest)
            nearest = last = len(nodes) - 1
        return last

    def _shorten(
        self, path: List[np.ndarray], ignored: Set[tuple], held: Sequence[str], rng: np.random.Generator
    ) -> List[np.ndarray]:
        """Cut corners where the straight way is free."""
        for _ in range(40):
            if len(path) < 3:
                break
            first, last = sorted(rng.choice(len(path), 2, replace=False).tolist())
            if last - first > 1 and self._is_free(path[first], path[last], ignored, held):
                path = path[: first + 1] + path[last:]
        return path


def _trace(nodes: List[np.ndarray], parents: List[int], index: int) -> List[np.ndarray]:
    path = []
    while index >= 0:
        path.append(nodes[index])
        index = parents[index]
    return path
