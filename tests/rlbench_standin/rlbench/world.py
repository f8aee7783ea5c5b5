"""What moves behind the stand-in: a tip that follows the first three joints, a target, and every known way to fail.

Faults are asked for by gripper commands (`HANG`, `CRASH`, `VREP_ERROR`), and by words in RLBENCH_STANDIN_FAULTS:
``launch_hang``, ``handles`` (a wrong version), ``unplaceable=N`` and ``vrep_reset=N`` (N resets fail, after the first),
``unplaceable_first=N`` (N resets fail, from the first on), ``unplaceable_at=N`` (the Nth reset fails), ``no_demos``.
RLBENCH_STANDIN_DRAWS names the platform of Qt that draws without an X server, if any.
Where there is an X server, it is connected to, and its end is the process's.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from typing import Any

import numpy as np
from pyrep.backend.sim import note

from .backend.exceptions import InvalidActionError, TaskEnvironmentError

HANG, CRASH, VREP_ERROR = 0.125, 0.25, 0.375

CAMERAS = ("left_shoulder", "right_shoulder", "overhead", "wrist", "front")
JOINTS = {"panda": 7, "sawyer": 7, "jaco": 6, "mico": 6, "ur5": 6}

HOME = np.array([0.25, 0.0, 1.2])
LOW, HIGH = np.array([-0.275, -0.655, 0.752]), np.array([0.775, 0.655, 1.752])

#: Metres that the tip moves for a radian of each of the first three joints.
_ARM = 0.3

#: How far the tip may be from a pose for IK to be found.
_IK_REACH = 0.3

_NEAR = 0.05

_VREP = "The call failed on the V-REP side. Return value: -1"


def faults():
    """Return what was asked for: word -> number."""
    words = [word for word in os.environ.get("RLBENCH_STANDIN_FAULTS", "").split(",") if word]
    return {word.partition("=")[0]: int(word.partition("=")[2] or 1) for word in words}


def connected(display):
    """Return a connection to an X server, if there is one behind the name."""
    path = "/tmp/.X11-unix/X" + display.lstrip(":").partition(".")[0]
    if not display or not os.path.exists(path):
        return None
    server = socket.socket(socket.AF_UNIX)
    server.connect(path)
    return server


class Arm:
    """The arm as PyRep's interface has it."""

    def __init__(self, world):
        self._world = world
        self.joints = [self]
        self.looped = True

    def is_control_loop_enabled(self):
        return self.looped

    def set_control_loop_enabled(self, value):
        self.looped = value

    def get_tip(self):
        return self

    def get_pose(self):
        return np.append(self._world.tip, [0.0, 0.0, 0.0, 1.0])


class World:
    """One CoppeliaSim."""

    running = False

    def __init__(self, robot, obs_config):
        self.robot = robot
        self.config = obs_config
        self.task: Any = None
        self.resets = 0
        self.grip = 1.0
        self.joints = np.zeros(JOINTS[robot])
        self.velocities = np.zeros_like(self.joints)
        self.target = HOME.copy()
        self.variation = 0
        self.arm = Arm(self)

    def launch(self):
        root = os.environ["COPPELIASIM_ROOT"]
        wanted = faults()
        folder = os.getcwd()
        os.chdir(root)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if World.running:
            os.abort()  # Qt: a second QApplication
        if not os.environ.get("DISPLAY") and os.environ.get("QT_QPA_PLATFORM") in (None, "", "xcb"):
            os.abort()  # Qt: could not connect to display
        self._display = connected(os.environ.get("DISPLAY", ""))
        self._settings = os.path.join(os.environ["HOME"], "coppeliasim-settings")
        os.close(os.open(self._settings, os.O_CREAT | os.O_EXCL))
        if "launch_hang" in wanted:
            time.sleep(3600)
        if "handles" in wanted:
            raise RuntimeError("Handle Panda does not exist.")
        World.running = True
        self.cameras = set()
        for name in CAMERAS:
            camera = getattr(self.config, name + "_camera")
            if camera.rgb or camera.depth or camera.point_cloud or camera.mask:
                self.cameras.add(name)
                note("camera %s %s %dx%d" % (name, camera.render_mode.name, *camera.image_size))
        os.chdir(folder)

    def shutdown(self):
        World.running = False
        os.unlink(self._settings)

    # -- episodes -----------------------------------------------------------------------------------------------------

    def reset(self, variation):
        self.resets += 1
        wanted = faults()
        if self.resets <= wanted.get("unplaceable_first", 0) or self.resets == wanted.get("unplaceable_at"):
            raise TaskEnvironmentError("Could not place the task %s in the scene." % self.task.name)
        if 1 < self.resets <= 1 + wanted.get("vrep_reset", 0):
            raise RuntimeError(_VREP)
        if 1 < self.resets <= 1 + wanted.get("unplaceable", 0):
            raise TaskEnvironmentError("Could not place the task %s in the scene." % self.task.name)
        self.variation = variation
        self.joints[:] = 0.0
        self.velocities[:] = 0.0
        self.grip = 1.0
        self.target = HOME + np.random.uniform(-0.2, 0.2, 3)

    @property
    def tip(self):
        return HOME + _ARM * self.joints[:3]

    def move_tip(self, position):
        self.joints[:3] = (np.asarray(position) - HOME) / _ARM

    def check_ik(self, position):
        if np.linalg.norm(np.asarray(position) - self.tip) > _IK_REACH:
            raise InvalidActionError("Could not perform IK via Jacobian; the target pose is too far.")

    def check_workspace(self, position):
        if (position <= LOW).any() or (position >= HIGH).any():
            raise InvalidActionError("A path could not be found because the target is outside of workspace.")

    def misbehave(self, command):
        if self._display is not None and select.select([self._display], [], [], 0)[0]:
            print("The X11 connection broke (error 1). Did the X11 server die?", file=sys.stderr, flush=True)
            os._exit(1)  # Qt: whoever has lost its display ends
        if command == HANG:
            time.sleep(3600)
        if command == CRASH:
            os.abort()
        if command == VREP_ERROR:
            raise RuntimeError(_VREP)

    def success(self):
        reached = np.all(np.linalg.norm(self.tip - self.target) < _NEAR)
        return reached, reached  # numpy.bool_, as RLBench's

    # -- what is seen -------------------------------------------------------------------------------------------------

    def state(self):
        """Return the low-dimensional fields, as RLBench's types have them."""
        if self.config.gripper_touch_forces and self.robot not in ("panda", "sawyer"):
            raise NotImplementedError("No touch sensors for this robot!")
        matrix = np.eye(4)
        matrix[:3, 3] = self.tip
        size = self.task.state_size
        values = {
            "joint_velocities": self.velocities.copy(),
            "joint_positions": self.joints.copy(),
            "joint_forces": np.zeros_like(self.joints),
            "gripper_open": float(self.grip > 0.9),
            "gripper_pose": np.append(self.tip, [0.0, 0.0, 0.0, 1.0]),
            "gripper_matrix": matrix,
            "gripper_joint_positions": np.full(3 if self.robot == "jaco" else 2, 0.04 * self.grip),
            "gripper_touch_forces": np.zeros(6),
            "task_low_dim_state": np.resize(self.target, size),
        }
        return {name: value if getattr(self.config, name) else None for name, value in values.items()}

    def image(self, name, kind):
        """Draw one camera's image, if it is switched on."""
        camera = getattr(self.config, name + "_camera")
        if not getattr(camera, kind):
            return None
        if name not in self.cameras:
            raise RuntimeError(_VREP)  # it was removed when the scene was built
        platform = os.environ.get("QT_QPA_PLATFORM", "")
        if platform not in ("", "xcb", os.environ.get("RLBENCH_STANDIN_DRAWS", "")):
            print("This plugin does not support createPlatformOpenGLContext!", file=sys.stderr, flush=True)
            os.abort()
        note("render %s %s" % (name, kind))
        width, height = camera.image_size
        across = np.linspace(0.0, 1.0, width)[None, :] * np.ones((height, 1))
        if kind == "rgb":
            return np.stack([across * 255 * value % 255 for value in self.tip + 1.0], axis=-1).astype(np.uint8)
        if kind == "point_cloud":
            return np.stack([across] * 3).transpose(1, 2, 0)
        return across.astype(np.float32)
