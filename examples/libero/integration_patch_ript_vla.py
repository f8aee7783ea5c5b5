"""How a training script chooses its runner by the flags in its config. Copy `create_env_runner`, or import it."""

from __future__ import annotations

import argparse
from typing import Any

from pi0.ript.env.settings import runner_kind, setting


def create_env_runner(config: Any, policy: Any, rank: int = 0, world_size: int = 1) -> Any:
    """Return the runner that ``config.features`` asks for; `runner_kind` says which flag goes before which."""
    common = {
        "policy": policy,
        "benchmark_name": setting(config, "task.benchmark_name", "libero_spatial"),
        "rollouts_per_env": setting(config, "algo.rollouts_per_env", setting(config, "algo.rloo_batch_size", 1)),
        "num_parallel_envs": setting(config, "task.num_parallel_envs", 1),
        "max_episode_length": setting(config, "task.max_episode_length"),
        "task_names_to_use": list(setting(config, "task.task_names_to_use", [])),
        "norm_stats_path": setting(config, "norm_stats_path"),
        "config": config,
        "rank": rank,
        "world_size": world_size,
        **dict(setting(config, "task.options", {})),
    }
    if runner_kind(config) == "ript_vla":
        from pi0.ript.env.pi0_libero_runner_ript_vla import PI0LiberoRunner

        return PI0LiberoRunner(**common)
    from pi0.ript.env.pi0_libero_runner import LIBEROEnvRunner

    return LIBEROEnvRunner(**common)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, epilog="Prints which flag leads to which runner.").parse_args()
    for features in ("use_ript_vla_runner", "enable_true_parallel_envs", "enable_parallel_envs", ""):
        config = {"features": {features: True}, "task": {"benchmark_name": "tabletop"}}
        print(f"{features or 'no flag':<26} -> {type(create_env_runner(config, policy='random')).__name__}")
