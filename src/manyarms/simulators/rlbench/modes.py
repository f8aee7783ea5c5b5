"""Arm modes: which of RLBench's action modes each stands for, and what its numbers may be."""

from __future__ import annotations

import math
from typing import Any, Dict, NamedTuple, Optional

import numpy as np

from ..base import Field

#: Joints of the arms that RLBench can put at the table.
ROBOTS = {"panda": 7, "sawyer": 7, "jaco": 6, "mico": 6, "ur5": 6}

#: Seconds that one physics step of RLBench takes; joint modes take one an action.
_TIME_STEP = 0.05

#: How far a quaternion's length may be from 1 to pass for rounding.
_ROUNDING = 1e-2


class ArmMode(NamedTuple):
    """One of RLBench's arm action modes."""

    class_name: str
    arguments: Dict[str, Any]
    reach: float
    """The largest coordinate in metres (poses), or number (joints)."""
    pose: bool

    def field(self, robot: str) -> Field:
        """Describe an action: the arm's numbers, then the gripper (0 closed, 1 open)."""
        arm = [self.reach] * 3 + [1.0 + _ROUNDING] * 4 if self.pose else [self.reach] * ROBOTS[robot]
        high = np.array([*arm, 1.0], np.float32)
        return Field((len(high),), "float32", np.append(-high[:-1], np.float32(0.0)), high)

    @property
    def control_rate(self) -> Optional[float]:
        """Actions a second; a move to a pose takes as long as it takes."""
        return None if self.pose else 1.0 / _TIME_STEP


MODES: Dict[str, ArmMode] = {
    "ik": ArmMode("EndEffectorPoseViaIK", {}, 2.0, True),
    "planning": ArmMode("EndEffectorPoseViaPlanning", {}, 2.0, True),
    "delta_ik": ArmMode("EndEffectorPoseViaIK", {"absolute_mode": False}, 0.5, True),
    "delta_planning": ArmMode("EndEffectorPoseViaPlanning", {"absolute_mode": False}, 0.5, True),
    "joint_position": ArmMode("JointPosition", {}, 2 * math.pi, False),
    "delta_joint_position": ArmMode("JointPosition", {"absolute_mode": False}, 0.1, False),
    "joint_velocity": ArmMode("JointVelocity", {}, math.pi, False),
    "joint_torque": ArmMode("JointTorque", {}, 100.0, False),
}


def with_unit_quaternion(action: np.ndarray) -> np.ndarray:
    """Undo what rounding did to a pose's quaternion; leave one that is wrong, for RLBench to refuse."""
    length = float(np.linalg.norm(action[3:7]))
    if abs(length - 1.0) <= _ROUNDING:
        action[3:7] /= length
    return action


__all__ = ["MODES", "ROBOTS", "ArmMode", "with_unit_quaternion"]
