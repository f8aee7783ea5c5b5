"""A MuJoCo model and its state, by names: what tasks and controllers see of the physics."""

from __future__ import annotations

from typing import Dict, Sequence, Tuple, Union

import numpy as np

from . import panda
from .physics import mujoco
from .scene import TIMESTEP

#: Everything that the next step depends on.
_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)


class World:
    """One scene: names to positions, and physics."""

    def __init__(self, xml: str) -> None:
        self.model = mujoco.MjModel.from_xml_string(xml)
        self.data = mujoco.MjData(self.model)
        self.arm_qpos = np.array([self._qpos(name) for name in panda.JOINTS])
        self.arm_dofs = np.array([self._dof(name) for name in panda.JOINTS])
        self.finger_qpos = np.array([self._qpos(name) for name in panda.FINGERS])
        self.arm_ctrl = np.arange(len(panda.JOINTS))
        self.finger_ctrl = np.arange(len(panda.FINGERS)) + len(panda.JOINTS)
        self.tip = self.model.site("tip").id
        self._fresh: Dict[str, np.ndarray] = {
            name: getattr(self.model, name).copy()
            for name in ("body_pos", "body_quat", "geom_rgba", "geom_size", "geom_pos", "site_pos", "qpos0")
        }

    def _qpos(self, joint: str) -> int:
        return int(self.model.joint(joint).qposadr[0])

    def _dof(self, joint: str) -> int:
        return int(self.model.joint(joint).dofadr[0])

    # -- time ---------------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Go back to how the model was written, arm at home, gripper open."""
        for name, value in self._fresh.items():
            getattr(self.model, name)[:] = value
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[self.arm_qpos] = panda.HOME
        self.data.ctrl[self.arm_ctrl] = panda.HOME
        self.data.qpos[self.finger_qpos] = panda.FINGER_TRAVEL
        self.data.ctrl[self.finger_ctrl] = panda.FINGER_TRAVEL

    def forward(self) -> None:
        """Bring everything that follows from the state up to date."""
        mujoco.mj_forward(self.model, self.data)

    def advance(self, seconds: float) -> None:
        """Let time pass; what follows from the state is up to date afterwards, as it is after `load`."""
        mujoco.mj_step(self.model, self.data, nstep=max(1, round(seconds / TIMESTEP)))
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
        return self.data.qpos[self.arm_qpos]

    def tip_pose(self) -> Tuple[np.ndarray, np.ndarray]:
        """Return position and rotation matrix of the point between the fingertips."""
        return self.data.site_xpos[self.tip].copy(), self.data.site_xmat[self.tip].reshape(3, 3).copy()

    def openness(self) -> float:
        """Return how far the gripper is open, 0 to 1."""
        return float(np.clip(self.data.qpos[self.finger_qpos].mean() / panda.FINGER_TRAVEL, 0.0, 1.0))

    def touch_forces(self) -> np.ndarray:
        """Return what presses on either finger, in newtons: x y z each, in the world's frame."""
        forces, wrench = np.zeros(6), np.zeros(6)
        fingers = {self.model.body("panda_%s_finger" % side).id: i for i, side in enumerate(("left", "right"))}
        for i in range(self.data.ncon):
            contact = self.data.contact[i]
            for geom, sign in zip(contact.geom, (-1.0, 1.0)):
                side = fingers.get(int(self.model.geom_bodyid[geom]))
                if side is not None:
                    mujoco.mj_contactForce(self.model, self.data, i, wrench)
                    forces[3 * side : 3 * side + 3] += sign * (contact.frame.reshape(3, 3).T @ wrench[:3])
        return forces

    # -- things -------------------------------------------------------------------------------------------------------

    def position(self, body: str) -> np.ndarray:
        """Return where a body is."""
        return self.data.body(body).xpos.copy()

    def rotation(self, body: str) -> np.ndarray:
        """Return a body's rotation matrix."""
        return self.data.body(body).xmat.reshape(3, 3).copy()

    def site(self, name: str) -> np.ndarray:
        return self.data.site(name).xpos.copy()

    def joint(self, name: str) -> float:
        """Return the value of a hinge or slide."""
        return float(self.data.qpos[self._qpos(name)])

    def set_joint(self, name: str, value: float) -> None:
        self.data.qpos[self._qpos(name)] = value

    def place(self, body: str, position: Sequence[float], yaw: float = 0.0) -> None:
        """Put a free body somewhere."""
        start = self._qpos(body)
        self.data.qpos[start : start + 7] = (*position, np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2))

    def mount(self, body: str, position: Union[Sequence[float], np.ndarray], yaw: float = 0.0) -> None:
        """Put a body that is fixed to the world somewhere."""
        index = self.model.body(body).id
        self.model.body_pos[index] = position
        self.model.body_quat[index] = (np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2))

    def paint(self, geom: str, rgba: Sequence[float]) -> None:
        self.model.geom_rgba[self.model.geom(geom).id] = rgba

    def touching(self, first: str, second: str) -> bool:
        """Tell whether two bodies are in contact."""
        pair = {self.model.body(first).id, self.model.body(second).id}
        bodies = self.model.geom_bodyid
        return any(
            {int(bodies[g1]), int(bodies[g2])} == pair for g1, g2 in self.data.contact.geom[: self.data.ncon].tolist()
        )

    def grasped(self, body: str) -> bool:
        """Tell whether both fingers hold a body."""
        return self.touching(body, "panda_left_finger") and self.touching(body, "panda_right_finger")


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
    mujoco.mju_mat2Quat(quat, np.ascontiguousarray(matrix, np.float64).reshape(9))
    mujoco.mju_quat2Vel(out, quat, 1.0)
    return out


__all__ = ["World", "matrix_to_quat", "quat_to_matrix", "rotation_vector"]
