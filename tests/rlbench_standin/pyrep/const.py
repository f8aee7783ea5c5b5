"""A stand-in for pyrep.const."""

from __future__ import annotations

from enum import Enum


class RenderMode(Enum):
    """How a camera draws."""

    OPENGL = 0
    OPENGL3 = 7
