"""Ways to render without a screen, each tried by drawing a picture."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping

from manyarms.doctor.examination import Answer, ask
from manyarms.errors import ManyarmsError
from manyarms.simulators import graphics
from manyarms.simulators.about import Finding, absent, fault, ok
from manyarms.vector.display import DisplayConfig, Displays

#: A red ball before a black sky, drawn by MuJoCo with whichever library MUJOCO_GL names.
_DRAW = """
import sys
try:
    import mujoco
    from OpenGL import GL
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><light pos='0 0 3'/><geom type='sphere' size='.3' rgba='1 0 0 1'/></worldbody></mujoco>"
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with mujoco.Renderer(model, 48, 64) as renderer:
        renderer.update_scene(data)
        picture = renderer.render()
        name = GL.glGetString(GL.GL_RENDERER)
except Exception as error:
    sys.exit("%s: %s" % (type(error).__name__, str(error).strip().splitlines()[0] if str(error).strip() else ""))
if picture.max() - picture.min() < 50:
    sys.exit("a context was made, but every pixel of the picture is the same")
print((name or b"unknown").decode())
"""

_INSTALL = {
    "egl": "apt-get install libegl1 libgl1-mesa-dri",
    "osmesa": "apt-get install libosmesa6",
    "glfw": "apt-get install xvfb libgl1 libgl1-mesa-dri",
}
_NAMES = {"egl": "EGL", "osmesa": "OSMesa"}


def draw(library: str, seconds: float, variables: Mapping[str, str | None] | None = None) -> Answer:
    """Draw a picture in a process of its own, for drivers may crash; what it says is the renderer's name."""
    hidden = {"DISPLAY", "WAYLAND_DISPLAY", "PYOPENGL_PLATFORM"}
    environ: dict[str, str | None] = {name: value for name, value in os.environ.items() if name not in hidden}
    environ |= {**(variables or {}), "MUJOCO_GL": library}
    return ask([sys.executable, "-P", "-c", _DRAW], seconds, {k: v for k, v in environ.items() if v is not None})


def described(renderer: str) -> str:
    """Say what a picture was drawn by."""
    return f"a picture drawn by {renderer}" + (", on the CPU" if graphics.is_software(renderer) else "")


def without_display(seconds: float) -> list[Finding]:
    """Draw with EGL and with OSMesa, one of which MuJoCo needs, and with what MUJOCO_GL asks for."""
    answers = {library: draw(library, seconds / 3) for library in _NAMES}
    one_works = any(not answer.failure for answer in answers.values())
    rows = []
    for library, answer in answers.items():
        if not answer.failure:
            rows.append(ok(_NAMES[library], described(answer.said)))
        elif one_works and not graphics.is_installed(library):
            rows.append(absent(_NAMES[library], "not installed, and not needed beside the other", _INSTALL[library]))
        else:
            rows.append(fault(_NAMES[library], answer.failure, _INSTALL[library]))
    return [*rows, *chosen(answers, seconds / 3)]


def chosen(answers: Mapping[str, Answer], seconds: float) -> list[Finding]:
    """Check the library that the user has chosen for MuJoCo, if any."""
    library = os.environ.get("MUJOCO_GL", "")
    if not library or library.lower() in graphics.OFF:
        return []
    shown = {name: os.environ.get(name) for name in ("DISPLAY", "XAUTHORITY")}
    answer = answers.get(library.lower()) or draw(library, seconds, shown)
    name = f"MUJOCO_GL={library}"
    if not answer.failure:
        return [ok(name, described(answer.said))]
    working = [other for other, its in answers.items() if not its.failure]
    fix = f"export MUJOCO_GL={working[0]}, or unset MUJOCO_GL" if working else "unset MUJOCO_GL"
    return [fault(name, answer.failure, fix)]


def on_display(seconds: float, needed: bool) -> list[Finding]:
    """Start an X server of our own and draw in it with OpenGL (GLX)."""
    if shutil.which("Xvfb") is None and not needed:
        return [absent("Xvfb", "not installed, and not needed by what was named", _INSTALL["glfw"])]
    os.environ.pop("RLBENCH_PER_PROCESS_XVFB", None)  # a server of our own is what is tried
    try:
        with Displays(DisplayConfig("xvfb"), 1, rank=0, timeout=seconds / 3) as displays:
            answer = draw("glfw", seconds / 2, displays.variables(0))
    except ManyarmsError as error:
        return [fault("Xvfb", "; ".join(filter(None, (error.what, error.why))), _INSTALL["glfw"])]
    if answer.failure:
        return [fault("Xvfb", f"it starts, but OpenGL (GLX) does not work in it: {answer.failure}", _INSTALL["glfw"])]
    return [ok("Xvfb", described(answer.said))]
