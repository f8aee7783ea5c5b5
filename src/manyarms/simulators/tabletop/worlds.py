"""Worlds of one scene as arrays with one row per world: what goals, observations and action modes are written over.

They are written once, for any number of worlds. The simulator on the CPU has batches of one (`BatchOfOne`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

import numpy as np

from . import panda
from .physics import mujoco
from .world import World, matrix_to_quat, quat_to_matrix, rotation_matrix, rotation_vector, span

#: An array of `Worlds.xp`, with a row per world.
Array = Any

#: The arrays that every batch has, by MuJoCo's names.
STATE = ("qpos", "qvel", "ctrl", "qfrc_actuator", "xpos", "xmat", "site_xpos", "site_xmat")

#: One name, or several: an array gets an axis for them, after that of the worlds.
Names = Union[str, Tuple[str, ...]]


class _Indices(Dict[Names, Any]):
    """Where things lie in an array: a number for a name, a slice or an array of numbers for several."""

    def __init__(self, find: Callable[[str], int], array: Callable[[List[int]], Array]) -> None:
        super().__init__()
        self._find = find
        self._array = array

    def __missing__(self, names: Names) -> Any:
        several = not isinstance(names, str)
        self[names] = span([self._find(name) for name in names], self._array) if several else self._find(names)
        return self[names]


class Worlds(ABC):
    """Worlds of one scene, each in an episode of its own.

    Arrays belong to `xp`, which is numpy here and torch where the physics runs on a GPU. Use what both have:
    operators, `abs`, and `xp.where`, `clip`, `exp`, `stack`, `concatenate`, `linalg.norm`, with `axis=`.
    """

    xp: Any = np
    rows: Array
    """The numbers of the worlds, from 0 on: [N]."""
    qpos: Array
    """State and what follows from it, by MuJoCo's names: [N, …]."""
    qvel: Array
    ctrl: Array
    qfrc_actuator: Array
    xpos: Array
    xmat: Array
    """Rotations are matrices: [N, bodies, 3, 3]."""
    site_xpos: Array
    site_xmat: Array

    def __init__(self, scene: World) -> None:
        """Take names and places from `scene`."""
        self.arm_qpos, self.arm_dofs, self.arm_ctrl = scene.arm_qpos, scene.arm_dofs, scene.arm_ctrl
        self.finger_qpos, self.finger_ctrl, self.tip = scene.finger_qpos, scene.finger_ctrl, scene.tip
        self._bodies = _Indices(scene.body_index, self.integers)
        self._sites = _Indices(scene.site_index, self.integers)
        self._joints = _Indices(scene.qpos_index, self.integers)
        self._closed_and_open = self.array([0.0]), self.array([1.0])

    # -- things -------------------------------------------------------------------------------------------------------

    def position(self, body: Names) -> Array:
        """Return where a body is: [N, 3], or [N, K, 3] for K names."""
        return self.xpos[:, self._bodies[body]]

    def rotation(self, body: Names) -> Array:
        """Return the rotation matrix of a body: [N, 3, 3], or [N, K, 3, 3]."""
        return self.xmat[:, self._bodies[body]]

    def site(self, name: Names) -> Array:
        """Return where a site is: [N, 3], or [N, K, 3]."""
        return self.site_xpos[:, self._sites[name]]

    def joint(self, name: Names) -> Array:
        """Return the value of a hinge or slide: [N], or [N, K]."""
        return self.qpos[:, self._joints[name]]

    def grasped(self, body: str) -> Array:
        """Tell whether both fingers hold a body: [N]."""
        return self.touching(body, "panda_left_finger") & self.touching(body, "panda_right_finger")

    @abstractmethod
    def touching(self, first: str, second: str) -> Array:
        """Tell whether two bodies are in contact: [N]."""

    def distance(self, first: Array, second: Array) -> Array:
        """Return how far points are apart: [N, …, 3] and the same to [N, …]."""
        between = first - second
        return self.xp.sqrt((between * between).sum(-1))

    # -- episodes -----------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def remembered(self) -> Mapping[str, Array]:
        """Return what `lay_out` passed to `World.remember`, by name: [N, …]."""

    @property
    def variation(self) -> Array:
        """Return which variation each world plays: [N]."""
        return self.remembered["variation"]

    def pick(self, values: Array, index: Array) -> Array:
        """Return of `values` [N, K, …] the one of each world's `index` [N]."""
        return values[self.rows, index]

    # -- the arm ------------------------------------------------------------------------------------------------------

    @property
    def joints(self) -> Array:
        """Return the arm's angles: [N, 7]."""
        return self.qpos[:, self.arm_qpos]

    def tip_position(self) -> Array:
        """Return where the point between the fingertips is: [N, 3]."""
        return self.site_xpos[:, self.tip]

    def tip_rotation(self) -> Array:
        """Return the hand's rotation matrix: [N, 3, 3]."""
        return self.site_xmat[:, self.tip]

    def openness(self) -> Array:
        """Return how far the gripper is open, 0 to 1: [N]."""
        travelled = self.qpos[:, self.finger_qpos].sum(1) / 2
        return self.clip(travelled / panda.FINGER_TRAVEL, *self._closed_and_open)

    @abstractmethod
    def touch_forces(self) -> Array:
        """Return what presses on either finger, in newtons: x y z each, in the world's frame: [N, 6]."""

    @abstractmethod
    def tip_at(self, joints: Array) -> Tuple[Array, Array, Array]:
        """Return position [N, 3], rotation [N, 3, 3] and Jacobian [N, 6, 7] of the tip, were the arm at `joints`."""

    @abstractmethod
    def advance(self, busy: Optional[Array] = None) -> None:
        """Let a control period pass in the worlds that are `busy` [N], or in all; the others stay as they are."""

    # -- what numpy and torch do not have alike -----------------------------------------------------------------------

    def clip(self, values: Array, low: Array, high: Array) -> Array:
        """Return values within bounds that are arrays; on few numbers, `numpy.clip` takes twice as long."""
        return self.xp.minimum(self.xp.maximum(values, low), high)

    @abstractmethod
    def solve(self, matrices: Array, columns: Array) -> Array:
        """Solve linear equations without waiting for a device: [N, K, K] and [N, K, 1] to [N, K, 1]."""

    @abstractmethod
    def largest(self, values: Array) -> Array:
        """Return the largest of each row: [N, K] to [N, 1]."""

    @abstractmethod
    def copy(self, array: Array) -> Array:
        """Return numbers that stay as they are when the world goes on."""

    @abstractmethod
    def array(self, values: Any) -> Array:
        """Return numbers as an array of the kind that `qpos` is."""

    @abstractmethod
    def integers(self, values: Any) -> Array:
        """Return whole numbers as an array to index with."""

    @abstractmethod
    def all_set(self, mask: Array) -> bool:
        """Tell whether a mask holds for every world; False where a device would have to be waited for.

        So it can end a loop early, and nothing else.
        """

    @abstractmethod
    def quat_to_matrix(self, quats: Array) -> Array:
        """Return the rotations of quaternions x y z w: [N, 4] to [N, 3, 3]."""

    @abstractmethod
    def matrix_to_quat(self, matrices: Array) -> Array:
        """Return rotations as quaternions x y z w: [N, 3, 3] to [N, 4]."""

    @abstractmethod
    def rotation_matrix(self, vectors: Array) -> Array:
        """Return the rotations that axes times angles stand for: [N, 3] to [N, 3, 3]."""

    @abstractmethod
    def rotation_vector(self, matrices: Array) -> Array:
        """Return rotations as axis times angle: [N, 3, 3] to [N, 3]."""


class BatchOfOne(Worlds):
    """A world on the CPU as a batch of one; its arrays are the world's own memory."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        data, bodies, sites = world.data, world.model.nbody, world.model.nsite
        self._world = world
        self.rows = np.arange(1)
        self.qpos, self.qvel, self.ctrl = data.qpos[None], data.qvel[None], data.ctrl[None]
        self.qfrc_actuator = data.qfrc_actuator[None]
        self.xpos, self.xmat = data.xpos[None], data.xmat.reshape(1, bodies, 3, 3)
        self.site_xpos, self.site_xmat = data.site_xpos[None], data.site_xmat.reshape(1, sites, 3, 3)
        # The same arm, to be put where it is not.
        scratch = self._scratch = mujoco.MjData(world.model)
        self._jacobian = np.zeros((6, world.model.nv))
        self._halves = self._jacobian[:3], self._jacobian[3:]
        self._scratch_tip = scratch.site_xpos[self.tip][None], scratch.site_xmat[self.tip].reshape(1, 3, 3)

    @property
    def remembered(self) -> Mapping[str, Array]:
        return self._world.remembered

    def pick(self, values: Array, index: Array) -> Array:
        return values[:, index[0]]  # a view, where the general way copies

    def grasped(self, body: str) -> Array:
        return np.array([self._world.grasped(body)])

    def touching(self, first: str, second: str) -> Array:
        return np.array([self._world.touching(first, second)])

    def touch_forces(self) -> Array:
        return self._world.touch_forces()[None]

    def tip_at(self, joints: Array) -> Tuple[Array, Array, Array]:
        model, scratch = self._world.model, self._scratch
        qpos = scratch.qpos
        qpos[:] = self.qpos[0]
        qpos[self.arm_qpos] = joints[0]
        mujoco.mj_kinematics(model, scratch)
        mujoco.mj_comPos(model, scratch)
        mujoco.mj_jacSite(model, scratch, *self._halves, self.tip)
        return (*self._scratch_tip, self._jacobian.T[self.arm_dofs].copy().T[None])

    def advance(self, busy: Optional[Array] = None) -> None:
        if busy is None or busy.item():
            self._world.advance()

    def solve(self, matrices: Array, columns: Array) -> Array:
        return np.linalg.solve(matrices, columns)

    def largest(self, values: Array) -> Array:
        return values.max(1, keepdims=True)

    def copy(self, array: Array) -> Array:
        return array.copy()

    def array(self, values: Any) -> Array:
        return np.asarray(values, np.float64)

    def integers(self, values: Any) -> Array:
        return np.array(values)

    def all_set(self, mask: Array) -> bool:
        return mask.item()

    def quat_to_matrix(self, quats: Array) -> Array:
        return quat_to_matrix(quats[0])[None]

    def matrix_to_quat(self, matrices: Array) -> Array:
        return matrix_to_quat(matrices[0])[None]

    def rotation_matrix(self, vectors: Array) -> Array:
        return rotation_matrix(vectors[0])[None]

    def rotation_vector(self, matrices: Array) -> Array:
        return rotation_vector(matrices[0])[None]


class Twins(BatchOfOne):
    """A world and its twin: what a task must be able to tell apart from one world alone. Nothing moves in them."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.rows = np.arange(2)
        for name in STATE:
            setattr(self, name, np.repeat(getattr(self, name), 2, axis=0))

    @property
    def remembered(self) -> Mapping[str, Array]:
        return {name: np.repeat(value, 2, axis=0) for name, value in super().remembered.items()}

    def pick(self, values: Array, index: Array) -> Array:
        return Worlds.pick(self, values, index)

    def grasped(self, body: str) -> Array:
        return np.repeat(super().grasped(body), 2)

    def touching(self, first: str, second: str) -> Array:
        return np.repeat(super().touching(first, second), 2)
