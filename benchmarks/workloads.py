"""The environments every peer is measured on: see the table in `benchmarks/README.md`."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict


class NullState(gymnasium.Env[Any, Any]):
    """Costs nothing: what is left is the hand-over."""

    observation_space = Box(-np.inf, np.inf, (32,), np.float32)
    action_space = Box(-1.0, 1.0, (8,), np.float32)

    def __init__(self) -> None:
        self._state = np.zeros(32, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = np.zeros(32, np.float32)
        return self._state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._state[0] += 1.0
        return self._state, 0.0, False, False, {}


class _Images(gymnasium.Env[Any, Any]):
    """Two cameras and a state."""

    action_space = Box(-1.0, 1.0, (8,), np.float32)

    def __init__(self, size: int) -> None:
        image = Box(0, 255, (size, size, 3), np.uint8)
        self.observation_space = Dict(
            {"front_rgb": image, "wrist_rgb": image, "state": Box(-np.inf, np.inf, (32,), np.float32)}
        )
        self._observation = {
            "front_rgb": np.zeros((size, size, 3), np.uint8),
            "wrist_rgb": np.zeros((size, size, 3), np.uint8),
            "state": np.zeros(32, np.float32),
        }
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        self._work()
        return self._observation, 0.0, False, False, {}

    def _work(self) -> None:
        self._observation["front_rgb"].fill(self._step & 255)
        self._observation["wrist_rgb"].fill((self._step + 1) & 255)
        self._observation["state"][0] = self._step


class NullImages(_Images):
    """Fills two 256x256 images: the cost of moving pixels."""

    def __init__(self) -> None:
        super().__init__(256)


class Busy(_Images):
    """Sleeps 3-7 ms a step: stragglers."""

    def __init__(self) -> None:
        super().__init__(128)

    def _work(self) -> None:
        time.sleep(self.np_random.uniform(0.003, 0.007))
        self._observation["state"][0] = self._step


WORKLOADS = {"null_state": NullState, "null_images": NullImages, "busy": Busy}
