"""Which renderer draws on an X display: ``python glx.py`` prints its name, or ends with a line that says why not.

A program of its own, for drivers may crash, and what they load should not be in CoppeliaSim's process before Qt is.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_CONFIG = (0x8010, 0x4, 0x8011, 0x1, 0)  # GLX_DRAWABLE_TYPE: pbuffer; GLX_RENDER_TYPE: RGBA
_BUFFER = (0x8041, 8, 0x8040, 8, 0)  # width and height
_RGBA_TYPE, _GL_RENDERER = 0x8014, 0x1F01


def main() -> None:
    """Make a context on DISPLAY and ask it for its name."""
    try:
        x11: Any = ctypes.CDLL("libX11.so.6")
        gl: Any = ctypes.CDLL("libGL.so.1")
    except OSError as error:
        sys.exit(str(error))
    pointer = ctypes.c_void_p
    x11.XOpenDisplay.restype = gl.glXChooseFBConfig.restype = gl.glXCreateNewContext.restype = pointer
    gl.glXCreatePbuffer.restype = ctypes.c_ulong
    gl.glGetString.restype = ctypes.c_char_p
    display = pointer(x11.XOpenDisplay(None))
    if not display:
        sys.exit("there is no display")
    count = ctypes.c_int()
    screen = x11.XDefaultScreen(display)
    configs = gl.glXChooseFBConfig(display, screen, (ctypes.c_int * len(_CONFIG))(*_CONFIG), ctypes.byref(count))
    if not configs or not count.value:
        sys.exit("the display has no GLX, or nothing that could be drawn to")
    config = pointer(ctypes.cast(configs, ctypes.POINTER(pointer))[0])
    context = pointer(gl.glXCreateNewContext(display, config, _RGBA_TYPE, None, 1))
    buffer = ctypes.c_ulong(gl.glXCreatePbuffer(display, config, (ctypes.c_int * len(_BUFFER))(*_BUFFER)))
    if not context or not gl.glXMakeContextCurrent(display, buffer, buffer, context):
        sys.exit("GLX makes no context")
    print((gl.glGetString(_GL_RENDERER) or b"unknown").decode(errors="replace"))


if __name__ == "__main__":
    main()
