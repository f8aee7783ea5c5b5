"""How much of the speed of playing is left when the policy also learns: writes docs/benchmarks/training.md.

    python benchmarks/training.py --num-envs 16 --device cuda

A policy that sees two cameras plays push_button and learns from it with PPO. Rounds of playing alone and rounds of
playing and learning take turns; medians of both are compared. Episodes go to their time limit, so that every round
plays alike.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

import manyarms
from manyarms.algorithms.ppo import PPO
from manyarms.learning.learner import Learner, LearnerConfig, OptimConfig
from manyarms.learning.trainer import Trainer, TrainerConfig
from manyarms.policies import make_trainable
from manyarms.rollout import Runner, RunnerConfig

DOCS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"


@dataclass(frozen=True)
class TrainingBenchmark:
    """What to measure."""

    num_envs: int = 2
    """Environments, each a worker of its own."""
    device: str = "cpu"
    precision: str = "fp32"
    image_size: int = 64
    chunk: int = 8
    episodes: int = 128
    """An update."""
    update_epoch: int = 4
    global_batch_size: int = 256
    rounds: int = 5
    out: Path | None = DOCS


def trainer_of(config: TrainingBenchmark, stack: ExitStack) -> Trainer:
    """Put a training run together."""
    options: dict[str, Any] = {"arm_mode": "delta_ee", "cameras": ["front", "wrist"], "image_size": config.image_size}
    envs = stack.enter_context(
        manyarms.make_vec("tabletop/push_button", config.num_envs, copy=False, max_episode_steps=64, **options)
    )
    policy = make_trainable(
        "pixel",
        envs.simulator_spec,
        {
            "chunk": config.chunk,
            "image_side": config.image_size,
            "critic": "chunk_level",
            "device": config.device,
            "precision": config.precision,
            "fields": ["gripper_pose"],
            "log_std": -3.0,
        },
    )
    algorithm = PPO(logprob_type="action_level", update_epoch=config.update_epoch)
    learner = Learner(policy, algorithm, OptimConfig(lr=1e-5), LearnerConfig(config.global_batch_size))
    runner = Runner(envs, policy, RunnerConfig(keep=policy.reads))
    return Trainer(runner, learner, [None], TrainerConfig(100, config.episodes))


def measure(config: TrainingBenchmark) -> dict[str, float]:
    """Return env-steps a second without and with learning, and how the time is spent."""
    alone, both, learning, overlap = [], [], [], []
    with ExitStack() as stack:
        trainer = trainer_of(config, stack)
        trainer.step()  # kernels are chosen, memory is taken
        for _ in range(config.rounds):
            began = time.perf_counter()
            played = trainer.play()
            alone.append(played.env_steps / (time.perf_counter() - began))
            times = trainer.runner.times
            policy, together = times.policy, times.overlap
            began = time.perf_counter()
            played = trainer.play()
            between = time.perf_counter()
            trainer.learn(played)
            ended = time.perf_counter()
            both.append(played.env_steps / (ended - began))
            learning.append((ended - between) / (ended - began))
            overlap.append((times.overlap - together) / (times.policy - policy))
    return {
        "playing": statistics.median(alone),
        "training": statistics.median(both),
        "ratio": statistics.median(mine / its for mine, its in zip(both, alone, strict=True)),
        "learning": statistics.median(learning),
        "overlap": statistics.median(overlap),
    }


def page(config: TrainingBenchmark, found: dict[str, float]) -> str:
    where = torch.cuda.get_device_name() if config.device.startswith("cuda") else "no GPU"
    pixels, versions = f"{config.image_size}×{config.image_size}", f"Python {platform.python_version()}"
    return f"""# Training beside playing

{config.num_envs} workers, two cameras of {pixels}, chunks of {config.chunk} actions, PPO with {config.update_epoch}
passes over {config.episodes} episodes of 64 steps, minibatches of {config.global_batch_size};
{os.cpu_count()} CPUs, {where}, {versions}, PyTorch {torch.__version__}. Medians of {config.rounds} rounds, in turn.
Made with `python benchmarks/training.py --num-envs {config.num_envs} --device {config.device}`.

| | |
|---|---:|
| playing alone | {found["playing"]:,.0f} env-steps/s |
| playing and learning | {found["training"]:,.0f} env-steps/s |
| ratio, by pairs | {100 * found["ratio"]:.0f} % |
| time spent learning | {100 * found["learning"]:.0f} % |
| of the policy's time, simulators at work as well (`throughput/overlap`) | {100 * found["overlap"]:.0f} % |
"""


def main() -> None:
    """Measure, print, write the page."""
    config = tyro.cli(TrainingBenchmark)
    found = measure(config)
    text = page(config, found)
    print(text)
    if config.out is not None:
        config.out.mkdir(parents=True, exist_ok=True)
        (config.out / "training.md").write_text(text)


if __name__ == "__main__":
    main()
