"""Paths of the arm that touch nothing, found in one world at a time."""

from __future__ import annotations

from typing import List, Optional, Set

import numpy as np

from .kinematics import HIGH, LOW
from .physics import mujoco
from .world import World

#: Radians between two looks for contacts along a path.
_RESOLUTION = 0.05

_BODIES_OF_THE_ARM = {"panda_link%d" % i for i in range(8)} | {"panda_hand", "panda_left_finger", "panda_right_finger"}


class Planner:
    """Looks for paths on a copy of a world's state; the world stays as it is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._model = world.model
        self._scratch = mujoco.MjData(world.model)
        self._arm = {world.model.body(name).id for name in _BODIES_OF_THE_ARM}
        self.rng = np.random.default_rng(0)
        self.held: List[str] = []
        """Names of the free bodies that are treated as part of the hand."""

    def plan(self, start: np.ndarray, goal: np.ndarray) -> Optional[List[np.ndarray]]:
        """Return way points from `start` to `goal` on which the arm, and what it holds, touches nothing new."""
        ignored = self._contacts(start)
        if self._is_free(start, goal, ignored):
            return [goal]
        if not self._fits(goal, ignored):
            return None
        path = self._grow_trees(start, goal, ignored)
        return None if path is None else self._shorten(path, ignored)

    def _contacts(self, joints: np.ndarray) -> Set[tuple]:
        """Return which pairs of bodies touch, of which one is the arm or held by it."""
        model, data, world = self._model, self._scratch, self._world
        data.qpos[:] = world.data.qpos
        carried = [(name, *self._grip(name)) for name in self.held]
        data.qpos[world.arm_qpos] = joints
        mujoco.mj_kinematics(model, data)
        for name, offset, turn in carried:
            self._carry(name, offset, turn)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_collision(model, data)
        moving = self._arm | {model.body(name).id for name in self.held}
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

    def _fits(self, joints: np.ndarray, ignored: Set[tuple]) -> bool:
        return not self._contacts(joints) - ignored

    def _is_free(self, start: np.ndarray, goal: np.ndarray, ignored: Set[tuple]) -> bool:
        count = max(1, int(np.ceil(np.abs(goal - start).max() / _RESOLUTION)))
        return all(self._fits(start + (goal - start) * i / count, ignored) for i in range(1, count + 1))

    def _grow_trees(self, start: np.ndarray, goal: np.ndarray, ignored: Set[tuple]) -> Optional[List[np.ndarray]]:
        """Grow a tree from either end until they meet (RRT-Connect)."""
        trees = [([start], [-1]), ([goal], [-1])]
        for attempt in range(150):
            (nodes, parents), (others, other_parents) = trees[attempt % 2], trees[1 - attempt % 2]
            sample = self.rng.uniform(LOW, HIGH) if attempt % 5 else 0.5 * (start + goal) + self.rng.normal(0, 0.5, 7)
            new = self._extend(nodes, parents, np.clip(sample, LOW, HIGH), ignored)
            if new is None:
                continue
            met = self._extend(others, other_parents, nodes[new], ignored, greedy=True)
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
            if not self._is_free(nodes[nearest], new, ignored):
                break
            nodes.append(new)
            parents.append(nearest)
            nearest = last = len(nodes) - 1
        return last

    def _shorten(self, path: List[np.ndarray], ignored: Set[tuple]) -> List[np.ndarray]:
        """Cut corners where the straight way is free."""
        for _ in range(40):
            if len(path) < 3:
                break
            first, last = sorted(self.rng.choice(len(path), 2, replace=False).tolist())
            if last - first > 1 and self._is_free(path[first], path[last], ignored):
                path = path[: first + 1] + path[last:]
        return path


def _trace(nodes: List[np.ndarray], parents: List[int], index: int) -> List[np.ndarray]:
    path = []
    while index >= 0:
        path.append(nodes[index])
        index = parents[index]
    return path
