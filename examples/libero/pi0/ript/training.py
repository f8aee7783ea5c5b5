"""RIPT-VLA's configs, run by manyarms' trainer: RLOO on groups that share a start, uninformative groups replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from manyarms.learning.settings import Settings, from_mapping
from pi0.ript.env.benchmarks import NUM_INIT_STATES, Benchmark
from pi0.ript.env.policies import named_options
from pi0.ript.env.settings import setting


def training_settings(config: Any, tasks: Sequence[str], log_path: str) -> Settings:
    """Return what trains as a RIPT-VLA config says, on some tasks of its benchmark."""
    group = int(setting(config, "algo.rloo_batch_size", 8))
    benchmark = Benchmark(setting(config, "task.benchmark_name", "libero_spatial"))
    path = setting(config, "policy_path")
    libero = benchmark.simulator == "libero"
    found: dict[str, Any] = {
        "runner": {
            "max_steps": int(setting(config, "training.num_train_steps", 10)),
            "val_check_interval": -1,
            "save_interval": -1,
            "logger": {"log_path": log_path, "experiment_name": "ript"},
        },
        "algorithm": {
            "adv_type": "rloo",
            "loss_type": "actor",
            "group_size": group,
            "logprob_type": "action_level",
            "episodes_per_step": group * int(setting(config, "algo.data_batch_size", 8)),
            "dynamic_sampling": bool(setting(config, "features.dynamic_sampling.enabled", True)),
        },
        "env": {
            "train": {
                "simulator": benchmark.simulator,
                "tasks": list(tasks),
                "total_num_envs": int(setting(config, "task.num_parallel_envs", 1)),
                "max_episode_steps": setting(config, "task.max_episode_length"),
                "python": benchmark.python,
                "options": dict(setting(config, "task.options", {})),
                **({"init_states": NUM_INIT_STATES} if libero else {}),
            },
            "eval": {"episodes": int(setting(config, "algo.rollouts_per_env", 4))},
        },
        "actor": {
            "optim": {"lr": float(setting(config, "algo.lr", 1e-5))},
            "seed": int(setting(config, "training.seed", 0)),
            "model": _pi0(config, path, benchmark) if path else _small(benchmark),
        },
    }
    if not path:
        # Enough to succeed now and then: picking and placing takes more demonstrations than pushing a button.
        clone = (
            {"episodes": 40, "steps": 2000, "log_std": -2.5}
            if libero
            else {"episodes": 6, "steps": 200, "log_std": -1.5}
        )
        found["cloning"] = {**clone, **dict(setting(config, "cloning", {}))}
        if not libero:
            found["env"]["train"]["options"].setdefault("arm_mode", "delta_ee")
        found["env"]["train"]["options"].setdefault("cameras", [])
    return from_mapping(found, "ript")


def _pi0(config: Any, path: str, benchmark: Benchmark) -> dict[str, Any]:
    # Without noise there is nothing whose probability could be told: it is what makes the flow learnable.
    options = {"noise": "flow_sde", **dict(setting(config, "policy_options", {}))}
    found = named_options("pi0", benchmark, setting(config, "norm_stats_path"), options)
    return {"model_type": "pi0", "options": {"model_path": path, **found}}


def _small(benchmark: Benchmark) -> dict[str, Any]:
    fields = [*benchmark.states, "object-state" if benchmark.simulator == "libero" else "task_low_dim_state"]
    return {"model_type": "mlp", "num_action_chunks": 4, "options": {"fields": fields, "hidden": 256}}
