"""The environments every peer is measured on; see `benchmarks/README.md`."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

ACTION = Box(-1.0, 1.0, (8,), np.float32)
STATE = Box(-np.inf, np.inf, (32,), np.float32)


class _Workload(gymnasium.Env[Any, Any]):
    """Counts steps; what a step costs is in `_work`."""

    action_space = ACTION

    def __init__(self) -> None:
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._work(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._work(), 0.0, False, False, {}

    def _work(self) -> Any:
        raise TypeError("a workload must say what it does")


class NullState(_Workload):
    """Costs nothing: what is left is the hand-over."""

    observation_space = STATE

    def __init__(self) -> None:
        super().__init__()
        self._state = np.zeros(32, np.float32)

    def _work(self) -> Any:
        self._state[0] = self._step
        return self._state


class _Images(_Workload):
    """Two cameras and a state."""

    size = 256

    def __init__(self) -> None:
        super().__init__()
        image = Box(0, 255, (self.size, self.size, 3), np.uint8)
        self.observation_space = Dict({"front_rgb": image, "wrist_rgb": image, "state": STATE})
        self._frames = {name: np.zeros(image.shape, np.uint8) for name in ("front_rgb", "wrist_rgb")}
        self._state = np.zeros(32, np.float32)

    def _observe(self) -> dict[str, Any]:
        self._state[0] = self._step
        return {**self._frames, "state": self._state}


class NullImages(_Images):
    """Fills two 256x256 images: the cost of moving pixels."""

    def _work(self) -> Any:
        for frame in self._frames.values():
            frame.fill(self._step & 255)
        return self._observe()


class Busy(_Images):
    """Sleeps 3-7 ms a step: stragglers."""

    size = 128

    def _work(self) -> Any:
        if self._step:
            time.sleep(self.np_random.uniform(0.003, 0.007))
        return self._observe()


WORKLOADS = {"null_state": NullState, "null_images": NullImages, "busy": Busy}


class Chunked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """What a user of another library writes to send K actions in one call: a step is K steps."""

    def __init__(self, env: gymnasium.Env[Any, Any], length: int) -> None:
        super().__init__(env)
        box = env.action_space
        assert isinstance(box, Box)
        self.action_space = Box(box.low[None].repeat(length, 0), box.high[None].repeat(length, 0), dtype=np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        observation, terminated, truncated, info = None, False, False, {}
        for one in action:
            observation, reward, terminated, truncated, info = self.env.step(one)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


def make(workload: str, chunk: int = 1) -> gymnasium.Env[Any, Any]:
    """Make one environment, with the chunk wrapper when a step is to be several."""
    env = WORKLOADS[workload]()
    return Chunked(env, chunk) if chunk > 1 else env


def make_from_environment() -> gymnasium.Env[Any, Any]:
    """Make the environment that two variables name: for workers, which are given a function without arguments."""
    return make(os.environ["WORKLOAD"], int(os.environ.get("WORKLOAD_CHUNK", "1")))
