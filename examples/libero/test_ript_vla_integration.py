"""Checks that all that RIPT-VLA's training scripts expect is there and works; exits with 1 if something does not.

python test_ript_vla_integration.py
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from integration_patch_ript_vla import create_env_runner
from manyarms.policies.base import ActionChunk, Observations
from quick_single_gpu_test import CONFIG, read_config, tasks_of

FIELDS = ("observations", "actions", "valid", "actions_normalized", "log_prob", "task_description")


class Nudge:
    """A policy that moves a little and closes the hand: four actions for each of those that ask."""

    chunk = 4
    cameras: tuple[str, ...] = ()

    def act(self, observations: Observations) -> ActionChunk:
        actions = np.tile(np.array([0.1, 0.0, -0.1, 0.0, 0.0, 0.0, 1.0], np.float32), (len(observations), 4, 1))
        return ActionChunk.of(actions, log_probs=np.zeros((len(observations), 4, 7), np.float32))


def check_config(config: Any) -> str:
    """The YAML file is read."""
    assert config.features.use_ript_vla_runner
    return f"{CONFIG.name}: {config.task.benchmark_name}, {config.task.num_parallel_envs} environments"


def check_runner(config: Any) -> str:
    """The flags choose the runner."""
    chosen = [type(create_env_runner({**config, "features": {flag: True}}, Nudge())).__name__ for flag in FLAGS]
    assert chosen == ["PI0LiberoRunner", "LIBEROEnvRunner", "LIBEROEnvRunner"], chosen
    return ", ".join(f"{flag}: {name}" for flag, name in zip(FLAGS, chosen, strict=True))


FLAGS = ("use_ript_vla_runner", "enable_true_parallel_envs", "enable_parallel_envs")


def check_environments(config: Any) -> str:
    """Environments are processes of their own, in states of their own."""
    runner = create_env_runner(config, Nudge())
    envs, task_id, count = runner.create_env(tasks_of(config)[0])
    with envs:
        assert len(set(envs.worker_pids)) == count == config.task.num_parallel_envs
        envs.reset(seed=list(range(count)))
        states = next(value for name, value in envs.observations.items() if "state" in name and value.ndim == 2)
        assert len({state.tobytes() for state in states}) == count
    return f"task {task_id}: processes {envs.worker_pids}"


def check_rollouts(config: Any) -> str:
    """Rollouts bring what the optimiser reads, and one inference serves all environments that wait."""
    runner = create_env_runner({**config, "task": {**config.task, "max_episode_length": 12}}, Nudge())
    played = list(runner.run_policy_in_env(tasks_of(config)[0]))
    assert len(played) == config.algo.rollouts_per_env
    for success, reward, episode in played:
        assert isinstance(success, bool)
        assert isinstance(reward, float)
        decisions = len(episode["actions"])
        assert decisions
        assert all(len(episode[name]) == decisions for name in FIELDS)
        assert sum(episode["valid"]) == decisions
        assert sum(mask.sum() for mask in episode["mask"]) <= 12
    return f"{len(played)} rollouts, environments served an inference: {runner.batches}"


def check_groups(config: Any) -> str:
    """One start, played several times, is one group; another start is another."""
    runner = create_env_runner({**config, "task": {**config.task, "max_episode_length": 4}}, Nudge())
    groups = [
        {
            episode["init_hash"]
            for _, _, episode in runner.run_policy_in_env(tasks_of(config)[0], all_init_states=[start])
        }
        for start in (0, 1)
    ]
    assert [len(group) for group in groups] == [1, 1]
    assert groups[0] != groups[1]
    return "groups " + ", ".join(name for group in groups for name in group)


CHECKS: dict[str, Callable[[Any], str]] = {
    "config": check_config,
    "runner": check_runner,
    "environments": check_environments,
    "rollouts": check_rollouts,
    "groups": check_groups,
}


def main() -> int:
    """Run all checks; return 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for example task.benchmark_name=tabletop")
    config = read_config(CONFIG, parser.parse_args().overrides)
    failed = 0
    for name, check in CHECKS.items():
        try:
            print(f"✓ {name}: {check(config)}", flush=True)
        except Exception:  # noqa: BLE001 - a check that fails must not hide the others
            failed += 1
            print(f"✗ {name}:\n{traceback.format_exc()}", flush=True)
    print(f"{len(CHECKS) - failed} of {len(CHECKS)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
