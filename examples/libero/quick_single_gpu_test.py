"""The whole of a RIPT-VLA run, small: rollouts of a task by the runner that the config asks for, then RLOO updates.

python quick_single_gpu_test.py --config_path pi0/ript/config/ript_vla_test.yaml
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from integration_patch_ript_vla import create_env_runner
from manyarms.cli import answer
from manyarms.errors import ConfigError
from manyarms.learning.checkpoint import latest
from manyarms.learning.training import train
from pi0.ript.env.benchmarks import Benchmark, available
from pi0.ript.env.settings import setting
from pi0.ript.training import training_settings

HERE = Path(__file__).resolve().parent
CONFIG = HERE / "pi0/ript/config/ript_vla_test.yaml"


def main() -> int:
    """Read the config, play, train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config_path", "--config-path", type=Path, default=CONFIG)
    parser.add_argument("--log_path", "--log-path", default="runs", help="where the run's folder is made")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for example task.benchmark_name=tabletop")
    arguments = parser.parse_args()
    config = read_config(arguments.config_path, arguments.overrides)
    task = tasks_of(config)[0]
    result = train(training_settings(config, [task], arguments.log_path))
    print(f"trained: {result.updates} updates, {result.finished_because}; {result.folder}")
    runner = create_env_runner(config, policy=str(latest(result.folder / "checkpoints")))
    played = list(runner.run_policy_in_env(task))
    rate = np.mean([success for success, _, _ in played])
    print(
        f"{type(runner).__name__}: {len(played)} rollouts of {task}, success rate {rate:.2f}, batches {runner.batches}"
    )
    return 0


def read_config(path: Path, overrides: list[str] | None = None) -> Any:
    """Read a RIPT-VLA config; where LIBERO is missing, its `task.fallback` is played."""
    if not path.is_file():
        raise ConfigError(f"there is no config at {path}", do=f"--config_path {CONFIG.relative_to(HERE)}")
    config = OmegaConf.merge(OmegaConf.load(path), OmegaConf.from_dotlist(overrides or []))
    reason = available(setting(config, "task.benchmark_name", "libero_spatial"))
    if reason:
        fallback = setting(config, "task.fallback")
        if not fallback:
            raise ConfigError("LIBERO is not installed", why=reason, do="or set task.fallback: tabletop")
        print(f"{reason}. Playing {fallback} in its place.", flush=True)
        config.task.benchmark_name = fallback
        config.task.task_names_to_use = ["push_button"] if fallback == "tabletop" else []
    return config


def tasks_of(config: Any) -> list[str]:
    """Return the tasks that are named, or all of the benchmark."""
    named = list(setting(config, "task.task_names_to_use", []))
    return named or Benchmark(setting(config, "task.benchmark_name")).task_names()


if __name__ == "__main__":
    sys.exit(answer(main))
