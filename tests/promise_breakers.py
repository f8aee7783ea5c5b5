"""Simulators that keep every promise but one: the conformance suite must notice each of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from manyarms.simulators.base import ChunkResult, Field, Simulator, StepResult
from standins import Walker


class Blind(Walker):
    """A walker without cameras."""

    def __init__(self, task: str = "") -> None:
        super().__init__(task, cameras=())


class Trembling(Blind):
    """Begins a hair's breadth away from where its seed says, each time elsewhere."""

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        super().reset(task, seed, init_state)
        self.position += 1e-5 * int.from_bytes(os.urandom(2), "little") / 65536


class AtHome(Blind):
    """Begins elsewhere in every process."""

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        super().reset(task, seed, init_state)
        self.position += os.getpid() % 1000 / 1000


class Keeping(Blind):
    """Saves states that mean nothing to another process."""

    def save_state(self) -> Any:
        return {"process": os.getpid(), "state": super().save_state()}

    def load_state(self, state: Any) -> None:
        if state["process"] == os.getpid():
            super().load_state(state["state"])


class Lavish(Walker):
    """Renders all that it has, whoever looks."""

    def observe(self, out: dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        super().observe(out, self.cameras)


class HalfDone(Blind):
    """Has a task that can be begun and not be played."""

    def step(self, action: Any) -> StepResult:
        if self.task == "far":
            raise NotImplementedError("nobody has written what is far")
        return super().step(action)


class Overflowing(Blind):
    """Counts beyond the bound that its spec gives."""

    def __init__(self, task: str = "") -> None:
        super().__init__(task)
        self.spec = replace(self.spec, observations={**self.spec.observations, "clock": Field((), "int64", 0, 2)})


class Crowded(Blind):
    """Pushes its neighbours in the same process."""

    push = 0.0

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        super().reset(task, seed, init_state)
        Crowded.push = 0.0

    def step(self, action: Any) -> StepResult:
        Crowded.push += 0.01
        self.position += Crowded.push
        return super().step(action)


class Whole(Blind):
    """A walker with chunks of its own."""

    expect = Simulator.expect  # or its chunks would be run step by step


class Overrunning(Whole):
    """Counts one step more for a chunk than for its steps."""

    def step_chunk(self, actions: Sequence[Any]) -> ChunkResult:
        result = super().step_chunk(actions)
        self.clock += len(actions) > 1
        return result


class Rounding(Whole):
    """Rounds the rewards of its chunks to fewer digits than those of its steps."""

    def step_chunk(self, actions: Sequence[Any]) -> ChunkResult:
        rewards, success, terminated, truncated = super().step_chunk(actions)
        return [float(np.float32(reward)) for reward in rewards], success, terminated, truncated


class LateGiver(Whole):
    """Gives the rewards of a chunk all at its end."""

    def step_chunk(self, actions: Sequence[Any]) -> ChunkResult:
        rewards, success, terminated, truncated = super().step_chunk(actions)
        return [0.0] * (len(rewards) - 1) + [sum(rewards)], success, terminated, truncated
