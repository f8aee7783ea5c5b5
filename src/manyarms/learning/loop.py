"""The loop of a run, whoever plays and learns: update, evaluate, save, log, until it is done or told to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
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
from manyarms.reporting.board import TrainingBoard
from manyarms.reporting.plots import Plot
from manyarms.reporting.report import training_plot, write_report
from manyarms.reporting.results import EpisodeResult, by_task, summarise
from manyarms.reporting.runs import StopReason
from manyarms.reporting.showing import Shown, Telling
from manyarms.reporting.trackers import Trackers, open_trackers

#: Why a run ends, to programs and in words.
Ending = tuple[StopReason, str]


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


class Crew(Protocol):
    """Whoever plays and learns: one process, one of several ranks, or roles all over a cluster."""

    @property
    def tasks(self) -> list[str | None]:
        """What is played."""
        ...

    @property
    def iteration(self) -> int:
        """Updates so far."""
        ...

    def begin(self, start: Path | None, say: Callable[[str], None]) -> None:
        """Get first weights, or go on from a checkpoint."""
        ...

    def update(self) -> dict[str, float]:
        """Play and learn; return what people watch."""
        ...

    def judge(self) -> list[EpisodeResult]:
        """Play the held-out episodes."""
        ...

    def save(self) -> None:
        """Write a checkpoint."""
        ...


class Run:
    """A crew at work, and the books about it."""

    def __init__(self, settings: Settings, ranks: Ranks, folder: RunFolder, interrupts: Interrupts, crew: Crew) -> None:
        self._settings, self._config, self._ranks, self._folder = settings, settings.config, ranks, folder
        self._interrupts, self._crew = interrupts, crew
        self._evaluations: list[tuple[int, list[EpisodeResult]]] = []
        self._metrics: dict[str, float] = {}
        self._saving = 0.0
        """Seconds spent on checkpoints since anything was last logged."""

    def run(self, start: Path | None) -> TrainResult:
        """Begin or go on, and see it through to the report."""
        config, folder, ranks, crew = self._config, self._folder, self._ranks, self._crew
        first = 0 if start is None else iteration_of(start)
        limit = config.runner.max_seconds
        with TrainingBoard(config.runner.updates, first=first, silent=not ranks.first, limit=limit) as board:
            self._board = board
            with self._interrupts.may_stop():
                crew.begin(start, board.say)
            if start is not None:
                board.say(f"going on from {start}")
            anew = self._is_to_be_judged_first(start)
            if ranks.first:
                folder.begin(self._settings, crew.tasks, crew.iteration, anew=anew)
                if config.runner.logger.live:
                    board.recorded(folder.path)
            kept = [] if anew else self._evaluations
            self._evaluations = [(step, found) for step, found in kept if step <= crew.iteration]
            with self._trackers(crew.iteration) as self._logged, ExitStack() as unless_it_ends_well:
                unless_it_ends_well.push(self._failed)
                reason, words = self._loop(saved=start is not None, judged=not anew)
                unless_it_ends_well.pop_all()
                report = self._conclude(reason, words)
        return TrainResult(folder.path, crew.iteration, self._metrics, self._evaluations, words, report, reason)

    def _is_to_be_judged_first(self, start: Path | None) -> bool:
        """Tell whether nothing is on record yet: nothing was begun, or it ended before the first evaluation did."""
        if start is None:
            return True
        return self._ranks.any(self._ranks.first and self._crew.iteration == 0 and not self._folder.has_logged(0))

    def _failed(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with suppress(ManyarmsError):  # what went wrong first is what to tell
                self._conclude(StopReason.FAILED, f"failed: {kind.__name__}")

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

    def _loop(self, *, saved: bool, judged: bool) -> Ending:
        """Update after update; return why it ends."""
        runner, crew = self._config.runner, self._crew
        if not judged or runner.only_eval:
            try:
                self._first_step(saved=saved)
            except Stopped:
                return self._asked()
        if runner.only_eval:
            return StopReason.EVALUATED, "it was only to be evaluated"
        self._saved, self._began = crew.iteration, time.monotonic()
        self._board.learning()
        self._logged.learning()
        while crew.iteration < runner.updates:
            try:
                self._metrics = crew.update()
            except Stopped:
                self._save()
                return self._asked()
            ending = self._conclude_update(self._metrics)
            if ending is not None:
                return ending
        if self._saved != crew.iteration:
            self._save()
        return StopReason.COMPLETED, "all updates were made"

    def _conclude_update(self, metrics: dict[str, float]) -> Ending | None:
        """Evaluate and save where it is due, write down what was found; return why to go no further, if so."""
        runner, step = self._config.runner, self._crew.iteration
        late = self._ranks.any(runner.max_seconds is not None and time.monotonic() - self._began > runner.max_seconds)
        last = late or step == runner.updates
        if self._is_due(runner.val_check_interval, step, last):
            metrics |= self._evaluate()
        stop = self._ranks.any(self._interrupts.stop is not None)
        wanted = self._ranks.any(self._interrupts.save)
        if self._saving:
            metrics["time/save"], self._saving = self._saving, 0.0
        # What a checkpoint stands for is written down before it: a resume then finds both.
        self._logged.log(metrics, step)
        if self._is_due(runner.save_interval, step, last) or stop or wanted:
            self._save()
            self._interrupts.save = False
        self._board.updated(step, metrics)
        if stop:
            return self._asked()
        return (StopReason.TIME_LIMIT, f"{runner.max_seconds:.0f} seconds had passed") if late else None

    def _asked(self) -> Ending:
        return StopReason.INTERRUPTED, f"{self._interrupts.stop or 'another rank'} asked for the end"

    def _first_step(self, *, saved: bool) -> None:
        """Keep what training begins with, and judge it: a resume that finds no more than the first does the second."""
        runner = self._config.runner
        if not (saved or runner.only_eval):
            self._save()
        if runner.val_check_interval or runner.only_eval:
            with self._interrupts.may_stop():
                self._logged.log(self._evaluate(), self._crew.iteration)

    def _evaluate(self) -> dict[str, float]:
        began = time.perf_counter()
        results = self._crew.judge()
        found, step = summarise(results), self._crew.iteration
        if self._ranks.first:
            self._folder.add_evaluation(step, results)
        self._board.evaluated(step, found.successes, found.episodes)
        self._evaluations.append((step, results))
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

    def _save(self) -> None:
        began = time.perf_counter()
        self._crew.save()
        self._saving += time.perf_counter() - began
        self._saved = self._crew.iteration
        if self._ranks.first:
            self._folder.drop_old_checkpoints(self._config.runner.keep_checkpoints)

    def _is_due(self, interval: int, step: int, last: bool) -> bool:
        if interval == 0:
            return False
        return last or (interval > 0 and step % interval == 0)

    def _conclude(self, reason: StopReason, words: str) -> Path | None:
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


__all__ = ["Crew", "Run", "TrainResult"]
