"""What is seen of RLBench: its switches, on only while somebody looks, and the fields that come of it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Sequence

import numpy as np

from ..base import Field, put
from . import install
from .options import CAMERAS, IMAGES, Options

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


__all__ = ["Eyes"]
