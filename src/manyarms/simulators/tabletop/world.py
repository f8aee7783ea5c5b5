"""One MuJoCo model and its state, by names: what a task lays out, and what its expert looks at."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple, Union

import numpy as np

from . import panda
from .physics import mujoco
from .scene import PHYSICS_STEPS

#: Everything that the next step depends on.
_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)

#: Fields of the model that an episode may change. Worlds that share a model have a row each of these.
MODEL_FIELDS = ("body_pos", "body_quat", "geom_rgba", "geom_size", "geom_pos", "site_pos", "qpos0")


class Layout(NamedTuple):
    """How an episode begins, as numbers: each a row for a batch of worlds."""

    model: Dict[str, np.ndarray]
    """The model's `MODEL_FIELDS`."""
    qpos: np.ndarray
    ctrl: np.ndarray
    remembered: Dict[str, np.ndarray]
    """What the task passed to `remember`."""


def span(indices: List[int], array: Callable[[List[int]], Any] = np.array) -> Any:
    """Return indices as a slice, which gives views, or as an array, which gives copies, where they do not adjoin."""
    start, stop = indices[0], indices[-1] + 1
    return slice(start, stop) if indices == list(range(start, stop)) else array(indices)


class World:
    """One scene: names to positions, and physics."""

    def __init__(self, xml: str) -> None:
        model = self.model = mujoco.MjModel.from_xml_string(xml)
        self.data = mujoco.MjData(model)
        self.arm_qpos = span([self.qpos_index(name) for name in panda.JOINTS])
        self.arm_dofs = span([int(model.joint(name).dofadr[0]) for name in panda.JOINTS])
        self.finger_qpos = span([self.qpos_index(name) for name in panda.FINGERS])
        self.arm_ctrl = slice(len(panda.JOINTS))
        self.finger_ctrl = slice(len(panda.JOINTS), len(panda.JOINTS) + len(panda.FINGERS))
        self.tip = model.site("tip").id
        self.remembered: Dict[str, np.ndarray] = {}
        """What the episode remembers, each as a row for a batch of worlds."""
        self._fingers = {model.body("panda_%s_finger" % side).id: i for i, side in enumerate(("left", "right"))}
        self._found_contacts: Any = None
        self._fresh = {name: getattr(model, name).copy() for name in MODEL_FIELDS}

    def body_index(self, name: str) -> int:
        return self.model.body(name).id

    def site_index(self, name: str) -> int:
        return self.model.site(name).id

    def qpos_index(self, joint: str) -> int:
        """Return where the numbers of a joint begin in `qpos`."""
        return int(self.model.joint(joint).qposadr[0])

    # -- time ---------------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Go back to how the model was written, arm at home, gripper open."""
        for name, value in self._fresh.items():
            getattr(self.model, name)[:] = value
        self.remembered = {}
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[self.arm_qpos] = panda.HOME
        self.data.ctrl[self.arm_ctrl] = panda.HOME
        self.data.qpos[self.finger_qpos] = panda.FINGER_TRAVEL
        self.data.ctrl[self.finger_ctrl] = panda.FINGER_TRAVEL

    def layout(self) -> Layout:
        """Return what was laid out, as numbers."""
        model = {name: getattr(self.model, name)[None].copy() for name in MODEL_FIELDS}
        return Layout(model, self.data.qpos[None].copy(), self.data.ctrl[None].copy(), dict(self.remembered))

    def forward(self) -> None:
        """Bring everything that follows from the state up to date."""
        mujoco.mj_forward(self.model, self.data)
        self._found_contacts = None

    def advance(self) -> None:
        """Let a control period pass; what follows from the state must be up to date, and is afterwards."""
        # So the first step needs its second half only: what comes of positions and velocities is known.
        mujoco.mj_step2(self.model, self.data)
        mujoco.mj_step(self.model, self.data, nstep=PHYSICS_STEPS - 1)
        self.forward()

    def save(self) -> np.ndarray:
        """Return the whole state of the physics."""
        state = np.empty(mujoco.mj_stateSize(self.model, _STATE))
        mujoco.mj_getState(self.model, self.data, state, _STATE)
        return state

    def load(self, state: np.ndarray) -> None:
        """Go back to a saved state."""
        mujoco.mj_setState(self.model, self.data, np.asarray(state, np.float64), _STATE)
        self.forward()

    # -- the arm ------------------------------------------------------------------------------------------------------

    @property
    def joints(self) -> np.ndarray:
        """Return a copy of the arm's angles."""
        return self.data.qpos[self.arm_qpos].copy()

    def tip_pose(self) -> Tuple[np.ndarray, np.ndarray]:
        """Return position and rotation matrix of the point between the fingertips."""
        return self.data.site_xpos[self.tip].copy(), self.data.site_xmat[self.tip].reshape(3, 3).copy()

    def touch_forces(self) -> np.ndarray:
        """Return what presses on either finger, in newtons: x y z each, in the world's frame."""
        forces, wrench = np.zeros(6), np.zeros(6)
        for i, pair in enumerate(self._contacts()):
            for body, sign in zip(pair, (-1.0, 1.0)):
                side = self._fingers.get(body)
                if side is not None:
                    mujoco.mj_contactForce(self.model, self.data, i, wrench)
                    frame = self.data.contact[i].frame.reshape(3, 3)
                    forces[3 * side : 3 * side + 3] += sign * (frame.T @ wrench[:3])
        return forces

    # -- things -------------------------------------------------------------------------------------------------------

    def position(self, body: str) -> np.ndarray:
        """Return where a body is."""
        return self.data.body(body).xpos.copy()

    def rotation(self, body: str) -> np.ndarray:
        """Return a body's rotation matrix."""
        return self.data.body(body).xmat.reshape(3, 3).copy()

    def site(self, name: str) -> np.ndarray:
        """Return where a site is."""
        return self.data.site(name).xpos.copy()

    def joint(self, name: str) -> float:
        """Return the value of a hinge or slide."""
        return float(self.data.qpos[self.qpos_index(name)])

    def set_joint(self, name: str, value: float) -> None:
        self.data.qpos[self.qpos_index(name)] = value

    def place(self, body: str, position: Sequence[float], yaw: float = 0.0) -> None:
        """Put a free body somewhere."""
        start = self.qpos_index(body)
        self.data.qpos[start : start + 7] = (*position, np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2))

    def mount(self, body: str, position: Union[Sequence[float], np.ndarray], yaw: float = 0.0) -> None:
        """Put a body that is fixed to the world somewhere."""
        index = self.body_index(body)
        self.model.body_pos[index] = position
        self.model.body_quat[index] = (np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2))

    def paint(self, geom: str, rgba: Sequence[float]) -> None:
        self.model.geom_rgba[self.model.geom(geom).id] = rgba

    def remember(self, **numbers: Any) -> None:
        """Keep numbers of this episode that stand nowhere in the scene; goals find them in `Worlds.remembered`."""
        self.remembered.update({name: np.asarray(value)[None] for name, value in numbers.items()})

    def touching(self, first: str, second: str) -> bool:
        """Tell whether two bodies are in contact."""
        return _meet(self._contacts(), self.body_index(first), self.body_index(second))

    def grasped(self, body: str) -> bool:
        """Tell whether both fingers hold a body."""
        contacts, index = self._contacts(), self.body_index(body)
        return all(_meet(contacts, index, finger) for finger in self._fingers)

    def _contacts(self) -> List[List[int]]:
        """Return the two bodies of every contact."""
        found = self._found_contacts
        if found is None:
            geoms = self.data.contact.geom[: self.data.ncon]
            found = self._found_contacts = self.model.geom_bodyid[geoms].tolist()
        return found


def _meet(contacts: List[List[int]], first: int, second: int) -> bool:
    return [first, second] in contacts or [second, first] in contacts


def quat_to_matrix(xyzw: Union[Sequence[float], np.ndarray]) -> np.ndarray:
    """Return the rotation of a quaternion in RLBench's order, x y z w."""
    out = np.empty(9)
    mujoco.mju_quat2Mat(out, np.array([xyzw[3], xyzw[0], xyzw[1], xyzw[2]], np.float64))
    return out.reshape(3, 3)


def matrix_to_quat(matrix: np.ndarray) -> np.ndarray:
    """Return a rotation as a quaternion x y z w."""
    out = np.empty(4)
    mujoco.mju_mat2Quat(out, np.ascontiguousarray(matrix, np.float64).reshape(9))
    return np.array([out[1], out[2], out[3], out[0]])


def rotation_vector(matrix: np.ndarray) -> np.ndarray:
    """Return axis times angle."""
    quat, out = np.empty(4), np.empty(3)
    mujoco.mju_mat2Quat(quat, matrix.reshape(9))
    mujoco.mju_quat2Vel(out, quat, 1.0)
    return out


def rotation_matrix(vector: np.ndarray) -> np.ndarray:
    """Return the rotation that an axis times an angle stands for."""
    angle = math.sqrt(vector @ vector)
    if angle <= 1e-9:
        return np.eye(3)
    axis, half = vector / angle, angle / 2
    return quat_to_matrix([*(axis * np.sin(half)), np.cos(half)])


__all__ = [
    "MODEL_FIELDS",
    "Layout",
    "World",
    "matrix_to_quat",
    "quat_to_matrix",
    "rotation_matrix",
    "rotation_vector",
    "span",
]
