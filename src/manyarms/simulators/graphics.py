"""Which library renders for MuJoCo, and whether there is a graphics card to do it."""

from __future__ import annotations

import ctypes
import glob
import os
from typing import Optional


def choose_backend() -> Optional[str]:
    """Name the library MuJoCo is to render with; must be in ``MUJOCO_GL`` before MuJoCo is first imported.

    EGL where there is a GPU, else OSMesa or EGL in software, whichever is installed. What the user has set stays.
    """
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if chosen:
        return chosen if chosen not in ("disable", "disabled", "off", "0", "false") else None
    egl = can_load("libEGL.so.1", "libEGL.so")
    if egl and has_gpu():
        return "egl"
    if can_load("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so"):
        return "osmesa"
    return "egl" if egl else None


def can_load(*names: str) -> bool:
    """Tell whether the system finds one of these libraries, in its own places or in ``LD_LIBRARY_PATH``."""
    for name in names:
        try:
            ctypes.CDLL(name)
            return True
        except OSError:
            continue
    return False


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


__all__ = ["can_load", "choose_backend", "has_gpu", "set_backend"]
