"""What RLBench stands on: CoppeliaSim, PyRep, a display and a home; what is checked, set and said about them."""

from __future__ import annotations

import glob
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Tuple

from ..about import Finding, MissingPart, absent, fault, ok
from ..graphics import has_gpu, is_software
from . import glx

#: The only version whose scenes and handles RLBench's files fit.
_VERSION = "4.1.0"

#: Commands of manyarms' repository.
GET_COPPELIASIM = 'scripts/install_coppeliasim.sh; export COPPELIASIM_ROOT="$HOME/CoppeliaSim"'
BUILD = "scripts/reinstall_rlbench.sh --python {python}"

_INSTALL = (
    "RLBench needs CoppeliaSim 4.1.0, PyRep and RLBench from their repositories: scripts/install_coppeliasim.sh and "
    "scripts/reinstall_rlbench.sh of manyarms' repository install them. The package named pyrep on PyPI is something "
    "else."
)

_VARIABLES = (
    "workers need COPPELIASIM_ROOT, and it in LD_LIBRARY_PATH, from their start: export both, or give "
    "make_vec(env={'COPPELIASIM_ROOT': root, 'LD_LIBRARY_PATH': root})"
)

_DISPLAY = (
    "cameras of RLBench need an X display with GLX, and DISPLAY is not set: give make_vec(display='xvfb'), or "
    "make_vec(env={'DISPLAY': ':99'}) for one that is there (Xvfb :99 +extension GLX), or take cameras=[]"
)

_WRONG_VERSION = (
    "%s. That is what RLBench says when CoppeliaSim is not 4.1.0: newer versions name objects "
    "otherwise. Install CoppeliaSim 4.1.0, set COPPELIASIM_ROOT to it, and install PyRep again, which is linked "
    "against the version it was built with"
)

#: Qt's platforms that draw with GLX only, or not at all: CoppeliaSim crashes at its first frame on the last two.
_NEED_X = ("xcb", "offscreen", "minimal")

_HOME_PREFIX = "manyarms-rlbench-"

#: What says where settings lie.
_OF_HOME = ("HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


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
        raise MissingPart("COPPELIASIM_ROOT is not set: %s. %s" % (_VARIABLES, _INSTALL))
    if not os.path.isdir(root):
        raise MissingPart("COPPELIASIM_ROOT is %s, where there is no folder: %s. %s" % (root, _VARIABLES, _INSTALL))
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
        raise MissingPart("RLBench cannot be imported (%s). %s" % (error, _INSTALL)) from error
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


def renderer() -> str:
    """Return the name of what draws on DISPLAY; "" where nothing does."""
    return _ask([sys.executable, glx.__file__])[0].strip()


def explain(error: RuntimeError) -> RuntimeError:
    """Return the error with what is known about its cause."""
    text = str(error)
    if "Handle" in text and "does not exist" in text:
        return Broken(_WRONG_VERSION % text.rstrip("."))
    if "V-REP side" in text:
        return Broken("CoppeliaSim refused a call: %s" % text)
    return error


# -- what the doctor asks, in the interpreter of the workers ----------------------------------------------------------

_LIBRARIES = ("libcoppeliaSim.so.1", "libcoppeliaSim.so")

#: Where Qt looks for the plug-in that opens windows on X, below QT_QPA_PLATFORM_PLUGIN_PATH.
_X_PLUG_INS = ("libqxcb.so", "platforms/libqxcb.so")

#: OpenCV with windows of its own, that is with a Qt of its own.
_WITH_QT = ("opencv-python", "opencv-contrib-python")

#: In a process of its own: what it loads may crash.
_IMPORT_PYREP = """
import sys
try:
    import pyrep.backend.sim
except ImportError as error:
    sys.exit("it cannot be imported: %s" % error)
"""

#: How long a program may take that is asked something.
_SECONDS = 30.0


def findings(python: str) -> List[Finding]:
    """Check everything that RLBench stands on; the interpreter that this runs in is called `python`."""
    root = Path(os.environ.get("COPPELIASIM_ROOT", ""))
    found = [coppeliasim_root()]
    if found[0].status == "ok":
        found += [coppeliasim_version(root, python), libraries(root), search_path(root)]
    return [*found, pyrep(python), rlbench(python), opencv(python)]


def coppeliasim_root() -> Finding:
    """Look for CoppeliaSim where COPPELIASIM_ROOT says it lies."""
    name, root = "COPPELIASIM_ROOT", os.environ.get("COPPELIASIM_ROOT", "")
    fix = f"{GET_COPPELIASIM}   # or the folder where it lies"
    if not root:
        return fault(name, "not set", fix)
    if not os.path.isdir(root):
        return fault(name, f"{root} is no folder", fix)
    if not any((Path(root) / library).exists() for library in _LIBRARIES):
        return fault(name, f"there is no {_LIBRARIES[0]} in {root}", fix)
    return ok(name, root)


def coppeliasim_version(root: Path, python: str) -> Finding:
    """Say which CoppeliaSim it is; no other than 4.1.0 will do."""
    name, found = "CoppeliaSim", version_of(root)
    if not found:
        return absent(name, f"its version is unknown: nothing in {root} tells; it must be {_VERSION}")
    if found != _VERSION:
        return fault(
            name,
            f"version {found}, but RLBench runs on {_VERSION} only: its scenes find objects by names that newer "
            "versions resolve otherwise ('Handle … does not exist'), and PyRep is built for the functions of that one",
            f"{GET_COPPELIASIM}; {BUILD.format(python=python)} --force   # PyRep is linked against the old one",
        )
    return ok(name, found)


def version_of(root: Path) -> str:
    """Read CoppeliaSim's version from its headers, its readme, its library or its folder's name; "" when none tells."""
    for header in ("simConst.h", "simLib/simConst.h"):
        number = re.search(r"SIM_PROGRAM_VERSION_NB\s+(\d+)", _text(root / "programming/include" / header))
        if number:  # 40100
            major, rest = divmod(int(number[1]), 10_000)
            return f"{major}.{rest // 100}.{rest % 100}"
    told = re.search(r"\bV?(\d+\.\d+\.\d+)\b", _text(root / "readme.txt"))
    if told:
        return told[1]
    for library in (root / name for name in _LIBRARIES):
        if library.is_file():
            # As it greets ("V4.1.0 (rev. 1)"), or the bare number as a string of its own.
            data = library.read_bytes()
            numbers = re.findall(rb"V(\d+\.\d+\.\d+)\.? *\(rev", data) or re.findall(rb"\0(4\.\d{1,2}\.\d)\.?\0", data)
            if len(set(numbers)) == 1:
                return numbers[0].decode()
    # What scripts/install_coppeliasim.sh noted of the tarball, or the folder as it was unpacked.
    named = re.search(r"V(\d+)_(\d+)_(\d+)", _text(root / ".manyarms-origin") or root.resolve().name)
    return ".".join(named.groups()) if named else ""


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""


def libraries(root: Path) -> Finding:
    """Have the loader resolve CoppeliaSim, and the part of Qt that draws on X."""
    name = "libraries"
    plug_in = next((root / path for path in _X_PLUG_INS if (root / path).exists()), None)
    if plug_in is None:
        return fault(name, f"Qt's plug-in for X displays ({_X_PLUG_INS[0]}) is not in {root}", GET_COPPELIASIM)
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("LD_LIBRARY_PATH", "")]))
    missing: List[str] = []
    for file in (next(root / library for library in _LIBRARIES if (root / library).exists()), plug_in):
        said, failure = _ask(["ldd", str(file)], {**os.environ, "LD_LIBRARY_PATH": path})
        if failure:
            return fault(name, f"ldd {file}: {failure}", GET_COPPELIASIM)
        missing += re.findall(r"(\S+) => not found", said)
    if missing:
        packages = " ".join(dict.fromkeys(map(debian_package, missing)))
        found = f"not on this system: {', '.join(dict.fromkeys(missing))}"
        return fault(name, found, f"apt-get install {packages}")
    return ok(name, "all of CoppeliaSim's and Qt's are found")


def debian_package(library: str) -> str:
    """Name the package that a library comes in by Debian's rule: libxcb-icccm.so.4 -> libxcb-icccm4."""
    stem, _, number = library.lower().replace("_", "-").partition(".so.")
    number = number.partition(".")[0]
    return f"{stem}-{number}" if stem[-1:].isdigit() else f"{stem}{number}"


def search_path(root: Path) -> Finding:
    """Check that the loader looks into CoppeliaSim's folder: it reads its path once, when a process starts."""
    name = "LD_LIBRARY_PATH"
    entries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    if any(entry and os.path.realpath(entry) == os.path.realpath(root) for entry in entries):
        return ok(name, "contains COPPELIASIM_ROOT")
    fix = 'export LD_LIBRARY_PATH="$COPPELIASIM_ROOT${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"'
    return fault(name, f"does not contain {root}", fix)


def pyrep(python: str) -> Finding:
    """Import PyRep; the package of that name on PyPI is something else."""
    name, build = "PyRep", BUILD.format(python=python)
    spec = importlib.util.find_spec("pyrep")
    if spec is None:
        return fault(name, "it is not installed", f"{build} --force")
    if spec.submodule_search_locations is None or importlib.util.find_spec("pyrep.backend") is None:
        found = "the package installed as pyrep is another one, from PyPI"
        return fault(name, found, f"{python} -m pip uninstall -y pyrep; {build}")
    failure = _ask([sys.executable, "-c", _IMPORT_PYREP])[1]
    return fault(name, failure, f"{build} --force") if failure else ok(name, os.path.dirname(str(spec.origin)))


def rlbench(python: str) -> Finding:
    """Look for RLBench, without the seconds that importing it takes."""
    spec = importlib.util.find_spec("rlbench")
    if spec is None:
        return fault("RLBench", f"{python} does not find it", BUILD.format(python=python))
    return ok("RLBench", os.path.dirname(str(spec.origin)))


def opencv(python: str) -> Finding:
    """Look for an OpenCV that brings a Qt of its own, which CoppeliaSim's cannot live beside."""
    packages = {
        (each.metadata["Name"] or "").lower().replace("_", "-"): each.version for each in metadata.distributions()
    }
    clashing = [package for package in _WITH_QT if package in packages]
    if clashing:
        # Both unpack into the same folder: the other must be installed anew after one of them is removed.
        pip = f"{python} -m pip"
        fix = f"{pip} uninstall -y {' '.join(clashing)} opencv-python-headless; {pip} install opencv-python-headless"
        return fault("OpenCV", f"{clashing[0]} brings a Qt of its own, which clashes with CoppeliaSim's", fix)
    headless = next((package for package in packages if package.endswith("-headless")), "")
    return ok("OpenCV", f"{headless} {packages[headless]}" if headless else "none that brings a Qt of its own")


def _ask(command: List[str], environ: Optional[Dict[str, str]] = None) -> Tuple[str, str]:
    """Return what a command printed, and in a line why it failed, if it did."""
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            timeout=_SECONDS,
        )
    except OSError as error:
        return "", f"{command[0]} could not be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return "", f"no answer within {_SECONDS:g} s"
    lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    if done.returncode < 0:
        return "", f"it was killed by signal {-done.returncode}"
    if done.returncode:
        return "", lines[-1].strip() if lines else f"exit code {done.returncode}"
    return done.stdout.decode(errors="replace"), ""
