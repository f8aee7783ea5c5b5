"""Walkers with pictures to look at, and walkers that wait until they may go on; they run in workers."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from manyarms.simulators.base import Field, StepResult
from standins import Walker

COLOURS = ((200, 30, 30), (30, 200, 30), (30, 30, 200), (200, 200, 30), (120, 120, 120))


class Painter(Walker):
    """A walker whose pictures have one colour, chosen by the seed."""

    def __init__(self, task: str = "", side: int = 128, goal: float = 3.0, built_in: float = 0.0) -> None:
        """`built_in` is the seconds that it takes to be made."""
        time.sleep(built_in)
        super().__init__(task, cameras=("front",), goal=goal)
        self.colour = COLOURS[0]
        fields = {**self.spec.observations, "front_rgb": Field((side, side, 3), "uint8", 0, 255, camera="front")}
        self.spec = replace(self.spec, observations=fields)

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        super().reset(task, seed, init_state)
        if seed is not None:
            self.colour = COLOURS[seed % len(COLOURS)]

    def observe(self, out: dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        super().observe(out, cameras)
        if "front" in cameras:
            out["front_rgb"][:] = self.colour


class Gated(Walker):
    """Begins and steps only once the files `reset` and `step` are there."""

    def __init__(self, gates: str, task: str = "") -> None:
        super().__init__(task, cameras=())
        self.gates = gates

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        self.wait_for("reset")
        super().reset(task, seed, init_state)

    def step(self, action: Any) -> StepResult:
        self.wait_for("step")
        return super().step(action)

    def wait_for(self, gate: str) -> None:
        while not os.path.exists(os.path.join(self.gates, gate)):
            time.sleep(0.005)
