"""What can be chosen about a vector environment, checked once at the door."""

from __future__ import annotations

import inspect
import os
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from manyarms.decoding import refuse_unfilled
from manyarms.errors import ConfigError
from manyarms.plugins import is_import_string
from manyarms.vector.display import DisplayConfig
from manyarms.workers.wire import MAX_ROWS_PER_WORKER

_CHOICES = {
    "action_bounds": ("error", "clip", "ignore"),
    "on_failure": ("restart", "raise"),
    "start_method": ("forkserver", "spawn"),
}

#: Seconds: longer than what the system waits for at once, and than anyone.
_LONGEST_START = 1_000_000

_MODES = {mode.value.lower(): mode for mode in AutoresetMode}


@dataclass(frozen=True)
class SimulatorConfig:
    """Which simulator a row runs, and where."""

    id: str
    """``<simulator>/<task>``, ``package.module:factory`` or ``path/to/file.py:factory``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keywords for the simulator; plain values and arrays."""
    python: str | None = None
    """The interpreter the worker runs in: a path, a command or a virtual environment; default: this one."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables set before the worker starts."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """Other names for its observation fields and cameras: unlike simulators then share those of one policy."""

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise ConfigError(f"a simulator is named by a string, got {self.id!r}")
        if not isinstance(self.options, Mapping):
            raise ConfigError(f"options of {self.id} are {self.options!r:.100}; give a mapping, name to value")
        if not isinstance(self.python, str | os.PathLike | None):
            raise ConfigError(f"python is {self.python!r:.100}; give the path of an interpreter")
        object.__setattr__(self, "options", {name: plain(value, name) for name, value in self.options.items()})
        if self.python is not None:
            object.__setattr__(self, "python", find_interpreter(self.python))
        if not isinstance(self.env, Mapping):
            raise ConfigError(f"env is {self.env!r}; it must be a mapping of environment variables")
        object.__setattr__(self, "env", plain(self.env, "env"))
        bad = [name for name, value in self.env.items() if not isinstance(value, str)]
        if bad:
            raise ConfigError(f"environment variables are strings; these are not: {', '.join(bad)}")
        names = [*self.rename, *self.rename.values()] if isinstance(self.rename, Mapping) else [None]
        if not all(isinstance(name, str) for name in names):
            raise ConfigError(f"rename is {self.rename!r:.100}; it must be a mapping, name to name")


@dataclass(frozen=True)
class VectorConfig:
    """How rows are run, whatever the simulator."""

    num_envs: int = 1
    """Environments side by side; each is one row of every array."""
    rows_per_worker: int = 1
    """Rows that share a process: for cheap simulators, and the size of lock-step groups."""
    max_chunk: int = 128
    """The most actions one call may carry."""
    max_episode_steps: int | None = None
    """Steps after which an episode is truncated; default: the simulator's own horizon."""
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP
    """What happens after an episode's end, by Gymnasium's rules: NextStep, SameStep or Disabled."""
    copy: bool = True
    """Return copies; False returns views of the shared memory, overwritten by the next step."""
    action_bounds: str = "error"
    """Actions out of range: "error", "clip" or "ignore"."""
    render_every: int = 0
    """Also render every n-th step of an episode, inside chunks too, for those who watch; 0: only where chunks end."""
    render_rows: Sequence[int] | None = None
    """The rows of which `render_every` speaks; default: all."""
    profile: bool = False
    """Measure where the time goes."""
    trace: str | os.PathLike[str] | None = None
    """Write a Chrome/Perfetto trace to this file (implies `profile`)."""
    info_bytes: int = 4096
    """Shared memory for a row's infos; longer ones travel over the socket, more slowly."""
    threads_per_worker: int = 1
    """Threads each maths library may start in a worker."""
    pin_cpus: bool | None = None
    """Bind each worker to a CPU of its own (True) or to none (False); default: to a NUMA node, on big machines."""
    egl_device: int | Sequence[int] | None = None
    """The GPU, or GPUs in turn, on which workers render."""
    display: str | DisplayConfig | None = None
    """Each worker's X server: one of its own ("xvfb"), none ("egl") or one that is there ("external"); None: as is."""
    stay_awake: float | None = None
    """Microseconds a worker looks out for its next command before it sleeps; default: 100 if each has a CPU, else 0."""
    start_method: str = "forkserver"
    """Fork workers from one process that has imported the simulator ("forkserver"), or start each anew ("spawn")."""
    start_timeout: float = 180.0
    """Seconds in which every worker must have built its simulator; BEHAVIOR has 1200 by default."""
    step_timeout: float | None = None
    """Seconds a step may take, not counting what the worker waits for a CPU; default: generous, by what was seen."""
    reset_timeout: float | None = None
    """Seconds a reset may take, likewise."""
    on_failure: str = "restart"
    """A worker that dies, hangs or fails: "restart" it and abort its episode, or "raise"."""
    max_restarts: int = 5
    """How often in a row, without an episode coming to its end, a worker is restarted; also one that fails to start
    where others with the same simulator have started."""
    worker_memory: int | None = None
    """Bytes a worker may hold: above, it is restarted after its episode; above one and a half times, at once."""
    recycle_after: int | None = None
    """Episodes after which a worker is restarted, for simulators that leak."""
    log_dir: str | os.PathLike[str] | None = None
    """Keep what workers print in ``worker-<i>.log`` here; default: only the last lines, for error messages."""

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_choices()
        object.__setattr__(self, "autoreset_mode", parse_autoreset(self.autoreset_mode))
        if isinstance(self.display, str):
            object.__setattr__(self, "display", DisplayConfig(self.display))
        elif self.display is not None and not isinstance(self.display, DisplayConfig):
            raise ConfigError(f"display is {self.display!r}", do="give a backend's name, or a DisplayConfig")
        if self.trace is not None:
            object.__setattr__(self, "profile", True)

    def _check_counts(self) -> None:
        for name in ("num_envs", "rows_per_worker", "max_chunk", "threads_per_worker"):
            _check_count(name, getattr(self, name), least=1)
        for name in ("render_every", "info_bytes", "max_restarts"):
            _check_count(name, getattr(self, name), least=0)
        for name in ("max_episode_steps", "worker_memory", "recycle_after"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name), least=1)
        if self.rows_per_worker > MAX_ROWS_PER_WORKER:
            raise ConfigError(
                f"rows_per_worker is {self.rows_per_worker}; a worker takes at most {MAX_ROWS_PER_WORKER}"
            )
        for name in ("start_timeout", "step_timeout", "reset_timeout"):
            seconds = getattr(self, name)
            if not (_is_number(seconds) and seconds > 0) and (seconds is not None or name == "start_timeout"):
                raise ConfigError(f"{name} is {seconds!r}; it must be a positive number of seconds")
        if self.start_timeout > _LONGEST_START:
            raise ConfigError(
                f"start_timeout is {self.start_timeout!r}; a worker has at most {_LONGEST_START:,} seconds"
            )
        if self.stay_awake is not None and not (_is_number(self.stay_awake) and 0 <= self.stay_awake <= 1e6):
            raise ConfigError(f"stay_awake is {self.stay_awake!r}; give microseconds, from 0 to a second")

    def _check_choices(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} is {getattr(self, name)!r}", do=f"choose from {', '.join(choices)}")
        rows = self.render_rows
        if rows is not None and not (_are_counts(rows) and all(row < self.num_envs for row in rows)):
            raise ConfigError(f"render_rows is {rows!r}; rows are numbered 0 to {self.num_envs - 1}")
        devices = [self.egl_device] if isinstance(self.egl_device, int) else self.egl_device
        if devices is not None and not (_are_counts(devices) and devices):
            raise ConfigError(f"egl_device is {self.egl_device!r}; give the index of a GPU, or several")

    @classmethod
    def names(cls) -> set[str]:
        """Return the names of all settings."""
        return {f.name for f in fields(cls)}


def plain(value: Any, name: str) -> Any:
    """Return an option as it can travel to another interpreter, paths as text; refuse what cannot."""
    refuse_unfilled(value, name, "--options")
    if value is None or isinstance(value, (bool, int, float, str, bytes, np.ndarray, np.generic)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {key: plain(item, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [plain(item, f"{name}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    raise ConfigError(
        f"option {name!r} is {value!r}, which cannot travel to a worker",
        why="workers may run another Python: they get numbers, text, arrays, lists and dicts",
        do="name functions and classes by import string: 'package.module:name'",
    )


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number, at least {least}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _are_counts(values: Any) -> bool:
    """Tell whether something is several whole numbers, none of them below 0."""
    several = isinstance(values, Collection) and not isinstance(values, str)
    return several and all(isinstance(value, (int, np.integer)) and value >= 0 for value in values)


def parse_autoreset(mode: AutoresetMode | str) -> AutoresetMode:
    """Accept the enum, Gymnasium's spelling ("NextStep") and ours ("next_step")."""
    if isinstance(mode, AutoresetMode):
        return mode
    found = _MODES.get(str(mode).replace("_", "").lower())
    if found is None:
        raise ConfigError(
            f"autoreset_mode is {mode!r}", do=f"choose one of {', '.join(m.value for m in AutoresetMode)}"
        )
    return found


def find_interpreter(python: str) -> str:
    """Return the absolute path of an interpreter given as a path, a command or a virtual environment."""
    path = Path(python).expanduser()
    if path.is_dir():
        path = path / "bin" / "python"
    found = shutil.which(str(path)) or (str(path) if path.is_file() else None)
    if found is None:
        raise ConfigError(
            f"there is no Python interpreter at {python!r}",
            do="give the path of a python executable or of a virtual environment",
        )
    if not os.access(found, os.X_OK):
        raise ConfigError(f"{found} cannot be executed", do=f"chmod +x {found}")
    # Not resolved: a virtual environment's python is a link, and the link is what makes it that environment.
    return os.path.abspath(found)


def name_of(simulator: str | Callable[..., Any]) -> str:
    """Return the name under which a worker finds a simulator; a function or class becomes its import string."""
    if isinstance(simulator, str):
        if is_import_string(simulator) and simulator.rpartition(":")[0].endswith(".py"):
            path, _, attribute = simulator.rpartition(":")
            return f"{os.path.abspath(path)}:{attribute}"
        return simulator
    qualified = getattr(simulator, "__qualname__", "")
    module = sys.modules.get(getattr(simulator, "__module__", "") or "")
    if not qualified or "<" in qualified or module is None:
        raise ConfigError(
            f"{simulator!r} cannot be found by another process",
            why="workers import what they run, nothing is pickled; a lambda or a local function has no name to import",
            do="move it to the top level of a module and pass it, or its import string 'package.module:name'",
        )
    if module.__name__ == "__main__":
        return f"{os.path.abspath(inspect.getfile(simulator))}:{qualified}"
    return f"{module.__name__}:{qualified}"


def rows_of(
    simulator: str | Callable[..., Any] | SimulatorConfig | Sequence[Any],
    num_envs: int,
    common: Mapping[str, Any],
) -> list[SimulatorConfig]:
    """Return one simulator config a row; several simulators take turns."""
    several = [simulator] if isinstance(simulator, (str, SimulatorConfig)) or callable(simulator) else list(simulator)
    if not several:
        raise ConfigError("no simulator given")
    if len(several) > num_envs:
        raise ConfigError(f"{len(several)} simulators need as many rows, got num_envs={num_envs}", do="raise num_envs")
    configs = [s if isinstance(s, SimulatorConfig) else SimulatorConfig(name_of(s), **common) for s in several]
    return [configs[i % len(configs)] for i in range(num_envs)]
