"""A training run from its config to its report: play, learn, evaluate, save, until it is done or told to stop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from manyarms.errors import ConfigError, ManyarmsError
from manyarms.learning import checkpoint
from manyarms.learning.assembly import network_for, opened, recipe_for, trainer_for, videos_for
from manyarms.learning.evaluator import Evaluator
from manyarms.learning.folder import RunFolder
from manyarms.learning.interrupts import Interrupts, Stopped
from manyarms.learning.ranks import Ranks, joined
from manyarms.learning.settings import Settings
from manyarms.learning.trainer import Trainer
from manyarms.learning.warm_start import warm_start
from manyarms.policies.network import NetworkPolicy
from manyarms.reporting.board import TrainingBoard
from manyarms.reporting.evaluation import tasks_of
from manyarms.reporting.report import write_report
from manyarms.reporting.results import EpisodeResult, by_task, summarise
from manyarms.reporting.trackers import Trackers, open_trackers


@dataclass(frozen=True)
class TrainResult:
    """What came of a run."""

    folder: Path
    updates: int
    metrics: dict[str, float]
    """Of the last update."""
    evaluations: list[tuple[int, list[EpisodeResult]]]
    """By update, those of this process."""
    finished_because: str
    report: Path | None = None


def train(settings: Settings, *, resume: bool = False) -> TrainResult:
    """Run a config; under torchrun, as one of several ranks."""
    config = settings.config
    device = config.actor.model.device or ("cuda" if torch.cuda.is_available() else "cpu")
    with joined(device) as ranks:
        folder = RunFolder(settings)
        start = folder.find_start(config, resume)
        ranks.wait()  # nobody writes before all have looked
        with Interrupts(at_once=ranks.world == 1) as interrupts, ExitStack() as stack:
            try:
                with interrupts.may_stop():
                    run = _Run(settings, ranks, folder, interrupts, stack)
                return run.run(start)
            except Stopped:
                raise KeyboardInterrupt from None  # before there was anything to keep


class _Run:
    """The parts of a run, and the loop over them."""

    def __init__(
        self, settings: Settings, ranks: Ranks, folder: RunFolder, interrupts: Interrupts, stack: ExitStack
    ) -> None:
        config = settings.config
        self._settings, self._config, self._ranks, self._folder = settings, config, ranks, folder
        self._interrupts = interrupts
        torch.set_num_threads(config.actor.threads)
        num_envs = len(ranks.share(config.train.total_num_envs or 1))
        if not num_envs:
            raise ConfigError(f"{ranks.world} ranks, but total_num_envs is {config.train.total_num_envs}")
        self._envs = stack.enter_context(opened(config.train, num_envs))
        self._tasks = tasks_of(self._envs)
        self._recipe = recipe_for(config, ranks, num_envs)
        self._policy = network_for(self._recipe, self._envs.simulator_spec, config)
        self._evaluator = Evaluator(config, self._recipe, ranks, folder.path, stack)
        self._evaluations: list[tuple[int, list[EpisodeResult]]] = []
        self._metrics: dict[str, float] = {}

    def run(self, start: Path | None) -> TrainResult:
        """Begin or go on, and see it through to the report."""
        config, folder, ranks = self._config, self._folder, self._ranks
        with TrainingBoard(config.runner.updates, first=_step_of(start), silent=not ranks.first) as board:
            self._board = board
            if start is None:
                with self._interrupts.may_stop():
                    self._first_weights()
            trainer = self._trainer(start)
            if ranks.first:
                folder.begin(self._settings, self._tasks, trainer.iteration)
            with self._trackers(trainer.iteration) as self._logged:
                try:
                    because = self._loop(trainer, fresh=start is None)
                except BaseException as error:
                    with suppress(ManyarmsError):  # what went wrong first is what to tell
                        self._conclude(f"it failed: {type(error).__name__}")
                    raise
                report = self._conclude(because)
        return TrainResult(folder.path, trainer.iteration, self._metrics, self._evaluations, because, report)

    # -- the beginning ------------------------------------------------------------------------------------------------

    def _first_weights(self) -> None:
        """Imitate, or take weights from elsewhere, on the first rank; the others get them from it."""
        config = self._config
        if self._ranks.first:
            if config.runner.ckpt_path:
                checkpoint.load_policy(Path(config.runner.ckpt_path), self._policy)
            if config.cloning.wanted:
                self._clone()
        self._ranks.agree(self._policy)

    def _clone(self) -> None:
        cloning = self._config.cloning
        self._board.say("warm start: the expert plays, the policy imitates it")
        every = max(1, cloning.steps // 5)

        def told(step: int, loss: float) -> None:
            if (step + 1) % every == 0:
                self._board.say(f"warm start: step {step + 1} of {cloning.steps}, loss {loss:.3f}")

        warm_start(self._policy, cloning, self._config.train, told)

    def _trainer(self, start: Path | None) -> Trainer:
        config, reference = self._config, None
        if config.algorithm.kl_beta:
            reference = network_for(self._recipe, self._envs.simulator_spec, config)
            reference.load_state_dict(self._policy.state_dict())
        trainer = trainer_for(config, self._envs, self._policy, self._ranks, reference)
        if start is not None:
            checkpoint.load(start, trainer)
            self._load_reference(reference)
            self._board.say(f"going on from {start}")
        return trainer

    def _load_reference(self, reference: NetworkPolicy | None) -> None:
        """Hold to the weights that the run began with, not to those it goes on from."""
        first = self._folder.checkpoints / "global_step_0"
        if reference is None:
            return
        if not first.is_dir():
            raise ConfigError(f"kl_beta holds to the first weights, but {first} is gone", do="keep it, or begin anew")
        checkpoint.load_policy(first, reference)

    def _trackers(self, step: int) -> Trackers | _Silent:
        if not self._ranks.first:
            return _Silent()
        logger = self._config.runner.logger
        return open_trackers(
            self._folder.path,
            backends=logger.logger_backends,
            project_name=logger.project_name,
            experiment_name=logger.experiment_name,
            config=asdict(self._config),
            from_step=step,
        )

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _loop(self, trainer: Trainer, *, fresh: bool) -> str:
        config = self._config
        if fresh or config.runner.only_eval:
            try:
                self._first_step(trainer)
            except Stopped:
                return f"{self._interrupts.stop} asked for the end"
        if config.runner.only_eval:
            return "it was only to be evaluated"
        saved, began = trainer.iteration, time.monotonic()
        while trainer.iteration < config.runner.updates:
            try:
                metrics = self._update(trainer)
            except Stopped:
                self._save(trainer)
                return f"{self._interrupts.stop} asked for the end"
            step, passed = trainer.iteration, time.monotonic() - began
            late = self._ranks.any(config.runner.max_seconds is not None and passed > config.runner.max_seconds)
            last = late or step == config.runner.updates
            if self._is_due(config.runner.val_check_interval, step, last):
                metrics |= self._evaluate(trainer)
            stop = self._ranks.any(self._interrupts.stop is not None)
            wanted = self._ranks.any(self._interrupts.save)
            self._metrics = metrics
            if self._is_due(config.runner.save_interval, step, last) or stop or wanted:
                saving = time.perf_counter()
                # What a checkpoint stands for is written down before it: a resume then finds both.
                self._logged.log(metrics, step)
                self._save(trainer)
                self._interrupts.save = False
                saved = step
                metrics["time/save"] = time.perf_counter() - saving
            else:
                self._logged.log(metrics, step)
            self._board.updated(step, metrics)
            if stop:
                return f"{self._interrupts.stop or 'another rank'} asked for the end"
            if late:
                return f"{config.runner.max_seconds:.0f} seconds had passed"
        if saved != trainer.iteration:
            self._save(trainer)
        return "all updates were made"

    def _first_step(self, trainer: Trainer) -> None:
        """Judge and keep what training begins with."""
        runner = self._config.runner
        if not runner.only_eval:
            self._save(trainer)
        if runner.val_check_interval or runner.only_eval:
            with self._interrupts.may_stop():
                self._logged.log(self._evaluate(trainer), 0)

    def _update(self, trainer: Trainer) -> dict[str, float]:
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

    def _evaluate(self, trainer: Trainer) -> dict[str, float]:
        began = time.perf_counter()
        results = self._evaluator.results(trainer)
        found = summarise(results)
        if self._ranks.first:
            self._folder.add_evaluation(trainer.iteration, results)
        self._board.evaluated(trainer.iteration, found.successes, found.episodes)
        self._evaluations.append((trainer.iteration, results))
        metrics = {
            "eval/success_once": found.success,
            "eval/return": found.mean_reward,
            "eval/episode_len": found.mean_length,
            "eval/num_trajectories": float(found.episodes),
            "time/eval": time.perf_counter() - began,
        }
        groups = by_task(results)
        if len(groups) > 1:
            metrics |= {f"eval/success_once/{task}": summarise(group).success for task, group in groups.items()}
        return metrics

    def _save(self, trainer: Trainer) -> None:
        checkpoint.save(self._folder.checkpoints, trainer, self._recipe, asdict(self._config))
        if self._ranks.first:
            self._folder.drop_old_checkpoints(self._config.runner.keep_checkpoints)

    def _is_due(self, interval: int, step: int, last: bool) -> bool:
        if interval == 0:
            return False
        return last or (interval > 0 and step % interval == 0)

    def _conclude(self, because: str) -> Path | None:
        """Write how it ended, and the report."""
        if not self._ranks.first:
            return None
        self._folder.end(because)
        return write_report(self._folder.path)

    @contextmanager
    def _filmed(self, trainer: Trainer) -> Iterator[None]:
        """Film the episodes of the next update, where that is wanted."""
        folder = self._folder.path / "video" / "train"
        videos = videos_for(self._config.train, self._envs.simulator_spec, folder, trainer.iteration + 1)
        if videos is None or not self._ranks.first:
            yield
            return
        trainer.runner.watch([videos])
        try:
            yield
        finally:
            trainer.runner.watch([])
            videos.close()


class _Silent:
    """Trackers of ranks that log nothing."""

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def log(self, metrics: dict[str, float], step: int) -> None:
        pass


def _step_of(start: Path | None) -> int:
    return int(start.name.rpartition("_")[2]) if start is not None else 0


__all__ = ["TrainResult", "train"]
