"""A stand-in for omnigibson.macros: settings that cannot be changed once they were read."""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace
from typing import Any


class MacroDict(dict):
    def __init__(self, **values):
        super().__init__(values)
        object.__setattr__(self, "_read", set())

    def __getattr__(self, name):
        self._read.add(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        if name in self._read:
            raise AttributeError("Cannot set attribute %s in MacroDict, it has already been used." % name)
        self[name] = value


def determine_data_path():
    path = os.environ.get("OMNIGIBSON_DATA_PATH", "/nowhere/datasets")
    assert os.path.exists(path), "Data path %s does not exist!" % path
    return path


gm = MacroDict(
    DATA_PATH=determine_data_path(),
    APPDATA_PATH=os.environ.get("OMNIGIBSON_APPDATA_PATH", "/nowhere/appdata"),
    GPU_ID=os.environ.get("OMNIGIBSON_GPU_ID"),
    HEADLESS=os.environ.get("OMNIGIBSON_HEADLESS", "False").lower() in ("true", "1", "t"),
    USE_NUMPY_CONTROLLER_BACKEND=True,
    RENDER_VIEWER_CAMERA=True,
    USE_GPU_DYNAMICS=False,
    ENABLE_OBJECT_STATES=True,
    ENABLE_TRANSITION_RULES=True,
)
#: Those of modules, below the names of their files.
macros: Any = SimpleNamespace(globals=gm, robots=SimpleNamespace(manipulation_robot=MacroDict(GRASP_WINDOW=1 / 30)))


@contextlib.contextmanager
def unlocked():
    read = macros.robots.manipulation_robot._read
    kept = set(read)
    read.clear()
    yield
    read.update(kept)


macros.unlocked = unlocked
if not os.environ.get("OMNIGIBSON_STANDIN_VERSION", "3.7.2").startswith("3.9"):
    gm["ENABLE_FLATCACHE"] = False
