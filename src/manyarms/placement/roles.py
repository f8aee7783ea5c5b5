"""A rollout process: a policy, its environments, and the episodes it plays with a given version of the weights."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from manyarms.environments import EnvConfig
from manyarms.learning.assembly import policy_for, recipe_for, runner_for
from manyarms.learning.batch import EpisodeSummary
from manyarms.learning.checkpoint import Recipe
from manyarms.learning.config import TrainConfig
from manyarms.learning.evaluator import Evaluator
from manyarms.learning.ranks import Ranks
from manyarms.learning.warm_start import first_weights
from manyarms.placement.faults import Whereabouts, whereabouts
from manyarms.placement.offload import Room
from manyarms.placement.seats import Seat
from manyarms.placement.weights import Broadcast, Held, Weights, pack
from manyarms.reporting.results import EpisodeResult, tasks_of
from manyarms.rollout import Episode
from manyarms.simulators.base import Spec
from manyarms.vector import EpisodeId


@dataclass(frozen=True)
class Facts:
    """What a rollout process tells of itself and of what it plays."""

    spec: Spec
    tasks: list[str | None]
    recipe: Recipe


@dataclass(frozen=True)
class Report:
    """What came of some episodes; they themselves travel apart from it, once."""

    version: int
    """Of the weights they were played with."""
    summaries: list[EpisodeSummary]
    seconds: float
    policy_seconds: float
    overlap_seconds: float
    num_bytes: int


class RolloutRole:
    """Plays what it is told to, with the weights it is told to."""

    def __init__(self, config: TrainConfig, seat: Seat, folder: Path) -> None:
        """Play as a config says; videos and live files go to `folder`."""
        self._config, self._seat, self._folder = config, seat, folder
        self._stack = ExitStack()

    def open(self) -> Facts:
        """Open environments and make a policy; what goes wrong here can be told, which in a constructor it cannot."""
        config, seat, folder = self._config, self._seat, self._folder
        seat.enter()
        torch.set_num_threads(config.actor.threads)
        name = f"rollout-{seat.rank}"
        live = (folder, name) if config.runner.logger.live else None
        self._envs = self._stack.enter_context(_rendering_on(config.train, seat).open(seat.num_envs, live=live))
        ranks = Ranks(seat.rank, seat.world, seat.device)
        self._recipe = recipe_for(config, ranks, seat.most_envs)
        self._batched = policy_for(self._recipe, self._envs.simulator_spec, config)
        self._policy = self._batched.policy
        self._policy.prepare_to_learn()  # weights arrive as who learns holds them, and have to be judged alike
        self._policy.eval()
        self._runner = runner_for(config, self._envs, self._batched)
        evaluated = _rendering_on(config.eval, seat)
        self._evaluator = Evaluator(config, evaluated, ranks, folder, self._stack, name=name)
        self._held = Held(self._policy)
        self._room = Room([self._policy], seat.device, shared=seat.offloads)
        self._broadcast: Broadcast | None = None
        return Facts(self._envs.simulator_spec, tasks_of(self._envs), self._recipe)

    def first_weights(self) -> Weights:
        """Return what training begins with: weights from elsewhere, or those of a policy that imitates."""
        with self._room.entered():
            first_weights(self._policy, self._config, lambda said: print(said, flush=True))
            return pack(self._policy.trainable_state(), 0)

    # -- weights ------------------------------------------------------------------------------------------------------

    def join(self, address: str, seconds: float) -> None:
        """Join the group in which new weights are broadcast."""
        self._broadcast = None
        rank, on_gpu = self._seat.rank + 1, self._seat.device != "cpu"
        self._broadcast = Broadcast(address, rank, self._seat.world + 1, on_gpu=on_gpu, seconds=seconds)

    def receive(self) -> None:
        """Take part in a broadcast."""
        assert self._broadcast is not None
        self._broadcast.receive(self._held, self._policy.trainable_state())

    def take(self, weights: Weights) -> None:
        """Act with these from now on."""
        self._held.take(weights)

    def _take(self, version: int, weights: Sequence[Any]) -> None:
        """Act with a version: the one that is here, or what lies in the object store."""
        if self._held.version != version and weights:
            import ray

            self.take(ray.get(weights[0]))
        self._held.check(version)

    # -- playing ------------------------------------------------------------------------------------------------------

    def play(
        self, version: int, weights: Sequence[Any], episodes: Sequence[EpisodeId], film: int | None = None
    ) -> tuple[Report | Episode, ...]:
        """Play episodes; return a report, then each of them. `film` is the update for which videos are made."""
        began = time.perf_counter()
        times = self._runner.times
        before = (times.policy, times.overlap)
        with self._room.entered(), self._filmed(film):
            self._take(version, weights)
            found = list(self._runner.play(episodes))
        report = Report(
            version,
            [EpisodeSummary.of(episode) for episode in found],
            time.perf_counter() - began,
            times.policy - before[0],
            times.overlap - before[1],
            sum(episode.num_bytes for episode in found),
        )
        return report, *found

    def judge(self, version: int, weights: Sequence[Any], step: int) -> list[EpisodeResult]:
        """Play this process's share of the held-out episodes."""
        with self._room.entered():
            self._take(version, weights)
            return self._evaluator.share(self._batched, step)

    @contextmanager
    def _filmed(self, step: int | None) -> Iterator[None]:
        videos = None
        if step is not None:
            folder = self._folder / "video" / "train"
            videos = self._config.train.videos(self._envs.simulator_spec, folder, f"global_step_{step}")
        if videos is None:
            yield
            return
        self._runner.watch([videos])
        try:
            yield
        finally:
            self._runner.watch([])
            videos.close()

    def whereabouts(self) -> Whereabouts:
        return whereabouts(self._seat.name)

    def close(self) -> None:
        """End the simulators."""
        self._stack.close()


def _rendering_on(env: EnvConfig, seat: Seat) -> EnvConfig:
    if not seat.egl_devices:
        return env
    return replace(env, options={"egl_device": seat.egl_devices, **env.options})
