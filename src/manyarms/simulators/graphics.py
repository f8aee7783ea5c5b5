"""Which library renders for MuJoCo, and whether there is a graphics card to do it."""

from __future__ import annotations

import ctypes
import glob
import os
from typing import Optional

#: Values of ``MUJOCO_GL`` that switch rendering off.
OFF = ("disable", "disabled", "off", "0", "false")

#: Libraries that render without a screen, and the files they come in.
LIBRARIES = {"egl": ("libEGL.so.1", "libEGL.so"), "osmesa": ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")}

#: Parts of the names of renderers that are the CPU.
_SOFTWARE = ("llvmpipe", "softpipe", "swrast", "software rasterizer", "swr (")


class NoGraphics(RuntimeError):
    """Nothing here can render."""


def choose_backend() -> Optional[str]:
    """Name the library MuJoCo is to render with; must be in ``MUJOCO_GL`` before MuJoCo is first imported.

    EGL where there is a GPU, else OSMesa or EGL in software, whichever is installed. What the user has set stays.
    """
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if chosen:
        return chosen if chosen not in OFF else None
    egl = is_installed("egl")
    if egl and has_gpu():
        return "egl"
    if is_installed("osmesa"):
        return "osmesa"
    return "egl" if egl else None


def is_installed(library: str) -> bool:
    """Tell whether the system finds one of `LIBRARIES`, in its own places or in ``LD_LIBRARY_PATH``."""
    for name in LIBRARIES[library]:
        try:
            ctypes.CDLL(name)
            return True
        except OSError:
            continue
    return False


def is_software(renderer: str) -> bool:
    """Tell by its name whether a renderer is the CPU."""
    return any(part in renderer.lower() for part in _SOFTWARE)


def has_gpu() -> bool:
    """Tell whether a graphics card is at hand."""
    return bool(glob.glob("/dev/nvidia[0-9]*") or glob.glob("/dev/dri/renderD*"))


def set_backend() -> Optional[str]:
    """Choose, and tell MuJoCo."""
    backend = choose_backend()
    os.environ["MUJOCO_GL"] = backend or "disable"
    # A process that has imported MuJoCo leaves its own choice to those it starts, and MuJoCo refuses to contradict it.
    if backend in ("egl", "osmesa"):
        os.environ["PYOPENGL_PLATFORM"] = backend
    return backend


def check_backend() -> None:
    """Refuse to render where `set_backend` found nothing to do it with."""
    if os.environ.get("MUJOCO_GL", "") in ("disable", ""):
        raise NoGraphics(
            "cameras were asked for, but neither EGL nor OSMesa is installed: "
            "apt-get install libosmesa6 (or libegl1 libgl1-mesa-dri), or cameras=[]"
        )


__all__ = [
    "LIBRARIES",
    "OFF",
    "NoGraphics",
    "check_backend",
    "choose_backend",
    "has_gpu",
    "is_installed",
    "set_backend",
]
