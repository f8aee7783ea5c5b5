"""The loop of training, wherever the work happens: update, evaluate, save, log, until it is done or told to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from manyarms.errors import ManyarmsError
from manyarms.learning.checkpoint import iteration_of
from manyarms.learning.folder import RunFolder
from manyarms.learning.interrupts import Interrupts, Stopped
from manyarms.learning.ranks import Ranks
from manyarms.learning.settings import Settings
from manyarms.learning.variables import shown
from manyarms.reporting.charts import Plot
from manyarms.reporting.console import Shown, Telling
from manyarms.reporting.progress import TrainingBoard
from manyarms.reporting.report import training_plot, write_report
from manyarms.reporting.results import EpisodeResult, by_task, summarise
from manyarms.reporting.runs import StopReason
from manyarms.reporting.trackers import Trackers, open_trackers


@dataclass(frozen=True, repr=False)
class TrainResult(Shown):
    """What came of a run."""

    folder: Path
    updates: int
    metrics: dict[str, float]
    """Of the last update."""
    evaluations: list[tuple[int, list[EpisodeResult]]]
    """By update, those of this process."""
    finished_because: str
    """In words; `stop_reason` says the same to programs."""
    report: Path | None = None
    stop_reason: StopReason = StopReason.COMPLETED

    def told(self) -> Telling:
        ending = f"{_counted(self.updates)}; {self.finished_because}"
        notes = [f"report: {self.report}"] if self.report else []
        if not self.evaluations:
            return Telling(ending, notes=notes)
        (_, begin), (step, end) = self.evaluations[0], self.evaluations[-1]
        first, found = summarise(begin), summarise(end)
        counted = f"{found.successes} of {found.episodes} held-out episodes, {found.between}"
        since = f", {100 * first.success:.1f} % at the start" if len(self.evaluations) > 1 else ""
        when = f"after {_counted(step)}" if step == self.updates else f"when last judged, after {_counted(step)}"
        headline = f"{100 * found.success:.1f} % success {when} ({counted}){since}"
        return Telling(headline, notes=[ending, *notes])

    def plot(self) -> Plot:
        """Draw success and return, update by update, from what the run's folder holds."""
        return training_plot(self.folder, self.told().headline)


def _counted(updates: int) -> str:
    return f"{updates} update" + ("" if updates == 1 else "s")


class Backend(Protocol):
    """Where the work of a run happens: in this process, on one of several ranks, or all over a cluster."""

    @property
    def tasks(self) -> list[str | None]:
        """What is played; known once it has begun."""
        ...

    @property
    def iteration(self) -> int:
        """Updates so far."""
        ...

    def begin(self, checkpoint: Path | None, say: Callable[[str], None], /) -> None:
        """Get first weights, or go on from a checkpoint."""
        ...

    def update(self) -> dict[str, float]:
        """Play episodes in schedule order until enough are worth learning from, learn, return what is logged."""
        ...

    def evaluate(self) -> list[EpisodeResult]:
        """Play the held-out episodes."""
        ...

    def save(self) -> None:
        """Write a checkpoint."""
        ...


def train(run: Run, backend: Backend, checkpoint: Path | None) -> TrainResult:
    """Play, learn, evaluate, save, until the updates are made, the time is over, or someone asks to stop."""
    with run.opened(backend, checkpoint):
        try:
            if run.is_fresh:
                run.save()  # global_step_0: what kl_beta holds to
            if run.is_unjudged:
                run.evaluate_first()
                run.log()
            run.start_clock()
            while run.goes_on:
                run.advance(backend.update())
                if run.must_evaluate:
                    run.evaluate()
                run.listen()
                run.log()  # before the checkpoint that stands for it: a resume finds both
                if run.must_save:
                    run.save()
                run.show()
        except Stopped:  # by a signal, at a moment at which nothing is lost
            run.interrupt()
        return run.conclude()


class Run:
    """The books of a run: what is logged, when to evaluate and to save, why it ends."""

    def __init__(self, settings: Settings, ranks: Ranks, folder: RunFolder, interrupts: Interrupts) -> None:
        self._settings, self._config, self._ranks, self._folder = settings, settings.config, ranks, folder
        self._interrupts = interrupts
        self._evaluations: list[tuple[int, list[EpisodeResult]]] = []
        self._metrics: dict[str, float] = {}
        """What is to be logged next."""
        self._updated: dict[str, float] = {}
        """Of the last update."""
        self._concluded = False
        self._saving = 0.0
        """Seconds spent on checkpoints since anything was last logged."""

    @contextmanager
    def opened(self, backend: Backend, checkpoint: Path | None) -> Iterator[None]:
        """Begin or go on; whatever ends it early is written down."""
        self._backend, config = backend, self._config
        first = 0 if checkpoint is None else iteration_of(checkpoint)
        limit = config.runner.max_seconds
        with TrainingBoard(config.runner.updates, first=first, silent=not self._ranks.first, limit=limit) as board:
            self._board = board
            with self._interrupts.may_stop():
                backend.begin(checkpoint, board.say)
            if checkpoint is not None:
                board.say(f"going on from {checkpoint}")
            self._open_books(is_new=checkpoint is None)
            with self._trackers(backend.iteration) as self._logged, ExitStack() as unless_it_ends_well:
                unless_it_ends_well.push(self._failed)
                yield
                unless_it_ends_well.pop_all()

    def _open_books(self, *, is_new: bool) -> None:
        """Write down what is run, and forget what is on record of later updates."""
        config, step = self._config, self._backend.iteration
        # Nothing is on record yet: it is new, or the first session ended before its first evaluation did.
        anew = is_new or self._ranks.any(self._ranks.first and step == 0 and not self._folder.has_logged(0))
        self.is_fresh = is_new and not config.runner.only_eval
        self.is_unjudged = config.runner.only_eval or (anew and config.runner.val_check_interval != 0)
        if self._ranks.first:
            self._folder.begin(self._settings, self._backend.tasks, step, anew=anew)
            if config.runner.logger.live:
                self._board.recorded(self._folder.path)
        self._evaluations = [] if anew else [(at, found) for at, found in self._evaluations if at <= step]
        self._saved = step
        self._asked = self._late = self._wanted = self._concluded = False

    def _failed(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self._concluded:
            with suppress(ManyarmsError):  # what went wrong first is what to tell
                self._write_end(StopReason.FAILED, f"failed: {kind.__name__}")

    def _trackers(self, step: int) -> Trackers | _Silent:
        if not self._ranks.first:
            return _Silent()
        logger = self._config.runner.logger
        return open_trackers(
            self._folder.path,
            backends=logger.logger_backends,
            project_name=logger.project_name,
            experiment_name=logger.experiment_name,
            config=shown(asdict(self._config)),
            from_step=step,
        )

    # -- an update ----------------------------------------------------------------------------------------------------

    def start_clock(self) -> None:
        """Begin to count `max_seconds`."""
        if not self._config.runner.only_eval:
            self._began = time.monotonic()
            self._board.learning()
            self._logged.learning()

    @property
    def goes_on(self) -> bool:
        """Whether to make another update."""
        runner = self._config.runner
        ended = runner.only_eval or self._asked or self._late
        return not ended and self._backend.iteration < runner.updates

    def advance(self, metrics: dict[str, float]) -> None:
        """Note an update; all ranks agree whether the time is over."""
        limit = self._config.runner.max_seconds
        self._metrics = self._updated = metrics
        self._late = self._ranks.any(limit is not None and time.monotonic() - self._began > limit)

    def interrupt(self) -> None:
        """Note that a signal has ended the run at once."""
        self._asked = True

    def listen(self) -> None:
        """Have all ranks agree on what signals ask for."""
        self._asked = self._ranks.any(self._interrupts.stop is not None)
        self._wanted = self._ranks.any(self._interrupts.save)

    @property
    def must_evaluate(self) -> bool:
        return self._is_due(self._config.runner.val_check_interval)

    @property
    def must_save(self) -> bool:
        return self._is_due(self._config.runner.save_interval) or self._asked or self._wanted

    def _is_due(self, interval: int) -> bool:
        """Tell whether a multiple of an interval is reached; -1 is the last update, 0 never."""
        step, updates = self._backend.iteration, self._config.runner.updates
        if interval == 0:
            return False
        return self._late or step == updates or (interval > 0 and step % interval == 0)

    def evaluate_first(self) -> None:
        """Evaluate what training begins with; nothing is lost if a signal ends that."""
        self._metrics = {}
        with self._interrupts.may_stop():
            self.evaluate()

    def evaluate(self) -> None:
        """Play the held-out episodes, and note how they went."""
        began = time.perf_counter()
        results = self._backend.evaluate()
        found, step = summarise(results), self._backend.iteration
        if self._ranks.first:
            self._folder.add_evaluation(step, results)
        self._board.evaluated(step, found.successes, found.episodes)
        self._evaluations.append((step, results))
        self._metrics |= {
            "eval/success_once": found.success,
            "eval/return": found.mean_reward,
            "eval/episode_len": found.mean_length,
            "eval/num_trajectories": float(found.episodes),
            "time/eval": time.perf_counter() - began,
        }
        groups = by_task(results)
        if len(groups) > 1:
            self._metrics |= {f"eval/success_once/{task}": summarise(group).success for task, group in groups.items()}

    def log(self) -> None:
        """Write down what was noted since the last time."""
        if self._saving and self._backend.iteration:
            self._metrics["time/save"], self._saving = self._saving, 0.0
        self._logged.log(self._metrics, self._backend.iteration)

    def save(self) -> None:
        """Write a checkpoint."""
        began = time.perf_counter()
        self._backend.save()
        self._saving += time.perf_counter() - began
        self._saved, self._interrupts.save = self._backend.iteration, False
        if self._ranks.first:
            self._folder.drop_old_checkpoints(self._config.runner.keep_checkpoints)

    def show(self) -> None:
        """Show how it goes in the terminal."""
        self._board.updated(self._backend.iteration, self._metrics)

    # -- the end ------------------------------------------------------------------------------------------------------

    def conclude(self) -> TrainResult:
        """Keep what is not kept yet, and write the report."""
        if self._saved != self._backend.iteration:
            self.save()
        self._concluded = True
        reason, words = self._ending()
        report, step = self._write_end(reason, words), self._backend.iteration
        return TrainResult(self._folder.path, step, self._updated, self._evaluations, words, report, reason)

    def _ending(self) -> tuple[StopReason, str]:
        """Return why the run ends, to programs and in words."""
        runner = self._config.runner
        if self._asked:
            return StopReason.INTERRUPTED, f"{self._interrupts.stop or 'another rank'} asked for the end"
        if runner.only_eval:
            return StopReason.EVALUATED, "it was only to be evaluated"
        if self._late:
            return StopReason.TIME_LIMIT, f"{runner.max_seconds:.0f} seconds had passed"
        return StopReason.COMPLETED, "all updates were made"

    def _write_end(self, reason: StopReason, words: str) -> Path | None:
        """Write how it ended, and the report."""
        if not self._ranks.first:
            return None
        self._folder.end(reason, words)
        return write_report(self._folder.path) if self._folder.has_something else None


class _Silent:
    """Trackers of ranks that log nothing."""

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def learning(self) -> None:
        pass

    def log(self, metrics: dict[str, float], step: int) -> None:
        pass


__all__ = ["Backend", "Run", "TrainResult", "train"]
