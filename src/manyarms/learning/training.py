"""A training run from its config to its report, in one process or on one of torchrun's ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from manyarms.errors import ConfigError
from manyarms.learning import checkpoint, loop
from manyarms.learning.assembly import policy_for, recipe_for, trainer_for
from manyarms.learning.evaluator import Evaluator
from manyarms.learning.folder import RunFolder
from manyarms.learning.interrupts import Interrupts, Stopped
from manyarms.learning.loop import Run, TrainResult
from manyarms.learning.ranks import Ranks, joined
from manyarms.learning.settings import Settings
from manyarms.learning.trainer import Trainer
from manyarms.learning.warm_start import first_weights
from manyarms.policies.trainable import TrainablePolicy
from manyarms.reporting.live import forget_earlier
from manyarms.reporting.results import EpisodeResult, tasks_of


def train(settings: Settings, *, resume: bool = False) -> TrainResult:
    """Run a config in this process; under torchrun, as one of several ranks."""
    config = settings.config
    if config.cluster.placed:
        raise ConfigError(
            "cluster would do nothing: this trains in one process", do="call train of manyarms.placement.training"
        )
    device = config.actor.model.device or ("cuda" if torch.cuda.is_available() else "cpu")
    with joined(device) as ranks, ExitStack() as stack:
        folder = RunFolder(settings)
        start = folder.find_start(config, resume)
        if ranks.first:
            stack.enter_context(folder.claimed())
            forget_earlier(folder.path)
        ranks.wait()  # nobody writes before all have looked
        with Interrupts(at_once=ranks.world == 1) as interrupts:
            try:
                with interrupts.may_stop():
                    backend = LocalBackend(settings, ranks, folder, interrupts, stack)
                return loop.train(Run(settings, ranks, folder, interrupts), backend, start)
            except Stopped:
                raise KeyboardInterrupt from None  # before there was anything to keep


class LocalBackend:
    """One process, or one of several ranks alike: plays and learns with the same policy."""

    def __init__(
        self, settings: Settings, ranks: Ranks, folder: RunFolder, interrupts: Interrupts, stack: ExitStack
    ) -> None:
        config = settings.config
        self._config, self._ranks, self._folder = config, ranks, folder
        self._interrupts = interrupts
        stack.enter_context(_threads(config.actor.threads))
        num_envs = len(ranks.share(config.train.total_num_envs))
        if not num_envs:
            raise ConfigError(f"{ranks.world} ranks, but total_num_envs is {config.train.total_num_envs}")
        name = f"rank-{ranks.rank}"
        live = (folder.path, name) if config.runner.logger.live else None
        self._envs = stack.enter_context(config.train.open(num_envs, live=live))
        self.tasks = tasks_of(self._envs)
        self._recipe = recipe_for(config, ranks, num_envs)
        self._batched = policy_for(self._recipe, self._envs.simulator_spec, config)
        self._policy = self._batched.policy
        self._evaluator = Evaluator(config, config.eval, ranks, folder.path, stack, name=name)

    @property
    def iteration(self) -> int:
        return self._trainer.iteration

    def begin(self, start: Path | None, say: Callable[[str], None]) -> None:
        """Get first weights on the first rank, the others from it; or go on from a checkpoint."""
        config, reference = self._config, None
        if start is None:
            self._policy.prepare_to_learn()
            if self._ranks.first:
                first_weights(self._policy, config, say)
            self._ranks.agree(self._policy)
        if config.algorithm.kl_beta:
            reference = policy_for(self._recipe, self._envs.simulator_spec, config).policy
            reference.load_state_dict(self._policy.state_dict())
        self._trainer = trainer_for(config, self._envs, self._batched, self._ranks, reference)
        if start is not None:
            checkpoint.load(start, self._trainer)
            load_reference(self._folder.checkpoints, reference)

    def update(self) -> dict[str, float]:
        """Play and learn."""
        trainer = self._trainer
        times = trainer.runner.times
        before = (times.policy, times.overlap)
        began = time.perf_counter()
        with self._interrupts.may_stop(), self._filmed(trainer):
            played = trainer.play()
        between = time.perf_counter()
        metrics = trainer.learn(played)
        ended = time.perf_counter()
        policy, overlap = times.policy - before[0], times.overlap - before[1]
        return {
            **metrics,
            "time/env": between - began - policy,
            "time/rollout": policy,
            "time/actor": ended - between,
            "throughput/env_steps_per_s": played.env_steps / (ended - began),
            "throughput/rollout_env_steps_per_s": played.env_steps / (between - began),
            "throughput/overlap": overlap / policy if policy else 0.0,
        }

    def evaluate(self) -> list[EpisodeResult]:
        """Play the held-out episodes, all ranks together."""
        return self._evaluator.results(self._trainer)

    def save(self) -> None:
        """Write a checkpoint."""
        checkpoint.save(self._folder.checkpoints, self._trainer, self._recipe)

    @contextmanager
    def _filmed(self, trainer: Trainer) -> Iterator[None]:
        """Film the episodes of the next update, where that is wanted."""
        folder, step = self._folder.path / "video" / "train", trainer.iteration + 1
        videos = self._config.train.videos(self._envs.simulator_spec, folder, f"global_step_{step}")
        if videos is None or not self._ranks.first:
            yield
            return
        trainer.runner.watch([videos])
        try:
            yield
        finally:
            trainer.runner.watch([])
            videos.close()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Have PyTorch use so many CPU threads; afterwards, as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_reference(checkpoints: Path, reference: TrainablePolicy | None) -> None:
    """Hold to the weights that the run began with, not to those it goes on from."""
    first = checkpoints / "global_step_0"
    if reference is None:
        return
    if not first.is_dir():
        raise ConfigError(f"kl_beta holds to the first weights, but {first} is gone", do="keep it, or begin anew")
    checkpoint.load_policy(first, reference)


__all__ = ["TrainResult", "train"]
