"""A simulator and a policy whose work is sleep: what overlaps then shows, however few cores there are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyarms.policies.base import Observations
from manyarms.policies.heads import Evaluation
from manyarms.policies.small import MlpPolicy
from manyarms.simulators.base import Field, Simulator, Spec, StepResult, put


class SleepySimulator(Simulator):
    """Every step takes its time."""

    def __init__(self, step_seconds: float = 0.02) -> None:
        self._seconds = step_seconds
        self._position = 0.0
        self.spec = Spec(
            observations={"position": Field((1,), "float32")}, actions={"": Field((1,), "float32", -1.0, 1.0)}
        )

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        self._position = float(np.random.default_rng(seed).uniform(-1, 1))

    def step(self, action: Any) -> StepResult:
        time.sleep(self._seconds)
        self._position += 0.1 * float(action[0])
        return StepResult(-abs(self._position), False, False)

    def observe(self, out: dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        put(out, "position", np.array([self._position], np.float32))


class SleepyPolicy(MlpPolicy):
    """Every minibatch takes its time."""

    def __init__(self, spec: Spec, batch_seconds: float = 0.1, **options: Any) -> None:
        super().__init__(spec, **options)
        self._seconds = batch_seconds

    def evaluate(self, observations: Observations, chosen: np.ndarray | Tensor) -> Evaluation:
        if torch.is_grad_enabled():
            time.sleep(self._seconds)
        return super().evaluate(observations, chosen)
