"""From a config to the parts of a run: environments, policy, runner, learner."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from manyarms import plugins
from manyarms.errors import ConfigError
from manyarms.learning.checkpoint import Recipe
from manyarms.learning.config import EnvSettings, TrainConfig
from manyarms.learning.learner import Learner, LearnerConfig
from manyarms.learning.ranks import Ranks
from manyarms.learning.trainer import Trainer, TrainerConfig
from manyarms.policies.checking import check_before_training
from manyarms.policies.registry import accepts, find_policy, make_trainable
from manyarms.policies.trainable import Batched, TrainablePolicy
from manyarms.reporting.evaluation import tasks_of
from manyarms.reporting.filming import EpisodeVideos
from manyarms.rollout import RewardHook, Runner, RunnerConfig
from manyarms.simulators.base import Spec
from manyarms.simulators.registry import split_id
from manyarms.vector import SimulatorConfig, VectorConfig, VectorEnv, make_vec


@contextmanager
def opened(env: EnvSettings, num_envs: int) -> Iterator[VectorEnv]:
    """Open the environments that a config asks for."""
    options: dict[str, Any] = {
        "rows_per_worker": min(env.rows_per_worker or 1, num_envs),
        "max_episode_steps": env.max_episode_steps,
        "action_bounds": "clip",
        "copy": False,
        **({"render_every": env.video_cfg.video_stride} if env.video_cfg.save_video else {}),
        **env.options,
    }
    if env.simulators:
        envs = _opened_several(env, num_envs, options)
    else:
        assert env.simulator is not None
        envs = make_vec(env.simulator, num_envs, python=env.python, **options, **_tasks(env.simulator, env.tasks))
    with envs:
        yield envs


def simulators_in(env: EnvSettings) -> list[SimulatorConfig]:
    """Return the simulators that a config asks for."""
    settings = (*VectorConfig.names(), "env", "rename")
    for_all = {name: value for name, value in env.options.items() if name not in settings}
    if env.simulators:
        return _several(env, for_all)
    assert env.simulator is not None
    options = {**for_all, **_tasks(env.simulator, env.tasks)}
    return [SimulatorConfig(env.simulator, options, env.python, env.options.get("env", {}))]


def _opened_several(env: EnvSettings, num_envs: int, options: Mapping[str, Any]) -> VectorEnv:
    """Open unlike simulators in one vector environment, in turn over its rows."""
    if num_envs < len(env.simulators):
        raise ConfigError(f"{num_envs} environments cannot hold {len(env.simulators)} simulators", do="give more")
    settings = {name: value for name, value in options.items() if name in VectorConfig.names()}
    for_all = {name: value for name, value in options.items() if name not in settings}
    configs = _several(env, for_all)
    envs = make_vec(configs, num_envs, **settings)
    played = [set(envs.row_tasks[i]) for i in range(len(configs))]
    shared = set.intersection(*played) if len(played) > 1 else set()
    if shared:
        envs.close()
        raise ConfigError(f"several simulators have a task named {min(shared)!r}", do="choose others with `tasks`")
    return envs


def _several(env: EnvSettings, for_all: Mapping[str, Any]) -> list[SimulatorConfig]:
    return [
        SimulatorConfig(
            one["simulator"],
            options={**for_all, **one.get("options", {}), **_tasks(one["simulator"], one.get("tasks", ()))},
            python=one.get("python"),
            rename=one.get("rename", {}),
        )
        for one in env.simulators
    ]


def _tasks(simulator: str, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the option that names tasks."""
    if tasks and split_id(simulator)[1]:
        raise ConfigError(f"both {simulator!r} and tasks name tasks", do="leave the task out of simulator")
    return {"tasks": list(tasks)} if tasks else {}


def runner_config(config: TrainConfig, keep: tuple[str, ...] | None) -> RunnerConfig:
    """Return how the policy serves the rows; episodes keep the observation fields `keep`."""
    rollout = config.rollout
    return RunnerConfig(pipeline_stage_num=rollout.pipeline_stage_num, replan_horizon=rollout.replan_horizon, keep=keep)


def runner_for(config: TrainConfig, envs: VectorEnv, policy: Batched) -> Runner:
    """Return what plays the episodes that are learnt from."""
    return Runner(envs, policy, runner_config(config, policy.reads), rewards=reward_hooks(config.train.rewards))


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
    return TrainerConfig(max(1, config.runner.updates), config.episodes_per_step, env.seed or 0, env.init_states)


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


def videos_for(env: EnvSettings, spec: Spec, default: Path, step: int) -> EpisodeVideos | None:
    wanted = env.video_cfg
    if not wanted.save_video:
        return None
    folder = Path(wanted.video_base_dir) if wanted.video_base_dir else default
    return EpisodeVideos(
        folder / f"global_step_{step}", spec, keep=wanted.videos, fps=wanted.fps, captions=wanted.info_on_video
    )
