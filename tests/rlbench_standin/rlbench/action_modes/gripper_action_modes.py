"""A stand-in for rlbench.action_modes.gripper_action_modes."""

from __future__ import annotations

import numpy as np

from ..backend.exceptions import InvalidActionError


def assert_action_shape(action, expected_shape):
    if np.shape(action) != expected_shape:
        raise InvalidActionError("Expected the action shape to be: %s" % (expected_shape,))


class Discrete:
    def __init__(self, attach_grasped_objects=True, detach_before_open=True):
        pass

    def action(self, scene, action):
        assert_action_shape(action, (1,))  # the arm has moved by now, as in RLBench
        scene.misbehave(action[0])
        scene.grip = float(action[0] > 0.5)
