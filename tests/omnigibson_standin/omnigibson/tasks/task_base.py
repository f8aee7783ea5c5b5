"""A stand-in for omnigibson.tasks.task_base."""

from __future__ import annotations

from typing import Any


class BaseTask:
    def __init__(self, termination_config=None, reward_config=None, include_obs=True):
        self._termination_config = termination_config or {"max_steps": 500}
        self._reward_config = reward_config or {"r_potential": 1.0}
        self._potential = 0.0
        self._success = False

    def reset(self, env):
        env.scene.reset()
        self._success = False
        self._potential = self.get_potential(env)

    def get_potential(self, env):
        return 0.0

    def step(self, env, action):
        now = self.get_potential(env)
        reward = (self._potential - now) * self._reward_config["r_potential"]
        self._potential = now
        conditions, status = self._check(env)
        done = any(each["done"] for each in conditions.values())
        self._success = any(each["success"] for each in conditions.values())
        info: Any = {
            "reward": {"potential": {}, "reward_breakdown": {"potential": reward}},
            "done": {"termination_conditions": conditions, "success": self._success, "goal_status": status},
        }
        return reward, done, info

    def _check(self, env):
        return {}, {}

    @property
    def success(self):
        return self._success
