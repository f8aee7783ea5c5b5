"""Displays for simulators that need an X server: started, checked and ended by the main side, one a worker.

Every worker gets a HOME and an XDG_RUNTIME_DIR of its own as well: simulators that are windows programs at heart keep
settings there, and several of them at once corrupt each other's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import site
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from manyarms.errors import ConfigError, StartError
from manyarms.vector.egl import QT_PLATFORMS, egl_failure
from manyarms.vector.keeper import Keeper
from manyarms.vector.xauthority import authority_file, check_external
from manyarms.vector.xvfb import Parent, Xvfb, wait_until_up

logger = logging.getLogger("manyarms")

BACKENDS = ("xvfb", "egl", "external")

Variables = dict[str, str | None]
"""Environment variables; None removes one."""

Trial = Callable[[Variables], str]
"""Has a simulator draw with these; returns why that does not work, nothing if it does."""

_SECONDS_TO_END = 3.0
_OFF = {"0", "false", "no", "off"}


@dataclass(frozen=True)
class DisplayConfig:
    """Where workers draw."""

    backend: str = "xvfb"
    """Servers of our own ("xvfb"), no X server ("egl"), or servers that someone else runs ("external")."""
    workers_per_display: int = 1
    """How many workers share a display."""
    screen: str = "1280x1024x24"
    """Width, height and depth of an Xvfb's screen."""
    base: int | None = None
    """The first external display; default: RLBENCH_BASE_DISPLAY, or the one in DISPLAY for all workers."""
    per_rank: int | None = None
    """How far the external displays of neighbouring ranks lie apart; default: as many as a rank has."""

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ConfigError(f"display is {self.backend!r}", do=f"choose from {', '.join(BACKENDS)}")
        for name, least in (("workers_per_display", 1), ("base", 0), ("per_rank", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ConfigError(f"{name} is {value!r}; it must be a whole number, at least {least}")
        if not re.fullmatch(r"\d+x\d+x(8|16|24|30)", str(self.screen)):
            raise ConfigError(f"screen is {self.screen!r}", do="give width, height and depth: 1280x1024x24")

    def with_environment(self, environ: Mapping[str, str]) -> DisplayConfig:
        """Return what RLBENCH_PER_PROCESS_XVFB and RLBENCH_BASE_DISPLAY make of this."""
        config = self
        if self.backend == "xvfb" and environ.get("RLBENCH_PER_PROCESS_XVFB", "").strip().lower() in _OFF:
            config = replace(self, backend="external")
        base = environ.get("RLBENCH_BASE_DISPLAY", "").strip()
        if config.backend == "external" and config.base is None and base:
            if not re.fullmatch(r":?\d+", base):
                raise ConfigError(f"RLBENCH_BASE_DISPLAY is {base!r}", do="give the number of a display, such as 99")
            config = replace(config, base=int(base.lstrip(":")))
        return config


class Displays:
    """The displays and private directories of all workers."""

    def __init__(self, config: DisplayConfig, workers: int, *, rank: int | None = None, timeout: float = 60.0) -> None:
        self._owner = os.getpid()
        self._config = config.with_environment(os.environ)
        self._workers = workers
        self._rank = rank_of(os.environ) if rank is None else rank
        self._timeout = timeout
        self._servers: dict[int, Xvfb] = {}
        """By the number of the display among ours, which several workers may share."""
        self._qt_platform = QT_PLATFORMS[0]
        """What a Qt program draws with where there is no X server."""
        self._released: set[int] = set()
        self._parent: Parent | None = None
        self._root: Path | None = None

    @property
    def backend(self) -> str:
        """What workers draw with; after `start`, what came of a backend that does not work here."""
        return self._config.backend

    @property
    def servers(self) -> list[Xvfb]:
        """The servers that were started."""
        return list(self._servers.values())

    def start(self, trial: Trial | None = None) -> None:
        """Start all displays side by side, or check those that others run; `trial` decides whether EGL will do."""
        self._root = Path(tempfile.mkdtemp(prefix="manyarms-display-"))
        Keeper.instance().add_path(str(self._root))
        if self.backend == "egl":
            reason = egl_failure() or (self._find_qt_platform(trial) if trial is not None else "")
            if reason:
                logger.warning("EGL does not work here (%s): rendering through Xvfb instead", reason)
                self._config = replace(self._config, backend="xvfb")
        count = -(-self._workers // self._config.workers_per_display)
        if self.backend == "xvfb":
            self._start_servers(range(count))
        elif self.backend == "external":
            for name in dict.fromkeys(self._external(worker) for worker in range(self._workers)):
                check_external(name)

    def variables(self, worker: int) -> Variables:
        """Return what a worker that is about to start needs in its environment, with its display up."""
        self._released.discard(worker)
        variables = self._private_directories(worker)
        # What a session of the user's would have workers do instead.
        variables |= {"WAYLAND_DISPLAY": None, "QT_QPA_PLATFORM": "xcb", "MANYARMS_DISPLAY": self.backend}
        if self.backend == "egl":
            variables |= {"DISPLAY": None, "XAUTHORITY": None, "QT_QPA_PLATFORM": self._qt_platform}
            return variables | {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl"}
        if self.backend == "external":
            name = self._external(worker)
            check_external(name)
            authority = authority_file(os.environ)  # HOME is another one in the worker
            return variables | {"DISPLAY": name, "XAUTHORITY": str(authority) if authority.exists() else None}
        key = worker // self._config.workers_per_display
        server = self._servers.get(key)
        if server is None or server.problem():
            self._end_servers([key])
            self._start_servers([key])
        return variables | self._servers[key].variables

    def release(self, worker: int) -> None:
        """Say that a worker has ended for good; its display ends with the last of those that share it."""
        if os.getpid() != self._owner:
            return
        self._released.add(worker)
        size = self._config.workers_per_display
        key = worker // size
        if self._released.issuperset(range(key * size, min(self._workers, (key + 1) * size))):
            self._end_servers([key])
        if self._root is not None:
            shutil.rmtree(self._root / f"worker-{worker}", ignore_errors=True)

    def close(self) -> None:
        """End everything that was started."""
        if os.getpid() != self._owner:
            return  # a forked child has a copy of this object, but the servers are its parent's
        self._end_servers(list(self._servers))
        if self._parent is not None:
            self._parent.close()
            self._parent = None
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            Keeper.instance().remove_path(str(self._root))
            self._root = None

    def __enter__(self) -> Displays:
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self.start()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find_qt_platform(self, trial: Trial) -> str:
        """Find what the simulator's Qt can draw with; say why nothing will do, if so."""
        reasons = []
        for self._qt_platform in QT_PLATFORMS:
            reason = trial(self.variables(0))
            if not reason:
                return ""
            reasons.append(f"with Qt's {self._qt_platform} {reason}")
        return "; ".join(reasons)

    def _external(self, worker: int) -> str:
        """Return the name of the display that someone else runs for a worker."""
        if self._config.base is None:
            name = os.environ.get("DISPLAY", "")
            if not name:
                raise StartError(
                    "there is no display to use: DISPLAY is not set",
                    do="run under xvfb-run -a, set RLBENCH_BASE_DISPLAY, or use display='xvfb'",
                )
            return name
        size = self._config.workers_per_display
        per_rank = self._config.per_rank if self._config.per_rank is not None else -(-self._workers // size)
        return f":{self._config.base + self._rank * per_rank + worker // size}"

    def _private_directories(self, worker: int) -> Variables:
        """Return a new HOME and runtime directory: what a worker that crashed has left there may be broken."""
        assert self._root is not None, "start() comes first"
        own = self._root / f"worker-{worker}"
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(mode=0o700)
        home, runtime = own / "home", own / "runtime"
        for path in (home, runtime):
            path.mkdir(mode=0o700)
        elsewhere: Variables = dict.fromkeys(("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"))
        own_places = {"HOME": str(home), "XDG_RUNTIME_DIR": str(runtime), "MANYARMS_PRIVATE_HOME": "1"}
        # Packages that the user has installed under the real HOME must still be found.
        return {**elsewhere, **own_places, "PYTHONUSERBASE": site.getuserbase()}

    def _start_servers(self, keys: Sequence[int]) -> None:
        assert self._root is not None, "start() comes first"
        parent = self._parent = self._parent or Parent()
        for key in keys:
            self._servers[key] = parent.start(Xvfb, self._root / f"display-{key}", self._config.screen)
        wait_until_up([self._servers[key] for key in keys], time.monotonic() + self._timeout)

    def _end_servers(self, keys: Sequence[int]) -> None:
        servers = [self._servers[key] for key in keys if key in self._servers]
        for server in servers:
            server.ask_to_end()
        deadline = time.monotonic() + _SECONDS_TO_END
        for server in servers:
            server.end(deadline)
        for key in keys:
            self._servers.pop(key, None)


def rank_of(environ: Mapping[str, str]) -> int:
    """Return which of the ranks on this machine this is; displays are numbered by machine."""
    text = environ.get("LOCAL_RANK") or environ.get("RANK") or "0"
    if not text.isdecimal():
        raise ConfigError(f"LOCAL_RANK or RANK is {text!r}, which is no number")
    return int(text)
