"""What is seen of the robot, under RLBench's names."""

from __future__ import annotations

from typing import Dict, Mapping, Tuple

from .worlds import Array, Worlds

#: Shapes of the robot's fields.
ROBOT_FIELDS: Dict[str, Tuple[int, ...]] = {
    "joint_velocities": (7,),
    "joint_positions": (7,),
    "joint_forces": (7,),
    "gripper_pose": (7,),
    "gripper_matrix": (4, 4),
    "gripper_joint_positions": (2,),
    "gripper_touch_forces": (6,),
    "gripper_open": (),
}


def observe_robot(worlds: Worlds, out: Mapping[str, Array]) -> None:
    """Write the robot's fields into `out`, a row per world."""
    position, rotation = worlds.tip_position(), worlds.tip_rotation()
    out["joint_velocities"][:] = worlds.qvel[:, worlds.arm_dofs]
    out["joint_positions"][:] = worlds.joints
    out["joint_forces"][:] = worlds.qfrc_actuator[:, worlds.arm_dofs]
    out["gripper_pose"][:, :3] = position
    out["gripper_pose"][:, 3:] = worlds.matrix_to_quat(rotation)
    out["gripper_matrix"][:] = 0.0
    out["gripper_matrix"][:, :3, :3] = rotation
    out["gripper_matrix"][:, :3, 3] = position
    out["gripper_matrix"][:, 3, 3] = 1.0
    out["gripper_joint_positions"][:] = worlds.qpos[:, worlds.finger_qpos]
    out["gripper_touch_forces"][:] = worlds.touch_forces()
    out["gripper_open"][:] = worlds.openness() > 0.9
