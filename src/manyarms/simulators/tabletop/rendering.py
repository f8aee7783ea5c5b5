"""Frames without a screen: which graphics library, how much quality, and pixels straight into the caller's array."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Sequence, Tuple

import numpy as np

from ..graphics import check_backend
from .scene import FAR, NEAR


class Quality(NamedTuple):
    """What a frame is made with. Shadows and smooth edges cost more than everything else, in software and on a GPU."""

    shadowsize: int
    offsamples: int
    """Samples a pixel."""
    numslices: int = 28
    """Faces around a capsule, along it, and along a box: vertices are what is left of the cost."""
    numstacks: int = 16
    numquads: int = 4


#: What one machine renders another must, too, so the quality never depends on it (docs/benchmarks/rendering.md).
QUALITIES = {"fast": Quality(0, 0, 16, 10, 2), "good": Quality(1024, 4), "full": Quality(4096, 4)}


class Cameras:
    """Renders the cameras of a model; made when the first frame is asked for."""

    def __init__(self, size: Tuple[int, int], quality: str) -> None:
        self._size = size
        self._quality = quality
        self._renderer: Any = None
        self._model: Any = None

    def look(self, model: Any, data: Any, camera: str, wanted: Sequence[str]) -> Dict[str, np.ndarray]:
        """Return the wanted kinds of image of a camera: rgb, depth, mask. They are valid until the next look."""
        renderer = self._ready(model)
        renderer.update_scene(data, camera)
        images: Dict[str, np.ndarray] = {}
        if "rgb" in wanted:
            images["rgb"] = renderer.render()
        if "depth" in wanted:
            renderer.enable_depth_rendering()
            images["depth"] = np.clip((renderer.render() - NEAR) / (FAR - NEAR), 0.0, 1.0)
            renderer.disable_depth_rendering()
        if "mask" in wanted:
            renderer.enable_segmentation_rendering()
            geoms = renderer.render()[..., 0]
            renderer.disable_segmentation_rendering()
            # As RLBench's handles: one number a thing, 0 for nothing.
            images["mask"] = np.where(geoms >= 0, model.geom_bodyid[geoms] + 1, 0)
        return images

    def look_into(self, model: Any, data: Any, camera: str, out: np.ndarray) -> None:
        """Render a camera's colours straight into an array."""
        renderer = self._ready(model)
        renderer.update_scene(data, camera)
        if out.flags.c_contiguous:
            renderer.render(out=out)
        else:
            out[...] = renderer.render()

    def _ready(self, model: Any) -> Any:
        if self._model is not model:
            self.close()
            self._renderer = self._open(model)
            self._model = model
        return self._renderer

    def _open(self, model: Any) -> Any:
        from .physics import mujoco

        check_backend()
        quality = QUALITIES[self._quality]
        for name, value in quality._asdict().items():
            setattr(model.vis.quality, name, value)
        width, height = self._size
        renderer = mujoco.Renderer(model, height, width)
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = quality.shadowsize > 0
        return renderer

    def close(self) -> None:
        """Let go of the graphics context."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = self._model = None
