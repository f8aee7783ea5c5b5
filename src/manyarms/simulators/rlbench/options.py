"""How RLBench is moved and seen: what can be chosen, what actions mean, and its switches for all that can be seen."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ..base import Field, put
from ..choices import check_choices, width_and_height
from . import install

CAMERAS = ("left_shoulder", "right_shoulder", "overhead", "wrist", "front")

RENDERERS = ("auto", "opengl", "opengl3")

#: What a camera gives: dtype and bounds.
IMAGES: Dict[str, Tuple[str, Any, Any]] = {
    "rgb": ("uint8", 0, 255),
    "depth": ("float32", 0.0, 1.0),
    "mask": ("float32", None, None),
    "point_cloud": ("float32", None, None),
}

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


@dataclass(frozen=True)
class Options:
    """What can be chosen."""

    cameras: Sequence[str] = ("front", "wrist")
    """Which are rendered, of front, wrist, left_shoulder, right_shoulder, overhead; none: no display is needed."""
    image_size: Union[int, Sequence[int]] = (128, 128)
    """Width and height in pixels."""
    depth: bool = False
    mask: bool = False
    point_cloud: bool = False
    renderer: str = "auto"
    """opengl, opengl3 (shadows; 18 times slower without a GPU), or by whether there is a GPU."""
    arm_mode: str = "ik"
    """What actions mean; see `MODES`."""
    collision_checking: bool = False
    """Whether planned paths avoid what they could push; has no effect on other arm modes."""
    robot: str = "panda"
    """Which arm stands at the table: panda, sawyer, jaco, mico, ur5."""
    variation: Optional[int] = None
    """Which is played; by default the seed says."""
    static_positions: bool = False
    """Leave the task where its file puts it."""
    shaped_rewards: bool = False
    state_size: Optional[int] = None
    """Room for task_low_dim_state; by default what the tasks have when they are loaded."""
    arm_max_velocity: float = 1.0
    arm_max_acceleration: float = 4.0
    idle_fps: int = 0
    """Frames a second that CoppeliaSim draws for itself."""

    def __post_init__(self) -> None:
        check_choices(
            (
                ("arm_mode", self.arm_mode, tuple(MODES)),
                ("renderer", self.renderer, RENDERERS),
                ("robot", self.robot, tuple(ROBOTS)),
                *(("camera", camera, CAMERAS) for camera in self.cameras),
            )
        )
        width_and_height(self.image_size, 4096)

    @property
    def size(self) -> Tuple[int, int]:
        """Width and height."""
        return width_and_height(self.image_size, 4096)

    @property
    def kinds(self) -> Tuple[str, ...]:
        """What is taken of each camera."""
        switches = (True, self.depth, self.mask, self.point_cloud)
        return tuple(kind for kind, on in zip(IMAGES, switches) if on)


#: Their switches in RLBench's configuration have the same names.
_STATES = (
    "joint_velocities",
    "joint_positions",
    "joint_forces",
    "gripper_pose",
    "gripper_matrix",
    "gripper_joint_positions",
    "gripper_touch_forces",
    "gripper_open",
    "task_low_dim_state",
)


class Eyes:
    """The cameras and senses of one arm."""

    def __init__(self, api: Any, options: Options) -> None:
        """Make RLBench's configuration, with everything on that will ever be looked at.

        A camera that is off when the scene is built is removed, and cannot come back.
        """
        self._options = options
        self.states = list(_STATES)
        three = options.renderer == "opengl3" or (options.renderer == "auto" and install.draws_on_a_gpu())
        cameras = {}
        for camera in CAMERAS:
            cameras[camera + "_camera"] = config = api.CameraConfig(
                image_size=options.size,
                render_mode=api.RenderMode.OPENGL3 if three else api.RenderMode.OPENGL,
            )
            config.set_all(False)
            if camera in options.cameras:
                for kind in options.kinds:
                    setattr(config, kind, True)
        self.config = api.ObservationConfig(**cameras, **dict.fromkeys(_STATES, True))

    def open(self, cameras: Sequence[str]) -> None:
        """Switch on what is looked at."""
        for name in self.states:
            setattr(self.config, name, True)
        for camera in cameras:
            config = getattr(self.config, camera + "_camera")
            for kind in self._options.kinds:
                setattr(config, kind, True)

    def close(self) -> None:
        """Switch everything off: RLBench then looks at nothing at the end of a step."""
        self.config.set_all(False)

    @contextmanager
    def opened(self, cameras: Sequence[str]) -> Iterator[None]:
        """Have on what is looked at, for a while."""
        self.open(cameras)
        try:
            yield
        finally:
            self.close()

    def names(self, cameras: Sequence[str]) -> List[str]:
        """Return the fields that are seen through these cameras, and those of the arm itself."""
        return [*self.states, *(camera + "_" + kind for camera in cameras for kind in self._options.kinds)]

    def fields(self, seen: Any, task_state: Field) -> Dict[str, Field]:
        """Describe what is seen, from a first look."""
        width, height = self._options.size
        fields: Dict[str, Field] = {}
        for camera in self._options.cameras:
            for kind in self._options.kinds:
                dtype, low, high = IMAGES[kind]
                shape = (height, width, 3) if kind in ("rgb", "point_cloud") else (height, width)
                fields[camera + "_" + kind] = Field(shape, dtype, low, high, camera=camera)
        for name in self.states[:-1]:
            fields[name] = Field(np.shape(getattr(seen, name)))
        fields["task_low_dim_state"] = task_state
        return fields

    def write(self, seen: Any, out: Dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        """Write what was seen where it is to lie."""
        for name in self.names(cameras):
            put(out, name, getattr(seen, name))
