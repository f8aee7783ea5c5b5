"""From a config to the parts of a run: policy, runner, learner."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from manyarms import plugins
from manyarms.environments import EnvConfig
from manyarms.errors import ConfigError
from manyarms.learning.checkpoint import Recipe
from manyarms.learning.config import TrainConfig
from manyarms.learning.learner import Learner, LearnerConfig
from manyarms.learning.ranks import Ranks
from manyarms.learning.trainer import Trainer, TrainerConfig
from manyarms.policies.checking import check_before_training
from manyarms.policies.registry import accepts, find_policy, make_trainable
from manyarms.policies.trainable import Batched, TrainablePolicy
from manyarms.reporting.results import tasks_of
from manyarms.rollout import RewardHook, Runner, RunnerConfig
from manyarms.simulators.base import Spec
from manyarms.vector import VectorEnv


def runner_config(config: TrainConfig, env: EnvConfig, keep: tuple[str, ...] | None) -> RunnerConfig:
    """Return how the policy serves the rows of environments; episodes keep the observation fields `keep`."""
    rollout = config.rollout
    return RunnerConfig(
        pipeline_stage_num=rollout.pipeline_stage_num,
        replan_horizon=rollout.replan_horizon,
        keep=keep,
        vary_descriptions=env.vary_descriptions,
    )


def runner_for(config: TrainConfig, envs: VectorEnv, policy: Batched) -> Runner:
    """Return what plays the episodes that are learnt from."""
    settings = runner_config(config, config.train, policy.reads)
    return Runner(envs, policy, settings, rewards=reward_hooks(config.train.rewards))


def reward_hooks(names: Sequence[str]) -> list[RewardHook]:
    """Find reward hooks by name; a class is made without arguments."""
    found = [plugins.resolve("rewards", name, trusted=True) for name in names]
    hooks = [hook() if isinstance(hook, type) else hook for hook in found]
    for name, hook in zip(names, hooks, strict=True):
        if not callable(hook):
            raise ConfigError(f"the reward {name!r} cannot be called", do="def hook(scene): return one number per row")
    return hooks


def trainer_for(
    config: TrainConfig, envs: VectorEnv, policy: Batched, ranks: Ranks, reference: TrainablePolicy | None
) -> Trainer:
    """Return what trains a policy in these environments."""
    runner = runner_for(config, envs, policy)
    algorithm, learns = config.algorithm, policy.policy
    if learns.critic == algorithm.critic:  # where something does not fit, the learner says what
        check_before_training(
            policy,
            envs.simulator_spec,
            evaluates=learns.explores and algorithm.needs_evaluation,
            imitates=learns.has_own_loss and algorithm.needs_own_loss,
        )
    return Trainer(runner, learner_for(config, policy, ranks, reference), tasks_of(envs), trainer_config(config))


def learner_for(config: TrainConfig, policy: Batched, ranks: Ranks, reference: TrainablePolicy | None) -> Learner:
    actor = config.actor
    batches = LearnerConfig(actor.global_batch_size, actor.micro_batch_size, actor.seed, actor.training_backend)
    return Learner(policy, config.algorithm, actor.optim, batches, reference, ranks)


def trainer_config(config: TrainConfig) -> TrainerConfig:
    """Return how much is played before each update."""
    env = config.train
    return TrainerConfig(max(1, config.runner.updates), config.episodes_per_step, env.seed, env.init_states)


def recipe_for(config: TrainConfig, ranks: Ranks, num_envs: int) -> Recipe:
    """Return the policy's options, and the simulator's that it is trained with."""
    model, rollout = config.actor.model, config.rollout
    stage = math.ceil(num_envs / rollout.pipeline_stage_num)
    factory = find_policy(model.model_type, trust_code=config.runner.trust_code)
    for_any = {
        "chunk": model.num_action_chunks,
        "seed": config.actor.seed,
        "device": ranks.device,
        "precision": model.precision,
        **({"critic": config.algorithm.critic or "chunk_level"} if config.value_head else {}),
    }
    options = {
        **{name: value for name, value in for_any.items() if accepts(factory, name)},
        "sample": True,
        "deterministic": rollout.deterministic,
        "batch_size": rollout.batch_size or stage,
        **model.of_checkpoint,
        **model.options,
    }
    needs = {**config.eval.options}
    if config.eval.max_episode_steps:
        needs["max_episode_steps"] = config.eval.max_episode_steps
    return Recipe(model.model_type, options, needs)


def policy_for(recipe: Recipe, spec: Spec, config: TrainConfig) -> Batched:
    """Make the policy that is trained."""
    wanted, width = config.actor.model.action_dim, sum(int(np.prod(field.shape)) for field in spec.actions.values())
    if wanted is not None and wanted != width:
        raise ConfigError(f"actor.model.action_dim is {wanted}, but an action has {width} numbers")
    return make_trainable(recipe.model_type, spec, recipe.options, trust_code=config.runner.trust_code)
