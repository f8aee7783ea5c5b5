"""From a config to the parts of a run: environments, policy, runner, learner."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from manyarms.errors import ConfigError
from manyarms.learning.checkpoint import Recipe
from manyarms.learning.config import EnvSettings, TrainConfig
from manyarms.learning.learner import Learner, LearnerConfig
from manyarms.learning.ranks import Ranks
from manyarms.learning.trainer import Trainer, TrainerConfig
from manyarms.policies.network import NetworkPolicy
from manyarms.policies.registry import find_policy, make_policy
from manyarms.reporting.evaluation import tasks_of
from manyarms.reporting.filming import EpisodeVideos
from manyarms.rollout import Runner, RunnerConfig
from manyarms.simulators.base import Spec
from manyarms.simulators.registry import split_id
from manyarms.vector import VectorEnv, make_vec


@contextmanager
def opened(env: EnvSettings, num_envs: int) -> Iterator[VectorEnv]:
    """Open the environments that a config asks for."""
    assert env.simulator is not None
    options: dict[str, Any] = {
        "rows_per_worker": min(env.rows_per_worker or 1, num_envs),
        "max_episode_steps": env.max_episode_steps,
        "python": env.python,
        "action_bounds": "clip",
        "copy": False,
        **({"render_every": env.video_cfg.video_stride} if env.video_cfg.save_video else {}),
        **env.options,
    }
    if env.tasks:
        if split_id(env.simulator)[1]:
            raise ConfigError(f"both {env.simulator!r} and tasks name tasks", do="leave the task out of simulator")
        options["tasks"] = list(env.tasks)
    with make_vec(env.simulator, num_envs, **options) as envs:
        yield envs


def runner_config(config: TrainConfig, keep: tuple[str, ...]) -> RunnerConfig:
    """Return how the policy serves the rows; episodes keep the observation fields `keep`."""
    rollout = config.rollout
    return RunnerConfig(pipeline_stage_num=rollout.pipeline_stage_num, replan_horizon=rollout.replan_horizon, keep=keep)


def trainer_for(
    config: TrainConfig, envs: VectorEnv, policy: NetworkPolicy, ranks: Ranks, reference: NetworkPolicy | None
) -> Trainer:
    """Return what trains a policy in these environments."""
    actor = config.actor
    batches = LearnerConfig(actor.global_batch_size, actor.micro_batch_size, actor.seed, actor.training_backend)
    learner = Learner(policy, config.algorithm, actor.optim, batches, reference, ranks)
    runner = Runner(envs, policy, runner_config(config, policy.reads))
    plan = TrainerConfig(max(1, config.runner.updates), config.episodes_per_step, config.train.seed or 0)
    return Trainer(runner, learner, tasks_of(envs), plan)


def recipe_for(config: TrainConfig, ranks: Ranks, num_envs: int) -> Recipe:
    """Return the policy's options, and the simulator's that it is trained with."""
    model, rollout = config.actor.model, config.rollout
    stage = math.ceil(num_envs / rollout.pipeline_stage_num)
    options = {
        "chunk": model.num_action_chunks,
        "seed": config.actor.seed,
        "device": ranks.device,
        "precision": model.precision,
        "deterministic": rollout.deterministic,
        "batch_size": rollout.batch_size or stage,
        **({"value_head": True, "value_type": config.algorithm.reward_type} if config.value_head else {}),
        **model.options,
    }
    needs = {**config.eval.options}
    if config.eval.max_episode_steps:
        needs["max_episode_steps"] = config.eval.max_episode_steps
    return Recipe(model.model_type, options, needs)


def network_for(recipe: Recipe, spec: Spec, config: TrainConfig) -> NetworkPolicy:
    factory = find_policy(recipe.model_type)
    fits = not isinstance(factory, type) or issubclass(factory, NetworkPolicy)
    policy = make_policy(recipe.model_type, spec, recipe.options) if fits else None
    if not isinstance(policy, NetworkPolicy):
        raise ConfigError(f"policy {recipe.model_type!r} cannot be trained", do="use mlp or pixel")
    wanted, width = config.actor.model.action_dim, policy.offset.shape[0]
    if wanted is not None and wanted != width:
        raise ConfigError(f"actor.model.action_dim is {wanted}, but an action has {width} numbers")
    return policy


def videos_for(env: EnvSettings, spec: Spec, default: Path, step: int) -> EpisodeVideos | None:
    wanted = env.video_cfg
    if not wanted.save_video:
        return None
    folder = Path(wanted.video_base_dir) if wanted.video_base_dir else default
    return EpisodeVideos(
        folder / f"global_step_{step}", spec, keep=wanted.videos, fps=wanted.fps, captions=wanted.info_on_video
    )
