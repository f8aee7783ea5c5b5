"""Whether EGL works here, found out by drawing with it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from manyarms.vector.endings import has_ended, reap, signal_name
from manyarms.vector.keeper import Keeper
from manyarms.workers import wire

#: Qt's platforms that need no X server, as `QT_QPA_PLATFORM` names them: without cameras the first will do.
QT_PLATFORMS = ("offscreen", "eglfs", "minimalegl")

_TRIAL = Path(wire.__file__).with_name("trial.py")

_EGL_DEVICES, _EGL_SURFACELESS = 0x313F, 0x31DD
_EGL_CONFIG = (0x3033, 1, 0x3040, 8, 0x3038)  # surface type: pbuffer; renderable type: OpenGL
_EGL_SURFACE = (0x3057, 8, 0x3056, 8, 0x3038)  # 8 by 8 pixels
_GL_RENDERER, _GL_COLOR_BUFFER, _GL_RGBA, _GL_UNSIGNED_BYTE = 0x1F01, 0x4000, 0x1908, 0x1401


def egl_failure() -> str:
    """Draw with EGL in a process of its own, for drivers may crash; say in a line why it does not work, if so."""
    code = "from manyarms.vector.egl import draw_with_egl; draw_with_egl()"
    env = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    env["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    return _failure([sys.executable, "-c", code], env, b"", 60.0, "the driver")


def drawing_failure(python: str, plan: Mapping[str, Any], env: Mapping[str, str], seconds: float) -> str:
    """Have a simulator draw in a process of its own; say in a line why it does not work, if so."""
    return _failure([python, str(_TRIAL)], env, wire.encode(dict(plan)), seconds, "it")


def _failure(command: list[str], env: Mapping[str, str], told: bytes, seconds: float, who: str) -> str:
    """Run a program and end what it has started; say in a line why it failed, nothing if it did not."""
    keeper = Keeper.instance()
    with (
        tempfile.TemporaryFile() as plan,
        tempfile.TemporaryFile() as errors,
    ):  # no pipes: what it has started holds them
        plan.write(told)
        plan.seek(0)
        process = subprocess.Popen(command, env=env, stdin=plan, stdout=subprocess.DEVNULL, stderr=errors)
        mark = keeper.mark(process.pid)
        try:
            in_time = has_ended(process.pid, seconds)
        finally:
            code = reap(process, mark)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
    if not in_time:
        return f"{who} hung"
    if code < 0:
        return f"{who} crashed with {signal_name(-code)}"
    return "" if code == 0 else (said[-1] if said else f"exit code {code}")


def draw_with_egl() -> str:
    """Make a context without a display, draw with it and return the renderer's name; exits with a line if it fails."""
    try:
        egl: Any = ctypes.CDLL("libEGL.so.1")
    except OSError:
        sys.exit("there is no libEGL.so.1; apt-get install libegl1")
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    displays = list(_egl_displays(egl))
    for display in displays:
        if egl.eglInitialize(ctypes.c_void_p(display), None, None) and _make_current(egl, display):
            return _draw(egl)
    sys.exit(f"none of {len(displays)} EGL displays gives an OpenGL context" if displays else "EGL finds no display")


def _egl_function(egl: Any, name: str, result: Any, *arguments: Any) -> Any:
    address = egl.eglGetProcAddress(name.encode())
    if not address:
        sys.exit(f"EGL has no {name}")
    return ctypes.CFUNCTYPE(result, *arguments)(address)


def _egl_displays(egl: Any) -> Iterator[int]:
    """Yield the displays of all devices, then the one of software."""
    pointer = ctypes.c_void_p
    query = _egl_function(egl, "eglQueryDevicesEXT", ctypes.c_uint, ctypes.c_int, pointer, pointer)
    get = _egl_function(egl, "eglGetPlatformDisplayEXT", pointer, ctypes.c_uint, pointer, pointer)
    devices, count = (pointer * 32)(), ctypes.c_int()
    query(32, devices, ctypes.byref(count))
    found = [get(_EGL_DEVICES, device, None) for device in devices[: count.value]]
    yield from filter(None, [*found, get(_EGL_SURFACELESS, None, None)])


def _make_current(egl: Any, display: int) -> bool:
    """Make an OpenGL context of a display the current one, if it gives any."""
    for name in ("eglCreatePbufferSurface", "eglCreateContext"):
        getattr(egl, name).restype = ctypes.c_void_p
    where, config, count = ctypes.c_void_p(display), ctypes.c_void_p(), ctypes.c_int()
    wanted, size = (ctypes.c_int * len(_EGL_CONFIG))(*_EGL_CONFIG), (ctypes.c_int * len(_EGL_SURFACE))(*_EGL_SURFACE)
    egl.eglBindAPI(0x30A2)  # OpenGL, not OpenGL ES
    if not egl.eglChooseConfig(where, wanted, ctypes.byref(config), 1, ctypes.byref(count)) or not count.value:
        return False
    surface = ctypes.c_void_p(egl.eglCreatePbufferSurface(where, config, size))
    context = ctypes.c_void_p(egl.eglCreateContext(where, config, None, None))
    return bool(egl.eglMakeCurrent(where, surface, surface, context))


def _draw(egl: Any) -> str:
    """Fill the picture with a colour and read it back."""
    real, whole = ctypes.c_float, ctypes.c_int
    _egl_function(egl, "glClearColor", None, real, real, real, real)(0.0, 1.0, 0.0, 1.0)
    _egl_function(egl, "glClear", None, whole)(_GL_COLOR_BUFFER)
    pixel = (ctypes.c_ubyte * 4)()
    read = _egl_function(egl, "glReadPixels", None, *[whole] * 6, ctypes.c_void_p)
    read(0, 0, 1, 1, _GL_RGBA, _GL_UNSIGNED_BYTE, pixel)
    if list(pixel)[:3] != [0, 255, 0]:
        sys.exit("an EGL context was made, but what is drawn with it is not there")
    name = _egl_function(egl, "glGetString", ctypes.c_char_p, whole)(_GL_RENDERER)
    return (name or b"unknown").decode()
