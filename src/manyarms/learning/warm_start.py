"""Before the first update: an expert plays, or a recording is read, and the policy imitates it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from manyarms.environments import EnvConfig
from manyarms.errors import ConfigError
from manyarms.learning import checkpoint
from manyarms.learning.cloning import clone
from manyarms.learning.config import CloningSettings, TrainConfig
from manyarms.learning.demonstrations import Demonstrations, demonstrations, recorded
from manyarms.policies.base import ActionChunk, Observations, Policy, needs_of
from manyarms.policies.registry import find_policy, make_policy
from manyarms.policies.trainable import TrainablePolicy
from manyarms.reporting.recording import Recording
from manyarms.reporting.results import held_out, tasks_of
from manyarms.rollout import Runner, RunnerConfig


class _Watched:
    """A policy that acts as it does while the cameras of another are rendered, for that one to learn from."""

    def __init__(self, policy: Policy, cameras: tuple[str, ...] | None) -> None:
        self._policy, self.cameras, self.chunk = policy, cameras, getattr(policy, "chunk", 1)

    def act(self, observations: Observations) -> ActionChunk:
        return self._policy.act(observations)


def examples_for(
    policy: TrainablePolicy, settings: CloningSettings, env: EnvConfig, *, trust_code: bool = False
) -> Demonstrations:
    """Return what the policy is to imitate."""
    if settings.demonstrations:
        return demonstrations(Recording(settings.demonstrations), policy.imitation_horizon, fields=policy.reads)
    needs = needs_of(find_policy(settings.expert, trust_code=trust_code))
    with replace(env, options={**env.options, **needs}).open(env.total_num_envs) as envs:
        made = make_policy(settings.expert, envs.simulator_spec, trust_code=trust_code)
        expert = _Watched(made, policy.cameras)
        runner = Runner(envs, expert, RunnerConfig(keep=policy.reads, replan_horizon=1))
        episodes = held_out(tasks_of(envs), settings.episodes, settings.first_seed)
        played = [recorded(i, episode) for i, episode in enumerate(runner.play(episodes))]
    return demonstrations(played, policy.imitation_horizon)


def warm_start(
    policy: TrainablePolicy,
    settings: CloningSettings,
    env: EnvConfig,
    told: Callable[[int, float], None] = lambda step, loss: None,
    *,
    trust_code: bool = False,
) -> float:
    """Have a policy imitate; return the loss at the end. `told` hears of every step."""
    examples = examples_for(policy, settings, env, trust_code=trust_code)
    if settings.normalise:
        policy.fit_normalisation(examples.observations)
    losses = []
    for step, loss in enumerate(clone(policy, examples, settings)):
        losses.append(loss)
        told(step, loss)
    if settings.log_std is not None:
        spread = getattr(getattr(policy, "head", None), "log_std", None)
        if spread is None:
            raise ConfigError("cloning.log_std would do nothing: only the gaussian head has a spread")
        with torch.no_grad():
            spread.fill_(settings.log_std)
    return float(np.mean(losses[-20:]))


def first_weights(policy: TrainablePolicy, config: TrainConfig, say: Callable[[str], None]) -> None:
    """Give a policy what a config has training begin with: weights from elsewhere, an expert's ways."""
    if config.runner.ckpt_path:
        note = checkpoint.start_from(Path(config.runner.ckpt_path), policy)
        if note:
            say(note)
    cloning = config.cloning
    if not cloning.wanted:
        return
    shown = f"what {cloning.demonstrations} holds is read" if cloning.demonstrations else "the expert plays"
    say(f"warm start: {shown}, the policy imitates it")
    every = max(1, cloning.steps // 5)

    def told(step: int, loss: float) -> None:
        if (step + 1) % every == 0:
            say(f"warm start: step {step + 1} of {cloning.steps}, loss {loss:.3f}")

    warm_start(policy, cloning, config.train, told, trust_code=config.runner.trust_code)
