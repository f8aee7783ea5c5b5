"""What a config will do, in numbers, before anything starts."""

from __future__ import annotations

import math
import os

from manyarms import plugins
from manyarms.learning.config import TrainConfig
from manyarms.learning.variables import shown


def plan(config: TrainConfig) -> list[tuple[str, str]]:
    """Return what to tell about a run: a name and a sentence each."""
    train, judged, algorithm = config.train, config.eval, config.algorithm
    world = int(os.environ.get("WORLD_SIZE", "1"))
    envs = train.total_num_envs
    workers = world * math.ceil(math.ceil(envs / world) / train.rows_per_worker)
    where = f" in {workers} processes on {world} rank{'s' if world > 1 else ''}"
    if config.cluster.placed:
        where = ", placed as below"
    episodes, updates = config.episodes_per_step, config.runner.updates
    tasks = f", tasks {', '.join(shown(train.tasks))}" if train.tasks else ""
    rows = [
        ("simulator", f"{config.label}{tasks}"),
        ("environments", f"{envs}{where}"),
        ("policy", f"{shown(config.actor.model.model_type)}, chunks of {config.actor.model.num_action_chunks} actions"),
        ("algorithm", f"{algorithm.adv_type}, {algorithm.update_epoch} passes over each update's decisions"),
        ("an update", _update(config)),
        ("updates", f"{updates}, {updates * episodes:,} episodes in all{_budget(config)}"),
    ]
    if config.cloning.wanted:
        cloning = config.cloning
        expert = f"{cloning.episodes} episodes a task of policy {shown(cloning.expert)}"
        source = shown(cloning.demonstrations) or expert
        rows.insert(4, ("warm start", f"{cloning.steps} steps of cloning from {source}"))
    if config.runner.val_check_interval:
        every = config.runner.val_check_interval
        when = f"every {every} updates" if every > 0 else "before the first and after the last update"
        rows.append(("evaluation", f"{judged.episodes} episodes a task from seed {judged.seed}, {when}"))
    every = config.runner.save_interval
    rows.append(("checkpoints", f"every {every} updates" if every > 0 else "after the last update"))
    logger = config.runner.logger
    rows.append(("folder", f"{shown(logger.log_path)}/{logger.experiment_name}"))
    if code := _code(config):
        rows.append(("runs code from", ", ".join(code)))
    return rows


def _code(config: TrainConfig) -> list[str]:
    """Return modules, files and interpreters that a config has run, beside those of ours and of installed plug-ins."""
    named = [config.actor.model.model_type, config.cloning.expert, config.algorithm.adv_type]
    named += [*config.runner.logger.logger_backends, *config.train.rewards]
    simulators = [*config.train.simulators, *config.eval.simulators]
    for each in simulators:
        named += [each.simulator, *each.tasks]
    code = [name for name in named if plugins.is_import_string(name)]
    return list(dict.fromkeys([*code, *(each.python for each in simulators if each.python)]))


def _update(config: TrainConfig) -> str:
    algorithm, episodes = config.algorithm, config.episodes_per_step
    if algorithm.group_size > 1:
        return f"{episodes // algorithm.group_size} groups of {algorithm.group_size} episodes that begin alike"
    return f"{episodes} episodes"


def _budget(config: TrainConfig) -> str:
    longest = config.train.max_episode_steps
    if not longest:
        return ""
    return f", at most {config.runner.updates * config.episodes_per_step * longest:,} env-steps"
