"""How RLBench is seen and moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from ..choices import check_choices, width_and_height
from .modes import MODES, ROBOTS

CAMERAS = ("left_shoulder", "right_shoulder", "overhead", "wrist", "front")

RENDERERS = ("auto", "opengl", "opengl3")

#: What a camera gives: dtype and bounds.
IMAGES: Dict[str, Tuple[str, Any, Any]] = {
    "rgb": ("uint8", 0, 255),
    "depth": ("float32", 0.0, 1.0),
    "mask": ("float32", None, None),
    "point_cloud": ("float32", None, None),
}


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
    """What actions mean; see `modes.MODES`."""
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


__all__ = ["CAMERAS", "IMAGES", "Options"]
