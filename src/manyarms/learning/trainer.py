"""The loop of training: play episodes, see what was better than expected, learn, and again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from manyarms.algorithms import grpo, ppo, rloo
from manyarms.algorithms.advantages import normalised
from manyarms.algorithms.groups import DynamicSampling
from manyarms.errors import ConfigError
from manyarms.learning.learner import Learner
from manyarms.learning.samples import Samples, final_observations_of, gathered
from manyarms.rollout import Episode, Runner, repetitions
from manyarms.vector import EpisodeId


@dataclass(frozen=True)
class TrainerConfig:
    """How much is played before each update."""

    max_steps: int = 100
    """Updates."""
    episodes_per_step: int = 64
    """Episodes an update is made from; with groups, a multiple of group_size."""
    seed: int = 0
    """Of the first episode; the others count up."""
    max_rejected: int = 64
    """Groups in which all episodes earned the same, in a row, before training gives up looking for others."""

    def __post_init__(self) -> None:
        if self.max_steps < 1 or self.episodes_per_step < 1:
            raise ConfigError("max_steps and episodes_per_step must be at least 1")


class Trainer:
    """Trains a policy on tasks, one update at a time."""

    def __init__(self, runner: Runner, learner: Learner, tasks: Sequence[str | None], config: TrainerConfig) -> None:
        group = learner.algorithm.group_size
        if config.episodes_per_step % group:
            raise ConfigError(f"episodes_per_step is {config.episodes_per_step}, no multiple of group_size {group}")
        self.runner, self.learner, self.config = runner, learner, config
        self._tasks = list(tasks)
        self.iteration = 0
        self.position = 0
        """Starts that have been handed out so far; with `iteration`, all there is to remember of the schedule."""

    def step(self) -> dict[str, float]:
        """Play, learn, return what people watch."""
        began = time.perf_counter()
        episodes, rejected = self._play()
        played = time.perf_counter()
        samples = self._samples(episodes)
        metrics = self.learner.update(samples, self.iteration, self.iteration / self.config.max_steps)
        learned = time.perf_counter()
        self.iteration += 1
        steps = sum(episode.length for episode in episodes)
        return {
            **metrics,
            "rollout/rewards": float(np.mean([episode.total_reward for episode in episodes])),
            "rollout/advantages_mean": float(samples.advantages.mean()),
            "rollout/returns_mean": float(samples.returns.mean()) if samples.returns is not None else 0.0,
            "rollout/rejected_groups": float(rejected),
            "env/success_once": float(np.mean([episode.success for episode in episodes])),
            "env/return": float(np.mean([episode.total_reward for episode in episodes])),
            "env/episode_len": steps / len(episodes),
            "env/num_trajectories": float(len(episodes)),
            "time/rollout": played - began,
            "time/actor": learned - played,
            "throughput/env_steps_per_s": steps / (learned - began),
        }

    # -- playing ------------------------------------------------------------------------------------------------------

    def _play(self) -> tuple[list[Episode], int]:
        """Return the episodes of an update, and how many groups were played in vain."""
        algorithm = self.learner.algorithm
        self.learner.policy.eval()
        if not algorithm.grouped:
            starts = list(itertools.islice(self._starts(), self.config.episodes_per_step))
            self.position += len(starts)
            return list(self.runner.play(starts)), 0
        wanted = self.config.episodes_per_step // algorithm.group_size
        sampling = DynamicSampling(wanted, algorithm.group_size)
        heard = 0

        def enough(episode: Episode) -> bool:
            nonlocal heard
            heard += 1
            done = sampling(episode)
            return done or sampling.rejected >= wanted + self.config.max_rejected

        groups = (repetitions(start, algorithm.group_size) for start in self._starts())
        for _ in self.runner.play(itertools.chain.from_iterable(groups), enough):
            pass
        self.position += heard // algorithm.group_size
        if not sampling.kept:
            raise ConfigError(
                f"in each of {sampling.rejected} groups all episodes earned the same: there is nothing to learn from",
                do="begin with a policy that succeeds now and then (bc), raise group_size, or shape the reward",
            )
        return sampling.kept, sampling.rejected

    def _starts(self) -> Iterator[EpisodeId]:
        """Yield how episodes begin, from where the last update left off: tasks in turn, a new seed each."""
        for position in itertools.count(self.position):
            task = self._tasks[position % len(self._tasks)]
            yield EpisodeId(task, self.config.seed + position // len(self._tasks))

    # -- judging ------------------------------------------------------------------------------------------------------

    def _samples(self, episodes: Sequence[Episode]) -> Samples:
        algorithm = self.learner.algorithm
        if not algorithm.grouped:
            advantages, returns = ppo.targets(episodes, self._final_values(episodes), algorithm)
            if algorithm.normalize_advantages:
                advantages = normalised(advantages)
            return gathered(episodes, advantages, returns)
        if algorithm.adv_type == "grpo":
            return gathered(episodes, grpo.targets(episodes, algorithm.group_size, algorithm.normalize_advantages))
        advantages = rloo.targets(episodes, algorithm.group_size)
        return gathered(episodes, normalised(advantages) if algorithm.normalize_advantages else advantages)

    @torch.no_grad()
    def _final_values(self, episodes: Sequence[Episode]) -> np.ndarray:
        """Return what the critic makes of every episode's last frame."""
        policy = self.learner.policy
        assert policy.value is not None
        features = policy.torso(**policy.inputs(final_observations_of(episodes)))
        return policy.value(features)[:, 0].cpu().numpy()
