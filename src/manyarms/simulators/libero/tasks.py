"""LIBERO's suites: which tasks they have, in whose words, and from which states they begin.

Read from LIBERO's files: importing its benchmark module would load torch.
"""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import zipfile
from typing import Any, Dict, List, NamedTuple

import numpy as np

from ..base import UnknownTask

#: Suites -> steps after which their episodes have failed.
CAPS: Dict[str, int] = {
    "libero_spatial": 220,
    "libero_object": 280,
    "libero_goal": 300,
    "libero_10": 520,
    "libero_90": 400,
}

#: Suites -> what they have.
SUITES: Dict[str, str] = {
    "libero_spatial": "10 tasks: the same things in other places",
    "libero_object": "10 tasks: other things in the same place",
    "libero_goal": "10 tasks: other goals with the same things",
    "libero_10": "10 long tasks, also known as LIBERO-Long",
    "libero_90": "90 short tasks in many scenes",
}


#: What a pickle of an array calls to make one again, in NumPy 1 and (there as `numpy._core`) 2.
_ARRAYS = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}


class SuiteTask(NamedTuple):
    """A task of a suite."""

    suite: str
    name: str
    root: str
    """Where LIBERO is installed."""

    @property
    def cap(self) -> int:
        """Steps after which an episode has failed."""
        return CAPS[self.suite]

    @property
    def bddl_file(self) -> str:
        return os.path.join(self.root, "bddl_files", self.suite, self.name + ".bddl")

    @property
    def language(self) -> str:
        """The task in words, as LIBERO's benchmark makes them from its name."""
        _, scene, words = self.name.partition("SCENE")
        return (words.partition("_")[2] if scene else self.name).replace("_", " ")

    def init_states(self) -> np.ndarray:
        """Return the states that episodes begin from, one a row: time, positions, velocities."""
        path = os.path.join(self.root, "init_files", self.suite, self.name + ".pruned_init")
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            return np.asarray(_Numbers(io.BytesIO(archive.read(name))).load(), np.float64)


class Suites:
    """All suites of an installed LIBERO."""

    def __init__(self, root: str) -> None:
        names = _task_map(os.path.join(root, "benchmark", "libero_suite_task_map.py"))
        self._tasks = {suite: [SuiteTask(suite, name, root) for name in names[suite]] for suite in CAPS}
        self._by_name = {task.name: task for tasks in self._tasks.values() for task in tasks}

    def in_words(self) -> Dict[str, str]:
        """Return every ``<suite>/<index>`` -> the task in words."""
        return {
            "%s/%d" % (suite, i): task.language for suite, tasks in self._tasks.items() for i, task in enumerate(tasks)
        }

    def find(self, text: str) -> List[SuiteTask]:
        """Return the task that a name or ``<suite>/<index or name>`` stands for, or all tasks of a suite."""
        suite, slash, task = text.strip("/").partition("/")
        if not slash and suite in self._by_name:
            return [self._by_name[suite]]
        tasks = self._tasks.get(suite) or self._tasks.get("libero_" + suite)
        if tasks is None:
            known = [*CAPS, *self._by_name]
            why = "no suite or task named %r; suites are %s" % (suite, ", ".join(CAPS))
            raise UnknownTask(suite, known, why)
        if not task:
            return tasks
        if task.isdigit():
            if int(task) >= len(tasks):
                why = "%s has tasks 0 to %d" % (tasks[0].suite, len(tasks) - 1)
                raise UnknownTask(text, [t.name for t in tasks], why)
            return [tasks[int(task)]]
        found = [t for t in tasks if t.name == task]
        if not found:
            raise UnknownTask(task, [t.name for t in tasks], "%s has no task named %r" % (tasks[0].suite, task))
        return found


class _Numbers(pickle.Unpickler):
    """Reads arrays and nothing else: the files are downloaded, and a pickle can name any function to be called."""

    def find_class(self, module: str, name: str) -> Any:
        if (module.replace("numpy._core", "numpy.core"), name) in _ARRAYS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError("initial states are arrays, but this file wants to run %s.%s" % (module, name))


def _task_map(path: str) -> Dict[str, List[str]]:
    spec = importlib.util.spec_from_file_location("manyarms_libero_task_map", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.libero_task_map
