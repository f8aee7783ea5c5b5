"""What RLBench stands on: CoppeliaSim, PyRep, a display and a home; and what to say when one of them is missing."""

from __future__ import annotations

import glob
import importlib
import importlib.util
import os
import pkgutil
import shutil
import tempfile
import warnings
from types import SimpleNamespace
from typing import Any, List, Optional

from ..graphics import has_gpu
from .glx import is_software, renderer

#: The only version whose scenes and handles RLBench's files fit.
COPPELIASIM = "CoppeliaSim 4.1.0"

INSTALL = (
    "RLBench needs %s, PyRep and RLBench from their repositories: scripts/install_coppeliasim.sh and "
    "scripts/reinstall_rlbench.sh of manyarms' repository install them. The package named pyrep on PyPI is something "
    "else." % COPPELIASIM
)

_VARIABLES = (
    "workers need COPPELIASIM_ROOT, and it in LD_LIBRARY_PATH, from their start: export both, or give "
    "make_vec(env={'COPPELIASIM_ROOT': root, 'LD_LIBRARY_PATH': root})"
)

_DISPLAY = (
    "cameras of RLBench need an X display with GLX, and DISPLAY is not set: give make_vec(display='xvfb'), or "
    "make_vec(env={'DISPLAY': ':99'}) for one that is there (Xvfb :99 +extension GLX), or take cameras=[]"
)

_VERSION = (
    "%s. That is what RLBench says when CoppeliaSim is not 4.1.0: newer versions name objects "
    "otherwise. Install " + COPPELIASIM + ", set COPPELIASIM_ROOT to it, and install PyRep again, which is linked "
    "against the version it was built with"
)

#: Qt's platforms that draw with GLX only, or not at all: CoppeliaSim crashes at its first frame on the last two.
_NEED_X = ("xcb", "offscreen", "minimal")

_HOME_PREFIX = "manyarms-rlbench-"

#: What says where settings lie.
_OF_HOME = ("HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


class MissingPart(ImportError):
    """Something that RLBench stands on is not there."""


class Broken(RuntimeError):
    """CoppeliaSim refused a call."""


class Home:
    """A folder that stands for the user's home: parallel CoppeliaSims corrupt each other's settings in a shared one.

    A worker that was given one (with its display) keeps it.
    """

    def __init__(self) -> None:
        self._lock: Optional[int] = None
        if os.environ.get("MANYARMS_PRIVATE_HOME"):
            return
        _sweep()
        made = tempfile.mkdtemp(prefix="new-" + _HOME_PREFIX)
        self._lock = _lock(os.path.join(made, "lock"))
        # Only now may others see it: a folder that is not locked is one that was left behind.
        self.path = os.path.join(os.path.dirname(made), os.path.basename(made)[len("new-") :])
        os.rename(made, self.path)
        runtime = os.path.join(self.path, "run")
        os.mkdir(runtime, 0o700)
        self._before = {name: os.environ.pop(name, None) for name in _OF_HOME}
        authority = os.path.join(self._before["HOME"] or "", ".Xauthority")
        if os.path.exists(authority):
            os.environ.setdefault("XAUTHORITY", authority)
        os.environ.update(HOME=self.path, XDG_RUNTIME_DIR=runtime)

    def remove(self) -> None:
        """Go back to the user's home."""
        if self._lock is None:
            return
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = None


def _lock(path: str) -> Optional[int]:
    """Lock a file until this process ends; None: someone else has."""
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _sweep() -> None:
    """Remove the homes of workers that were killed."""
    for folder in glob.glob(os.path.join(tempfile.gettempdir(), _HOME_PREFIX + "*")):
        try:
            handle = _lock(os.path.join(folder, "lock"))
        except OSError:
            continue  # another user's, or being removed
        if handle is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(handle)


def prepare(with_cameras: bool) -> None:
    """Set what CoppeliaSim reads from the environment when it is launched; say what is missing."""
    root = os.environ.get("COPPELIASIM_ROOT")
    if not root:
        raise MissingPart("COPPELIASIM_ROOT is not set: %s. %s" % (_VARIABLES, INSTALL))
    if not os.path.isdir(root):
        raise MissingPart("COPPELIASIM_ROOT is %s, where there is no folder: %s. %s" % (root, _VARIABLES, INSTALL))
    # Those of another Qt (opencv-python's, conda's, another CoppeliaSim's) do not fit.
    os.environ["QT_QPA_PLATFORM_PLUGIN_PATH"] = root
    platform = os.environ.get("QT_QPA_PLATFORM", "")
    if os.environ.get("MANYARMS_DISPLAY") == "egl":
        return  # what works was found by trying
    if not with_cameras:
        if platform == "" or (platform == "xcb" and not os.environ.get("DISPLAY")):
            os.environ["QT_QPA_PLATFORM"] = "offscreen"
    elif platform in ("", *_NEED_X):
        if not os.environ.get("DISPLAY"):
            raise MissingPart(_DISPLAY)
        os.environ["QT_QPA_PLATFORM"] = "xcb"


def load() -> SimpleNamespace:
    """Import RLBench and return the parts of it that are used here."""
    try:
        actions = importlib.import_module("rlbench.action_modes.action_mode")
        arms = importlib.import_module("rlbench.action_modes.arm_action_modes")
        grippers = importlib.import_module("rlbench.action_modes.gripper_action_modes")
        exceptions = importlib.import_module("rlbench.backend.exceptions")
        observations = importlib.import_module("rlbench.observation_config")
        environment = importlib.import_module("rlbench.environment")
        names = importlib.import_module("rlbench.utils")
        sim = importlib.import_module("pyrep.backend.sim")
        const = importlib.import_module("pyrep.const")
    except ImportError as error:
        if "libcoppeliaSim" in str(error):
            raise MissingPart("%s: %s" % (error, _VARIABLES)) from error
        raise MissingPart("RLBench cannot be imported (%s). %s" % (error, INSTALL)) from error
    return SimpleNamespace(
        Environment=environment.Environment,
        MoveArmThenGripper=actions.MoveArmThenGripper,
        Discrete=grippers.Discrete,
        arms=arms,
        CameraConfig=observations.CameraConfig,
        ObservationConfig=observations.ObservationConfig,
        InvalidActionError=exceptions.InvalidActionError,
        TaskEnvironmentError=exceptions.TaskEnvironmentError,
        name_to_task_class=names.name_to_task_class,
        RenderMode=const.RenderMode,
        sim=sim,
    )


def task_names() -> List[str]:
    """Return the names of all tasks, in snake case."""
    tasks = importlib.import_module("rlbench.tasks")
    return sorted(module.name for module in pkgutil.iter_modules(tasks.__path__) if not module.name.startswith("_"))


def tasks_on_disk() -> List[str]:
    """Return the names of the tasks of an installed RLBench, which is not imported: that would load CoppeliaSim."""
    spec = importlib.util.find_spec("rlbench")
    folders = [os.path.join(each, "tasks") for each in spec.submodule_search_locations or ()] if spec else []
    return [module.name for module in pkgutil.iter_modules(folders) if not module.name.startswith("_")]


def unthrottle(sim: Any, idle_fps: int) -> None:
    """Let the simulation run as fast as it can; to be called before it is started."""
    try:
        sim.simSetBoolParameter(sim.sim_boolparam_realtime_simulation, False)
        sim.simSetInt32Parameter(sim.sim_intparam_idle_fps, idle_fps)
    except RuntimeError as error:
        warnings.warn("CoppeliaSim may run no faster than real time: %s" % error, RuntimeWarning, stacklevel=2)


def draws_on_a_gpu() -> bool:
    """Tell whether OpenGL runs on a GPU; an Xvfb, whoever runs it, draws on the CPU, whatever there is."""
    if os.environ.get("MANYARMS_DISPLAY") == "xvfb":
        return False
    if os.environ.get("LIBGL_ALWAYS_SOFTWARE", "0") not in ("", "0", "false") or not has_gpu():
        return False
    if os.environ.get("MANYARMS_DISPLAY") == "egl":
        return True
    name = renderer()
    return bool(name) and not is_software(name)


def explain(error: RuntimeError) -> RuntimeError:
    """Return the error with what is known about its cause."""
    text = str(error)
    if "Handle" in text and "does not exist" in text:
        return Broken(_VERSION % text.rstrip("."))
    if "V-REP side" in text:
        return Broken("CoppeliaSim refused a call: %s" % text)
    return error


__all__ = ["Broken", "Home", "MissingPart", "draws_on_a_gpu", "explain", "load", "prepare", "task_names", "unthrottle"]
