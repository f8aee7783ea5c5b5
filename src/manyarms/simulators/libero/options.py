"""How LIBERO is seen and started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Sequence, Tuple, Union

from ..base import SpecError
from ..choices import check_choices, width_and_height

#: What we call a camera -> what the model does; observations are named ``<camera of the model>_image``.
CAMERAS: Dict[str, str] = {"agentview": "agentview", "wrist": "robot0_eye_in_hand"}

LAYOUTS = ("fixed", "sampled")


@dataclass(frozen=True)
class Options:
    """What can be chosen."""

    cameras: Sequence[str] = ("agentview", "wrist")
    """Which are rendered, of agentview, wrist."""
    image_size: Union[int, Sequence[int]] = 128
    """Width and height in pixels."""
    faithful: Optional[bool] = None
    """Render as LIBERO does, to the pixel; False leaves out shadows, reflections and smooth edges; by default where
    rendering is done by a GPU."""
    rotate: bool = True
    """Turn images by 180 degrees, as openpi and OpenVLA expect them; False: upside down, as LIBERO gives them."""
    settle_steps: int = 10
    """Steps with an open gripper before an episode begins, in which things fall into place."""
    layout: str = "fixed"
    """Where things lie at the start: one of the task's fixed initial states, or sampled anew."""
    expert: bool = False
    """Add the field `expert_action`: what a scripted policy would do next; for tasks that fill a basket."""
    keep_tasks: int = 10
    """How many tasks' models are kept in memory, as long as there is memory."""

    def __post_init__(self) -> None:
        check_choices(
            (
                ("layout", self.layout, LAYOUTS),
                *(("camera", camera, tuple(CAMERAS)) for camera in self.cameras),
            )
        )
        width_and_height(self.image_size, 2048)
        for name, least in (("settle_steps", 0), ("keep_tasks", 1)):
            if getattr(self, name) < least:
                raise SpecError("%s is %r: it must be at least %d" % (name, getattr(self, name), least))

    @property
    def size(self) -> Tuple[int, int]:
        """Width and height."""
        return width_and_height(self.image_size, 2048)


__all__ = ["CAMERAS", "Options"]
