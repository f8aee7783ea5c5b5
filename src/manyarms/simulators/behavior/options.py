"""How BEHAVIOR is seen, started and scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence, Tuple, Union

from ..base import SpecError
from ..choices import check_choices, width_and_height
from .robot import CAMERAS

GRASPING_MODES = ("assisted", "sticky", "physical")
SPLITS = ("train", "eval")


@dataclass(frozen=True)
class Options:
    """What can be chosen."""

    cameras: Sequence[str] = tuple(CAMERAS)
    """Which are rendered, of head, left_wrist, right_wrist."""
    image_size: Union[int, Sequence[int]] = 224
    """Width and height in pixels."""
    scene_model: Optional[str] = None
    """The house; by default the one that the activity's instances are made for."""
    rooms: Optional[Sequence[str]] = None
    """Types of rooms to load; by default all of the house."""
    definition: int = 0
    """Which definition of the activity is played."""
    instances: Union[str, Sequence[int]] = "train"
    """What episodes begin from: instances of the split train or eval, or these."""
    online_object_sampling: bool = False
    """Have OmniGibson place the objects itself when the scene is loaded; instances are then not used."""
    challenge_rules: bool = False
    """Play by the rules of the challenge, which OmniGibson does not keep by itself; evaluations do."""
    partial_reset: Optional[bool] = None
    """Whether rows are reset one by one; by default where this OmniGibson can."""
    grasping_mode: str = "assisted"
    gpu_dynamics: bool = False
    """Simulate on the GPU, which fluids and cloth need."""
    device: Optional[str] = None
    """Where OmniGibson keeps its tensors; by default the CPU."""
    render_passes: int = 1
    """How often a look renders; Isaac Sim's images may lag behind, and more passes catch up."""
    descriptions: Optional[str] = None
    """A file of lines {"task_name": …, "task": …} with the words that a policy was trained on."""
    launch_attempts: int = 3
    launch_pause: float = 5.0
    """Seconds before the second attempt; doubled for each further one."""

    def __post_init__(self) -> None:
        check_choices(
            (
                ("grasping_mode", self.grasping_mode, GRASPING_MODES),
                *(("camera", camera, tuple(CAMERAS)) for camera in self.cameras),
                *((("instances", self.instances, SPLITS),) if isinstance(self.instances, str) else ()),
            )
        )
        width_and_height(self.image_size, 2048)
        for name, least in (("definition", 0), ("render_passes", 1), ("launch_attempts", 1), ("launch_pause", 0)):
            if getattr(self, name) < least:
                raise SpecError("%s is %r: it must be at least %d" % (name, getattr(self, name), least))

    @property
    def size(self) -> Tuple[int, int]:
        """Width and height."""
        return width_and_height(self.image_size, 2048)


__all__ = ["Options"]
