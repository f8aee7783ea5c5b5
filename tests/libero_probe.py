"""LIBERO as the tests see it: with a view of what goes on inside, and with faults."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from manyarms.simulators.libero.simulator import LiberoSimulator


class Probe(LiberoSimulator):
    """Tells what cannot be seen from outside."""

    def __init__(self, tasks: Sequence[str] = ("object/0",), **options: Any) -> None:
        self._looks = 0
        super().__init__(tasks=tasks, **options)

    def render(self, camera: str = "agentview") -> Any:
        self._looks += 1
        return super().render(camera)

    def looks(self) -> int:
        """Return how often something was rendered."""
        return self._looks

    @classmethod
    def preload(cls, task: str = "", tasks: Sequence[str] = ("object/0",), **options: Any) -> None:
        super().preload(task, tasks, **options)

    def variables(self) -> dict[str, str]:
        return dict(os.environ)

    def modules(self) -> list[str]:
        return sorted(sys.modules)

    def is_exact(self) -> bool:
        """Tell whether our steps were found equal to robosuite's."""
        return self._scene._exact

    def cached_bytes(self) -> int:
        """Return what MuJoCo keeps of the files it has read."""
        return self._api.mujoco.mj_getCacheSize(self._api.mujoco.mj_getCache())

    def kept_tasks(self) -> list[str]:
        return list(self._scenes)

    def take_slow_steps(self) -> None:
        self._scene._exact = False

    def break_layout(self, kind: str) -> None:
        """Make every reset of LIBERO's fail."""
        error = self._api.RandomizationError if kind == "overlap" else KeyError

        def reset() -> None:
            raise error("on purpose")

        self._scene._env.reset = reset
