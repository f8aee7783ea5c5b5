"""A run's folder: config, facts, checkpoints, evaluations; what a resume keeps of it."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import manyarms
from manyarms.errors import ConfigError
from manyarms.learning.checkpoint import latest
from manyarms.learning.config import TrainConfig
from manyarms.learning.digests import steps_of
from manyarms.learning.settings import Settings
from manyarms.learning.variables import shown
from manyarms.reporting.files import (
    check_goes_on_inside,
    drop_after,
    make_folder,
    not_written,
    read_lines,
    write_atomically,
)
from manyarms.reporting.results import EpisodeResult, by_task
from manyarms.reporting.runs import (
    EVALUATIONS_FILE,
    FACTS_FILE,
    METRICS_FILE,
    RunFacts,
    Score,
    StopReason,
    add_evaluation,
    read_metrics,
)


class RunFolder:
    """Where one run writes."""

    def __init__(self, settings: Settings) -> None:
        logger = settings.config.runner.logger
        self.path = Path(logger.log_path) / logger.experiment_name
        self.checkpoints = self.path / "checkpoints"
        self._trusted = settings.config.runner.trust_code
        self._evaluations = self.path / EVALUATIONS_FILE
        self._facts: RunFacts | None = None

    def find_start(self, config: TrainConfig, resume: bool) -> Path | None:
        """Return the checkpoint to go on from; refuse to write over a run that is not to be resumed."""
        wanted = config.runner.resume_dir
        if wanted and wanted != "auto":
            path = Path(wanted)
            return path if (path / "trainer.json").is_file() else _missing(path)
        found = latest(self.checkpoints)
        if resume or wanted == "auto":
            return found
        if found is not None or (self.path / METRICS_FILE).exists():
            raise ConfigError(
                f"{self.path} holds a run already",
                do="go on with it: --resume; or give this one another name: runner.logger.experiment_name=…",
            )
        return None

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other processes from writing here; what was never begun leaves nothing behind."""
        make_folder(self.path)
        if not self._trusted:
            check_goes_on_inside(self.path, trusted="runner.trust_code=true")
        lock = self.path / ".lock"
        try:
            file = lock.open("w")
        except OSError as error:
            raise not_written(lock, error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another process trains in {self.path}",
                    do="let it end, or give this run another name: runner.logger.experiment_name=…",
                ) from None
            except OSError:
                pass  # a file system without locks
            earlier = self._reopen()
            try:
                yield
            finally:
                if earlier is not None and self._facts is None:
                    self._write(FACTS_FILE, earlier)
                lock.unlink(missing_ok=True)
                with suppress(OSError):
                    self._leave_nothing()

    def _reopen(self) -> str | None:
        """Say of a run that has ended that it is being resumed; return what was said of it."""
        path = self.path / FACTS_FILE
        try:
            earlier = path.read_text()
        except (OSError, ValueError):
            return None  # there is none, or none that can be read
        facts = RunFacts.read(self.path)
        if facts == RunFacts():
            return None
        replace(facts, resuming=True, finished=None, status=None, finished_because=None).write(self.path)
        return earlier

    def _leave_nothing(self) -> None:
        """Remove the folder of a run that was never begun, with what could be watched of it."""
        if all(path.name == "live" for path in self.path.iterdir()):
            shutil.rmtree(self.path / "live", ignore_errors=True)
            self.path.rmdir()

    @property
    def has_something(self) -> bool:
        """Whether there is anything to report of."""
        metrics = self.path / METRICS_FILE
        return (metrics.exists() and metrics.stat().st_size > 0) or bool(self.evaluations())

    def has_logged(self, step: int) -> bool:
        """Tell whether the metrics of a step are on record, the last thing that is written of it."""
        return any(line["step"] == step for line in read_metrics(self.path))

    def begin(self, settings: Settings, tasks: Sequence[str | None], step: int, *, anew: bool = False) -> None:
        """Write down what is run; forget what is on record after `step`, or, `anew`, all of it."""
        config = settings.config
        self._facts = RunFacts(
            version=manyarms.__version__,
            command=" ".join(sys.argv),
            started=_now(),
            machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
            policy=shown(config.actor.model.model_type),
            simulator=config.label,
            tasks=[task for task in tasks if task],
            from_step=step,
        )
        self._write("config.yaml", settings.text)
        self._facts.write(self.path)
        for path in (self._evaluations, self.path / METRICS_FILE):
            drop_after(path, -1 if anew else step)
        if not self._evaluations.exists():
            self._write(self._evaluations.name, "")

    def end(self, reason: StopReason, words: str) -> None:
        """Write down when and why the run ended."""
        self._facts = replace(self._facts or RunFacts(), finished=_now(), status=reason, finished_because=words)
        self._facts.write(self.path)

    def add_evaluation(self, step: int, results: Sequence[EpisodeResult]) -> None:
        """Write down an evaluation, task by task, in place of an earlier one of the same step."""
        add_evaluation(self.path, step, {task: Score.of_episodes(group) for task, group in by_task(results).items()})

    def evaluations(self) -> list[dict[str, Any]]:
        """Return all evaluations; a last line that a killed run left unfinished is none."""
        return read_lines(self._evaluations)

    def drop_old_checkpoints(self, keep: int | None) -> None:
        """Keep the first and the newest `keep`; also what a killed run left half written goes."""
        for path in steps_of(self.checkpoints)[1:][:-keep] if keep else []:
            with suppress(OSError):
                path.replace(
                    path.with_name(f".{path.name}.dropped")
                )  # what is only partly removed must not bear its name
        for torn in self.checkpoints.glob(".global_step_*"):
            shutil.rmtree(torn, ignore_errors=True)

    def _write(self, name: str, text: str) -> None:
        make_folder(self.path)
        write_atomically(self.path / name, text)


def _missing(path: Path) -> Path:
    raise ConfigError(f"there is no checkpoint at {path}", do="name a folder checkpoints/global_step_<n>, or auto")


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
