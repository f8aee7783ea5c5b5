"""Frames of a LIBERO scene: as LIBERO renders them, or fast."""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np

from ..graphics import check_backend

#: As robosuite has it.
_MAX_GEOMS = 1000


class Renderer:
    """Renders one model; several in a process take turns with the graphics library."""

    def __init__(self, mujoco: Any, model: Any, size: Tuple[int, int], faithful: bool) -> None:
        check_backend()
        self._mujoco, self._model = mujoco, model
        width, height = size
        self._viewport = mujoco.MjrRect(0, 0, width, height)
        if not faithful:
            model.vis.quality.shadowsize = model.vis.quality.offsamples = 0
        look = model.vis.global_
        look.offwidth, look.offheight = max(width, look.offwidth), max(height, look.offheight)
        self._context: Any = mujoco.GLContext(look.offwidth, look.offheight)
        self._context.make_current()
        self._buffers: Any = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._buffers)
        self._scene = mujoco.MjvScene(model, maxgeom=_MAX_GEOMS)
        if not faithful:
            for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                self._scene.flags[flag] = 0
        self._options, self._hand = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._options.geomgroup[0] = 0  # what collides; what is seen is in group 1
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._image = np.empty((height, width, 3), np.uint8)

    def look(self, data: Any, camera: str) -> np.ndarray:
        """Return an image, upside down as OpenGL has it; valid until the next look."""
        mujoco = self._mujoco
        self._context.make_current()
        self._camera.fixedcamid = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._options, self._hand, self._camera, everything, self._scene)
        mujoco.mjr_render(self._viewport, self._scene, self._buffers)
        mujoco.mjr_readPixels(self._image, None, self._viewport, self._buffers)
        return self._image

    def close(self) -> None:
        """Let go of the graphics context."""
        if self._context is not None:
            self._context.make_current()
            self._buffers.free()
            self._context.free()
            self._context = self._buffers = None


__all__ = ["Renderer"]
