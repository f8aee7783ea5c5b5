"""Benchmarks by the names that RIPT-VLA's configs have: LIBERO's suites, and tabletop where there is no LIBERO."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import manyarms
from manyarms import EpisodeId, VectorEnv
from manyarms.errors import ConfigError
from manyarms.simulators import registry
from manyarms.vector.config import find_interpreter

#: The images that PI0 looks at, first the scene, then the hand; and the numbers it feels.
IMAGES = {"libero": ("agentview_image", "robot0_eye_in_hand_image"), "tabletop": ("front_rgb", "wrist_rgb")}
STATES = {"libero": ("state",), "tabletop": ("gripper_pose", "gripper_open")}

#: Initial states that each task of LIBERO has; tabletop counts as many seeds.
NUM_INIT_STATES = 50

#: Pixels, across and down, of LIBERO's images: policies see them made smaller, as they were when they were trained.
RESOLUTION = 256


def available(name: str) -> str:
    """Return why a benchmark cannot be played here; nothing: it can."""
    if name == "tabletop":
        return ""
    python = find_interpreter(os.environ.get("LIBERO_PYTHON") or sys.executable)
    # From elsewhere: a folder named libero would pass for the package.
    look = "from importlib.util import find_spec; assert find_spec('libero') and find_spec('libero.libero')"
    if subprocess.run([python, "-c", look], capture_output=True, cwd=os.sep, check=False).returncode == 0:
        return ""
    return f"{python} has no LIBERO: scripts/install_libero.sh makes one that has; name it in LIBERO_PYTHON"


class Benchmark:
    """One suite of tasks."""

    def __init__(self, name: str, **options: Any) -> None:
        """Know a suite by name; `options` are those of `manyarms.make_vec`.

        LIBERO runs in the interpreter that scripts/install_libero.sh made: options["python"] or LIBERO_PYTHON.
        """
        self.name = name
        self.simulator = "tabletop" if name == "tabletop" else "libero"
        self._options: dict[str, Any] = {"action_bounds": "clip", "python": os.environ.get("LIBERO_PYTHON"), **options}
        if self.simulator == "tabletop":
            self._options["python"] = None
            self._options.setdefault("arm_mode", "delta_ee")
        else:
            self._options.setdefault("image_size", RESOLUTION)
        self._names: list[str] | None = None

    @property
    def python(self) -> str | None:
        """The interpreter that has the simulator; None: this one."""
        return self._options["python"]

    @property
    def images(self) -> tuple[str, str]:
        return IMAGES[self.simulator]

    @property
    def states(self) -> tuple[str, ...]:
        return STATES[self.simulator]

    def get_task_names(self) -> list[str]:
        """Return all tasks of the suite, in its order."""
        return self.task_names()

    def get_task_init_states(self, task_id: int) -> np.ndarray:
        """Return what a task's episodes may begin from, for `all_init_states`: the numbers of its fixed states."""
        if not 0 <= task_id < len(self.task_names()):
            raise ConfigError(f"{self.name} has tasks 0 to {len(self.task_names()) - 1}, not {task_id}")
        return np.arange(NUM_INIT_STATES)

    def evaluation_options(self) -> dict[str, Any]:
        """Return how the simulator is set up to judge a policy; what was chosen stays."""
        found = registry.about(self.simulator).evaluation_options
        return {name: value for name, value in found.items() if name not in self._options}

    def task_names(self) -> list[str]:
        """Return all tasks of the suite, in its order."""
        if self._names is None:
            if self.simulator == "tabletop":
                from manyarms.simulators.tabletop.task import discover

                self._names = sorted(discover())
            else:
                with self.open(1, [], cameras=[]) as envs:
                    self._names = list(envs.row_tasks[0])
        return self._names

    def open(self, num_envs: int, tasks: Sequence[str], **options: Any) -> VectorEnv:
        """Start environments that play `tasks`, or all of the suite."""
        simulator = self.simulator if self.simulator == "tabletop" else f"libero/{self.name}"
        chosen = {"tasks": list(tasks)} if tasks else {}
        return manyarms.make_vec(simulator, num_envs, **{**self._options, **chosen, **options})

    def start(self, task: str, number: int, state: Any, random_init: bool) -> EpisodeId:
        """Return where rollout `number` begins: from a state that is given, the next fixed one, or anywhere."""
        if random_init:
            drawn = None if self.simulator == "tabletop" else "sampled"
            return EpisodeId(task, seed=number, init_state=drawn, index=number)
        if state is None or _is_number(state):
            which = number % NUM_INIT_STATES if state is None else int(np.asarray(state).item())
            if self.simulator == "tabletop":
                return EpisodeId(task, seed=which, index=number)
            return EpisodeId(task, seed=0, init_state=which, index=number)
        return EpisodeId(task, seed=0, init_state=_plain(state), index=number)


def init_hash(episode: EpisodeId) -> str:
    """Return a name for where an episode began; rollouts of one group share it."""
    begun = EpisodeId(episode.task, episode.seed, episode.init_state)
    return hashlib.blake2b(begun.key, digest_size=8).hexdigest()


def _is_number(state: Any) -> bool:
    """Tell the number of a fixed state, also as numpy's tile leaves it, from a state itself."""
    if isinstance(state, dict):
        return False
    found = np.asarray(state.detach().cpu() if hasattr(state, "detach") else state)
    return found.size == 1 and np.issubdtype(found.dtype, np.integer)


def _plain(state: Any) -> Any:
    """Return a state without the library it came from: a tensor becomes an array."""
    if isinstance(state, dict):
        return state
    return np.asarray(state.detach().cpu() if hasattr(state, "detach") else state, np.float64)
