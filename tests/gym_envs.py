"""Gymnasium environments with every kind of space and info, compared with Gymnasium's own vector environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Chatty(gymnasium.Env[Any, Any]):
    """Short episodes, nested observations, and infos of every type that come and go."""

    def __init__(self, length: int = 7, goal: int = 3) -> None:
        self.length = length
        self.goal = goal
        self.observation_space = spaces.Dict(
            {
                "state": spaces.Box(-np.inf, np.inf, (3,), np.float64),
                "inner": spaces.Dict({"grid": spaces.MultiDiscrete([5, 7]), "bits": spaces.MultiBinary(4)}),
                "cell": spaces.Discrete(9, start=2),
            }
        )
        self.action_space = spaces.MultiDiscrete([3, 4])
        self.clock = 0
        self.hits = 0
        self.options: Any = None

    def _observe(self) -> dict[str, Any]:
        return {
            "state": self.np_random.normal(size=3),
            "inner": {
                "grid": self.np_random.integers([5, 7]),
                "bits": self.np_random.integers(0, 2, 4, dtype=np.int8),
            },
            "cell": np.int64(2 + self.clock % 9),
        }

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"clock": self.clock, "half": self.clock / 2, "odd": bool(self.clock % 2)}
        if self.clock % 3 == 0:
            info["vector"] = np.arange(3) + self.clock
            info["text"] = f"step {self.clock}"
        if self.clock % 2 == 0:
            info["nested"] = {"a": np.float32(self.clock), "b": {"c": [1, 2, self.clock]}}
        if self.options:
            info["options"] = self.options["level"]
        return info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.clock = self.hits = 0
        self.options = options
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.clock += 1
        self.hits += int(action[0] == 2)
        terminated = self.hits >= self.goal
        return self._observe(), float(action[1]), terminated, self.clock >= self.length, self._info()

    def add(self, a: int, b: int = 1) -> int:
        return a + b + self.clock


class DictAction(gymnasium.Env[Any, Any]):
    """Parts of an action under names."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Dict(
            {"arm": spaces.Box(-1, 1, (2,), np.float32), "grip": spaces.Discrete(2), "mode": spaces.MultiBinary(2)}
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        return action["arm"] * 2, float(action["grip"]) + float(action["mode"].sum()), False, False, {}


class BadObservation(gymnasium.Env[Any, Any]):
    """Declares one shape and returns another."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, wrong: str = "shape") -> None:
        self.wrong = wrong

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        bad = np.zeros(1, np.float32) if self.wrong == "shape" else np.zeros(3, np.complex64)
        return bad, 0.0, False, False, {}


class TextSpace(gymnasium.Env[Any, Any]):
    """Has a space that does not fit into shared memory."""

    observation_space = spaces.Text(10)
    action_space = spaces.Discrete(2)


class LongInfo(gymnasium.Env[Any, Any]):
    """Says more than fits into a row's info area."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    step_count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.step_count = 0
        return np.zeros(1, np.float32), {"table": np.arange(5000)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_count += 1
        end = self.step_count % 3 == 0
        return np.zeros(1, np.float32), 0.0, end, False, {"table": np.arange(5000) + self.step_count}


class Passing(gymnasium.Env[Any, Any]):
    """Succeeds at its fifth step and goes on."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    clock = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.clock = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.clock += 1
        return np.zeros(1, np.float32), 0.0, False, False, {"is_success": self.clock == 5}


class Doubled(gymnasium.RewardWrapper[Any, Any]):
    """Multiplies rewards."""

    def __init__(self, env: gymnasium.Env[Any, Any], factor: float = 2.0) -> None:
        super().__init__(env)
        self.factor = factor

    def reward(self, reward: Any) -> float:
        return self.factor * float(reward)


def make_chatty(length: int = 7) -> gymnasium.Env[Any, Any]:
    return Chatty(length)
