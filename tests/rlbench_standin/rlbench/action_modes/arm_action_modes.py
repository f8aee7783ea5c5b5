"""A stand-in for rlbench.action_modes.arm_action_modes."""

from __future__ import annotations

import time
from enum import Enum

import numpy as np

from ..backend.exceptions import InvalidActionError
from ..world import JOINTS
from .gripper_action_modes import assert_action_shape


def assert_unit_quaternion(quat):
    if not np.isclose(np.linalg.norm(quat), 1.0):
        raise InvalidActionError("Action contained non unit quaternion!")


class RelativeFrame(Enum):
    WORLD = 0
    EE = 1


class ArmActionMode:
    def set_control_mode(self, robot):
        robot.arm.set_control_loop_enabled(True)


class _JointMode(ArmActionMode):
    def action_shape(self, scene):
        return (JOINTS[scene.robot],)


class JointVelocity(_JointMode):
    def action(self, scene, action):
        assert_action_shape(action, self.action_shape(scene))
        if scene.arm.looped:
            return  # the joints hold their positions: velocities are not heeded
        scene.joints += 0.05 * action
        scene.velocities[:] = action

    def set_control_mode(self, robot):
        robot.arm.set_control_loop_enabled(False)


class JointTorque(_JointMode):
    def action(self, scene, action):
        assert_action_shape(action, self.action_shape(scene))
        if scene.arm.looped:
            return
        scene.joints += 1e-4 * action

    def set_control_mode(self, robot):
        robot.arm.set_control_loop_enabled(False)


class JointPosition(_JointMode):
    def __init__(self, absolute_mode=True):
        self._absolute_mode = absolute_mode

    def action(self, scene, action):
        assert_action_shape(action, self.action_shape(scene))
        goal = action if self._absolute_mode else scene.joints + action
        scene.joints += np.clip(goal - scene.joints, -0.05, 0.05)


class _PoseMode(ArmActionMode):
    def __init__(self, absolute_mode=True, frame=RelativeFrame.WORLD, collision_checking=False):
        self._absolute_mode = absolute_mode

    def action_shape(self, scene):
        return (7,)

    def _goal(self, scene, action):
        assert_action_shape(action, (7,))
        assert_unit_quaternion(action[3:])
        return action[:3] if self._absolute_mode else scene.tip + action[:3]


class EndEffectorPoseViaPlanning(_PoseMode):
    def action(self, scene, action):
        goal = self._goal(scene, action)
        scene.check_workspace(goal)
        if np.array_equal(goal, scene.tip):
            time.sleep(3600)  # a path of no length gives NaN, on which the real one hangs
        scene.move_tip(goal)


class EndEffectorPoseViaIK(_PoseMode):
    def action(self, scene, action):
        goal = self._goal(scene, action)
        scene.check_ik(goal)
        scene.move_tip(goal)
