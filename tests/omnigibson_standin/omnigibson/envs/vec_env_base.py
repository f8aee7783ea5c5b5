"""A stand-in for omnigibson.envs.vec_env_base."""

from __future__ import annotations

import copy

import omnigibson as og


class VectorEnvironment:
    def __init__(self, num_envs, config):
        self.num_envs = num_envs
        for running in filter(None, [og.sim]):
            running.stop()
        self.envs = [og.Environment(configs=copy.deepcopy(config), in_vec_env=True) for _ in range(num_envs)]
        og.sim.play()
        for env in self.envs:
            env.post_play_load()

    def step(self, actions):
        for env, action in zip(self.envs, actions):
            env._pre_step(action)
        og.sim.step()
        results = [env._post_step(action) for env, action in zip(self.envs, actions)]
        return tuple(list(column) for column in zip(*results))

    def reset(self, get_obs=True, **kwargs):
        if not get_obs:
            for env in self.envs:
                env.reset(get_obs=False, **kwargs)
            return None
        results = [env.reset(get_obs=True, **kwargs) for env in self.envs]
        return tuple(list(column) for column in zip(*results))

    def close(self):
        pass

    def __len__(self):
        return self.num_envs
