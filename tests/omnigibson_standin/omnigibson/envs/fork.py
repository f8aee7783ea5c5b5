"""What a fork of OmniGibson adds: single scenes are reset and stepped, and observations left out."""

from __future__ import annotations

import omnigibson as og
from omnigibson.kit import note

from . import vec_env_base


class VectorEnvironment(vec_env_base.VectorEnvironment):
    def step(self, actions, env_indices=None, get_obs=True, render=True):
        rows = range(self.num_envs) if env_indices is None else env_indices
        for row, action in zip(rows, actions):
            self.envs[row]._pre_step(action)
        og.sim.step() if render else og.sim.step_without_rendering()
        results = [self.envs[row]._post_step(action, get_obs) for row, action in zip(rows, actions)]
        return tuple(list(column) for column in zip(*results))

    def reset(self, get_obs=True, env_indices=None, **kwargs):
        rows = range(self.num_envs) if env_indices is None else env_indices
        note("reset %s" % list(rows))
        results = [self.envs[row].reset(get_obs=get_obs, **kwargs) for row in rows]
        if not get_obs:
            return None
        return tuple(list(column) for column in zip(*results))
