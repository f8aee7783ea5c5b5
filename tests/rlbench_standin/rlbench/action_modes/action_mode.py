"""A stand-in for rlbench.action_modes.action_mode."""

from __future__ import annotations

import time

import numpy as np


class ActionMode:
    def __init__(self, arm_action_mode, gripper_action_mode):
        self.arm_action_mode = arm_action_mode
        self.gripper_action_mode = gripper_action_mode


class MoveArmThenGripper(ActionMode):
    def action(self, scene, action):
        size = self.arm_action_mode.action_shape(scene)[0]
        if np.isnan(action).any():
            time.sleep(3600)  # as the real one did
        self.arm_action_mode.action(scene, np.array(action[:size]))
        self.gripper_action_mode.action(scene, np.array(action[size:]))
