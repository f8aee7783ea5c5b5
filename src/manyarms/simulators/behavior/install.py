"""What BEHAVIOR stands on: Isaac Sim, OmniGibson, datasets and a GPU; and what to say when one of them is missing."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import inspect
import os
import re
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..about import Finding, MissingPart, absent, fault, ok
from ..base import SpecError
from .releases import RELEASES, Release, release_of

_INSTALL = "scripts/install_behavior.sh of manyarms' repository installs Isaac Sim, OmniGibson and the datasets"

_DATA = "OMNIGIBSON_DATA_PATH"
_ISAAC = "ISAAC_PATH"

#: What the variables that must be set should hold.
_MEANINGS = {
    _DATA: "the folder of BEHAVIOR's datasets: robots, houses and instances, over 30 GB",
    _ISAAC: "the folder of Isaac Sim, with its file VERSION",
    "EXP_PATH": "Isaac Sim's folder apps (by default $ISAAC_PATH/apps)",
}

#: GPUs for computing only; the architecture does not tell (an A40 has what an A100 lacks).
_COMPUTING_ONLY = re.compile(r"\b(P100|V100|A100|A800|A30|H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300)\b")

_HOPPER = 9.0
_LEAST_DRIVER = 570

_EXPORT = "Workers need it from their start: export it, or give make_vec(env={…})"


class Broken(RuntimeError):
    """Isaac Sim could not be started."""


def prepare() -> str:
    """Set what Kit and OmniGibson read from the environment; say all that is missing, or return where the data is."""
    wrong = missing_variables()
    if wrong:
        raise MissingPart("%s. %s. %s" % ("; ".join(wrong), _EXPORT, _INSTALL))
    for name in (_DATA, _ISAAC):
        if os.environ.get(name):  # Kit works elsewhere, and takes ~ for a name
            os.environ[name] = _folder(name)
    if os.environ.get(_ISAAC):
        os.environ.setdefault("EXP_PATH", os.path.join(os.environ[_ISAAC], "apps"))
        os.environ.setdefault("CARB_APP_PATH", os.path.join(os.environ[_ISAAC], "kit"))
    os.environ.setdefault("OMNIGIBSON_HEADLESS", "1")
    os.environ.setdefault("OMNI_KIT_ACCEPT_EULA", "YES")  # as OmniGibson does itself; the installer has asked
    return os.environ[_DATA]


def missing() -> List[str]:
    """Say what is missing, as far as can be seen without importing or starting any of it."""
    wrong = missing_variables()
    if importlib.util.find_spec("omnigibson") is None:
        wrong.append("OmniGibson is not installed for %s. %s" % (sys.executable, _INSTALL))
    return wrong


def missing_variables() -> List[str]:
    """Say which variables are missing or do not hold what they should; change nothing."""
    wrong = []
    if not os.path.isdir(_folder(_DATA)):
        wrong.append(_complaint(_DATA))
    isaac = _folder(_ISAAC)
    if isaac or importlib.util.find_spec("isaacsim") is None:  # that package of pip's finds itself when imported
        if not os.path.isfile(os.path.join(isaac, "VERSION")):
            wrong.append(_complaint(_ISAAC))
        elif not os.path.isdir(os.environ.get("EXP_PATH") or os.path.join(isaac, "apps")):
            wrong.append(_complaint("EXP_PATH"))
    return wrong


def _folder(name: str) -> str:
    """Return the folder that a variable names, wherever one looks at it from; nothing if it is not set."""
    value = os.environ.get(name, "")
    return os.path.abspath(os.path.expanduser(value)) if value else ""


def _complaint(name: str) -> str:
    value = os.environ.get(name)
    found = "%s is not set" % name if not value else "%s is %s, which is not that" % (name, value)
    return "%s (it should hold %s)" % (found, _MEANINGS[name])


def choose_gpu() -> List[str]:
    """Render and simulate where `egl_device` says, unless OMNIGIBSON_GPU_ID does; return what may go wrong there."""
    chosen = os.environ.get("OMNIGIBSON_GPU_ID") or os.environ.get("EGL_DEVICE_ID", "")
    said = []
    if chosen:
        os.environ["OMNIGIBSON_GPU_ID"] = chosen
    # In a placed run every process counts its workers from 0, and its plan has looked at the GPUs of all of them.
    first = os.environ.get("MANYARMS_WORKER", "0") == "0" and not os.environ.get("MANYARMS_PLACED")
    if first and chosen not in ("", "0"):
        said.append("Isaac Sim may hang unless its first process is on GPU 0, and this one is on GPU %s" % chosen)
    found = survey_gpus()
    if chosen.isdigit() and int(chosen) < len(found):
        found = [found[int(chosen)]]
    said += complaints(found)
    for text in said:
        print("warning: " + text, file=sys.stderr, flush=True)
    return said


class Gpu(NamedTuple):
    """What nvidia-smi says of a GPU."""

    name: str
    driver: str
    capability: float


def survey_gpus(seconds: float = 10.0) -> List[Gpu]:
    """Return the GPUs of this machine, by number."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=seconds, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line.split(", ") for line in said.stdout.decode().splitlines()]
    return [Gpu(line[0], line[1], _number(line[2])) for line in lines if len(line) == 3]


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text.strip()) else 0.0


def complaints(gpus: Sequence[Gpu]) -> List[str]:
    """Say what is known to go wrong on these GPUs."""
    return [*_old_drivers(gpus), *_without_ray_tracing(gpus)]


def _old_drivers(gpus: Sequence[Gpu]) -> List[str]:
    return [
        "%s needs the NVIDIA driver %d or later for Isaac Sim, and %s is installed"
        % (gpu.name, _LEAST_DRIVER, gpu.driver)
        for gpu in dict.fromkeys(gpus)
        if gpu.capability >= _HOPPER and _number(gpu.driver.partition(".")[0]) < _LEAST_DRIVER
    ]


def _without_ray_tracing(gpus: Sequence[Gpu]) -> List[str]:
    return [
        "%s has no ray-tracing cores: Isaac Sim's images will be blurred or mosaic-like. Render on a GPU that "
        "has them (RTX, L40, A40), or expect policies to see badly" % gpu.name
        for gpu in dict.fromkeys(gpus)
        if _COMPUTING_ONLY.search(gpu.name)
    ]


class AppData:
    """A folder of Kit's own a process: processes that share one corrupt each other's caches.

    Folders are numbered and kept, because compiling shaders anew takes minutes; a process takes the first that is free.
    """

    def __init__(self) -> None:
        import fcntl

        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        base = os.environ.get("OMNIGIBSON_APPDATA_PATH") or os.path.join(cache, "manyarms", "omnigibson")
        self._lock: Optional[int] = None
        for number in range(1024):
            self.path = os.path.join(base, str(number))
            os.makedirs(self.path, exist_ok=True)
            handle = os.open(os.path.join(self.path, "in-use"), os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(handle)
                continue
            self._lock = handle
            os.environ["OMNIGIBSON_APPDATA_PATH"] = self.path
            return
        raise Broken("all 1024 folders below %s are in use by other processes" % base)

    def leave(self) -> None:
        """Let another process have the folder."""
        if self._lock is not None:
            os.environ["OMNIGIBSON_APPDATA_PATH"] = os.path.dirname(self.path)
            os.close(self._lock)
            self._lock = None


def load() -> Any:
    """Import OmniGibson; this does not start Isaac Sim yet."""
    if threading.current_thread() is not threading.main_thread():
        raise SpecError("OmniGibson can only be started in the main thread of a process: it handles signals")
    _load_compiler()
    try:
        with _undisturbed():
            return importlib.import_module("omnigibson")
    except ImportError as error:
        raise MissingPart("OmniGibson cannot be imported by %s (%s). %s" % (sys.executable, error, _INSTALL)) from error


def _load_compiler() -> None:
    """Import numba before Kit brings an older one of its own, which does not fit the llvmlite that is installed."""
    for name in ("llvmlite", "numba", "numba.np.arrayobj", "numba.core.runtime.context"):
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            with contextlib.suppress(ImportError):  # one that does not work here; Kit's own may
                importlib.import_module(name)


def check_isaac(release: Release) -> None:
    """Refuse an Isaac Sim that this OmniGibson is not made for."""
    if not os.environ.get(_ISAAC):
        return
    version = _version_of(os.environ[_ISAAC])
    if not version.startswith(release.isaac):
        raise MissingPart(
            "ISAAC_PATH holds Isaac Sim %s, and OmniGibson %s is made for %s. %s"
            % (version, release.version, release.isaac, _INSTALL)
        )


def _version_of(isaac: str) -> str:
    with open(os.path.join(isaac, "VERSION"), encoding="utf-8", errors="replace") as file:
        return file.read().strip().partition("-")[0]


def set_macros(og: Any, values: Dict[str, Any]) -> None:
    """Set OmniGibson's global settings; to be done before anything reads them, which freezes them."""
    for name, value in values.items():
        if name in og.gm:
            setattr(og.gm, name, value)


def launch(og: Any, build: Callable[[], Any], attempts: int, pause: float) -> Any:
    """Start Isaac Sim and load the scenes, again if that fails: it does now and then."""
    for attempt in range(1, attempts + 1):
        sys.argv[1:] = []  # Kit reads it, and OmniGibson adds to it
        try:
            with _undisturbed():
                return build()
        except (RuntimeError, OSError) as error:
            if attempt == attempts:
                raise Broken("Isaac Sim could not be started in %d attempts: %s" % (attempts, error)) from error
            wait = pause * 2 ** (attempt - 1)
            print("Isaac Sim did not start (%s): again in %g s" % (error, wait), file=sys.stderr, flush=True)
            time.sleep(wait)
            if og.sim is not None:
                og.clear()
    return None


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Undo what OmniGibson and Kit do to the process: they take Ctrl-C, and stop the garbage collector, which leaks."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        gc.enable()


def abilities(envs: Any) -> SimpleNamespace:
    """Tell by their signatures what `step` and `reset` of a vector environment can do; forks can more."""
    step, reset = _named(envs.step), _named(envs.reset)
    return SimpleNamespace(
        skips=[name for name in ("get_obs", "render") if name in step], partial_reset="env_indices" in reset
    )


def _named(function: Any) -> Set[str]:
    return set(inspect.signature(function).parameters)


def sensors_of(robot: Any, names: Dict[str, str]) -> Dict[str, Any]:
    """Return a robot's cameras by what we call them."""
    found: Dict[str, Any] = {}
    missing: List[str] = []
    for camera, part in names.items():
        matching = [sensor for name, sensor in robot.sensors.items() if part in name]
        if matching:
            found[camera] = matching[0]
        else:
            missing.append(camera)
    if missing:
        raise SpecError("the robot has no camera %s, only %s" % (", ".join(missing), ", ".join(robot.sensors)))
    return found


# -- what the doctor asks, in the interpreter of the workers ----------------------------------------------------------


def findings(python: str) -> List[Finding]:
    """Check everything that BEHAVIOR stands on; the interpreter that this runs in is called `python`."""
    release, found = omnigibson(python)
    return [found, isaac_sim(release), datasets(release), *graphics()]


def omnigibson(python: str) -> Tuple[Release, Finding]:
    """Tell which OmniGibson there is, and whether this Python is the one that its Isaac Sim is built for."""
    name, first = "OmniGibson", next(iter(RELEASES.values()))
    spec = importlib.util.find_spec("omnigibson")
    if spec is None or spec.origin is None:
        return first, fault(name, f"{python} does not find it", _INSTALL)
    with open(spec.origin, encoding="utf-8") as file:  # importing it takes its time, and sets signal handlers
        told = re.search(r'^__version__ = .*?"(\d[\w.]*)"', file.read(), re.MULTILINE)
    version, own = told.group(1) if told else "", "%d.%d" % sys.version_info[:2]
    try:
        release = release_of(version)
    except SpecError as error:
        return first, fault(name, str(error), "scripts/install_behavior.sh")
    if own != release.python:
        found = f"{version} in Python {own}; its Isaac Sim {release.isaac} is built for {release.python}"
        return release, fault(name, found, f"scripts/install_behavior.sh --python python{release.python}")
    return release, ok(name, f"{version} in Python {own}")


def isaac_sim(release: Release) -> Finding:
    """Look for Isaac Sim where ISAAC_PATH says it lies, or among the packages of pip."""
    root, fix = _folder(_ISAAC), f"export {_ISAAC}=<folder of Isaac Sim {release.isaac}>"
    if not root:
        if importlib.util.find_spec("isaacsim") is not None:
            return ok(_ISAAC, "not set; the package isaacsim finds itself")
        return fault(_ISAAC, "not set", fix)
    if not os.path.isfile(os.path.join(root, "VERSION")):
        return fault(_ISAAC, f"there is no file VERSION in {root}", fix)
    version = _version_of(root)
    if not version.startswith(release.isaac):
        return fault(_ISAAC, f"{root} holds {version}; OmniGibson {release.version} is made for {release.isaac}", fix)
    return ok(_ISAAC, f"Isaac Sim {version}, {root}")


def datasets(release: Release) -> Finding:
    """Look for the three datasets."""
    root = _folder(_DATA)
    if not root:
        return fault(_DATA, "not set", f"export {_DATA}=<folder of BEHAVIOR's datasets>")
    fix = f"scripts/install_behavior.sh --only data --data {root}"
    if not os.path.isdir(root):
        return fault(_DATA, f"there is no folder {root}", fix)
    wanted = ("omnigibson-robot-assets", "behavior-1k-assets", release.dataset)
    lacking = [each for each in wanted if not os.path.isdir(os.path.join(root, each))]
    return fault(_DATA, f"{', '.join(lacking)} not in {root}", fix) if lacking else ok(_DATA, root)


def graphics() -> List[Finding]:
    """Say what is known to go wrong on the GPUs that are here."""
    gpus = survey_gpus()
    if not gpus:
        return [fault("GPU", "nvidia-smi finds none", "Isaac Sim needs an NVIDIA GPU and its driver")]
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
    found = [fault("GPU", text, "install a newer NVIDIA driver") for text in _old_drivers(gpus)]
    found = found or [ok("GPU", f"{names}, driver {gpus[0].driver}")]
    return [*found, *(absent("ray tracing", text) for text in _without_ray_tracing(gpus)[:1])]
