"""Evaluations, by command and inside training alike: episodes played, success with its uncertainty, lines on disk."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from manyarms.errors import ConfigError
from manyarms.policies.base import Policy
from manyarms.reporting.charts import Bar, Bars, Plot
from manyarms.reporting.console import Shown, Table, Telling
from manyarms.reporting.files import (
    document,
    is_count,
    make_folder,
    not_written,
    number,
    read_lines,
    words,
    write_atomically,
)
from manyarms.rollout import Episode, Runner, RunnerConfig, Sink, starts
from manyarms.vector import EpisodeId, VectorEnv

if TYPE_CHECKING:
    from manyarms.reporting.video import Video

#: Two-sided 95 %.
_Z = 1.959963984540054


@dataclass(frozen=True)
class EpisodeResult:
    """How one episode of an evaluation went. Nothing here depends on how fast it ran, or where."""

    position: int
    """Its place in the evaluation."""
    task: str | None
    seed: int | None
    success: bool
    total_reward: float
    length: int
    text: str

    @classmethod
    def of(cls, position: int, episode: Episode) -> EpisodeResult:
        return cls(
            position,
            episode.id.task,
            episode.id.seed,
            episode.success,
            episode.total_reward,
            episode.length,
            episode.text,
        )

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> EpisodeResult:
        """Take from a line, which has a position, what is of the right kind."""
        reward, length, seed = line.get("total_reward"), line.get("length"), line.get("seed")
        return cls(
            line["position"],
            words(line.get("task")),
            seed if isinstance(seed, int) else None,
            line.get("success") is True,
            reward if isinstance(reward, float) else number(reward) or 0.0,
            length if is_count(length) else 0,
            words(line.get("text")) or "",
        )


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a success rate."""
    if trials == 0:
        return 0.0, 1.0
    # centre = (p + z²/2n) / (1 + z²/n), half width = z / (1 + z²/n) · sqrt(p(1-p)/n + z²/4n²)
    rate, square = successes / trials, _Z * _Z / trials
    centre = (rate + square / 2.0) / (1.0 + square)
    half = _Z / (1.0 + square) * math.sqrt(rate * (1.0 - rate) / trials + square / (4.0 * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True)
class TaskSummary:
    """One task, or all of them."""

    episodes: int
    successes: int
    success: float
    interval: tuple[float, float]
    mean_length: float
    mean_reward: float

    @property
    def between(self) -> str:
        """The interval in words."""
        low, high = self.interval
        return f"95 % interval {100 * low:.1f} to {100 * high:.1f} %"


def summarise(results: Sequence[EpisodeResult]) -> TaskSummary:
    """Count successes; for none at all, the interval says that nothing is known."""
    count = len(results)
    won = sum(result.success for result in results)
    return TaskSummary(
        episodes=count,
        successes=won,
        success=won / count if count else 0.0,
        interval=wilson(won, count),
        mean_length=sum(result.length for result in results) / max(1, count),
        mean_reward=sum(result.total_reward for result in results) / max(1, count),
    )


def by_task(results: Iterable[EpisodeResult]) -> dict[str, list[EpisodeResult]]:
    """Group results; tasks in the order of their first episode."""
    groups: dict[str, list[EpisodeResult]] = {}
    for result in sorted(results, key=lambda result: result.position):
        groups.setdefault(result.task or "", []).append(result)
    return groups


@dataclass(frozen=True, repr=False)
class EvalResult(Shown):
    """What came out."""

    results: list[EpisodeResult]
    complete: bool
    """Whether every episode of every rank is in."""
    folder: Path
    videos: list[Path]
    title: str = ""
    """Which policy did what."""

    def told(self) -> Telling:
        overall = summarise(self.results)
        counted = f"{overall.successes} of {overall.episodes} episodes, {overall.between}"
        rows = []
        for task, found in self._tasks():
            low, high = found.interval
            rows.append(
                (
                    task,
                    f"{found.successes} / {found.episodes}",
                    f"{100 * found.success:.1f} %",
                    f"{100 * low:.1f} – {100 * high:.1f} %",
                    f"{found.mean_length:.1f}",
                )
            )
        header = ("task", "solved", "success", "95 % interval", "mean steps")
        films = f", {len(self.videos)} video{'s' * (len(self.videos) > 1)}" if self.videos else ""
        notes = [f"results: {self.folder}{films}"]
        if not self.complete:
            notes.insert(0, "other ranks are still at work; the last one to finish writes results.json")
        return Telling(f"{100 * overall.success:.1f} % success ({counted})", [Table(rows, header, self.title)], notes)

    def _tasks(self) -> list[tuple[str, TaskSummary]]:
        return [(task or "all episodes", summarise(group)) for task, group in by_task(self.results).items()]

    def plot(self) -> Plot:
        """Draw every task's success with its interval."""
        bars = [
            Bar(task, found.success, f"{found.successes} / {found.episodes}", found.interval)
            for task, found in self._tasks()
        ]
        return Plot(self.told().headline, [Bars("success, with its 95 % interval", bars, rates=True)])

    def video(self, number: int = 0) -> Video:
        """Return one of the videos, to be seen in a notebook; failures come first."""
        if not self.videos:
            raise ConfigError("there are no videos", do="evaluate with videos=1")
        from manyarms.reporting.video import Video

        return Video(self.videos[number])


# -- playing ----------------------------------------------------------------------------------------------------------


def held_out(tasks: Sequence[str | None], episodes: int, seed: int, init_states: int | None = None) -> list[EpisodeId]:
    """Return so many episodes a task, tasks in turn, so that an evaluation cut short knows something of each."""
    return list(itertools.islice(starts(tasks, seed, init_states=init_states), episodes * len(tasks)))


def tasks_of(envs: VectorEnv) -> list[str | None]:
    """Return the tasks that rows can play; [None] where the simulator has only itself."""
    return list(dict.fromkeys(name for row in envs.row_tasks for name in row)) or [None]


def results_of(
    envs: VectorEnv,
    policy: Policy,
    episodes: Sequence[tuple[int, EpisodeId]],
    config: RunnerConfig,
    sinks: Sequence[Sink] = (),
) -> Iterator[EpisodeResult]:
    """Play episodes, each with its position among all; yield what came of them, in their order."""
    if not episodes:
        return
    runner = Runner(envs, policy, config, sinks=sinks)
    for (position, _), episode in zip(episodes, runner.play([episode for _, episode in episodes]), strict=True):
        yield EpisodeResult.of(position, episode)


# -- on disk ----------------------------------------------------------------------------------------------------------


class ResultFolder:
    """Results on disk while they come in: a file a rank, a line an episode, so that nothing finished is lost."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *,
        rank: int = 0,
        resume: bool = False,
        read: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> None:
        """Open a folder; one that holds results is continued only when asked to, and only with the same config.

        `read` turns a config that an earlier version wrote into one as it is written now.
        """
        self.folder, self._rank = folder, rank
        self._path = folder / f"episodes-{rank}.jsonl"
        if self._path.exists() and not resume:
            raise ConfigError(f"{folder} holds results already", do="--resume to go on, or another --out")
        self._made = not folder.exists()
        make_folder(folder)
        self._config = known = folder / "config.json"
        text = json.dumps(config, indent=2, sort_keys=True, default=str) + "\n"
        if self._begun and known.exists():
            before, now = read(document(known)), json.loads(text)
            differs = [name for name in now if before.get(name) != now[name]]
            if differs:
                raise ConfigError(
                    f"{folder} was begun with other settings",
                    why=f"these differ: {', '.join(differs)}",
                    do="use the same, or another --out",
                )
        write_atomically(known, text)
        self._mend()

    def __enter__(self) -> ResultFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave no folder behind of an evaluation that failed before anything was played."""
        if kind is None or not self._made:
            return
        with suppress(OSError):  # another rank was faster
            if not self._begun:
                for path in (live := self.folder / "live").glob(f"eval-{self._rank}.*"):
                    path.unlink()
                live.rmdir()
        with suppress(OSError):
            if [*self.folder.iterdir()] == [self._config]:
                self._config.unlink()
                self.folder.rmdir()

    @property
    def _begun(self) -> bool:
        """Whether any rank has finished an episode."""
        return any(self.folder.glob("episodes-*.jsonl"))

    def _mend(self) -> None:
        """Cut off a line that was being written when the last run ended."""
        if self._path.exists():
            data = self._path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if whole != data:
                write_atomically(self._path, whole.decode(errors="replace"))

    def load(self) -> dict[int, EpisodeResult]:
        """Return what all ranks have finished, by position."""
        paths = sorted(self.folder.glob("episodes-*.jsonl"))
        results = (EpisodeResult.read(line) for path in paths for line in read_lines(path, "position"))
        return {result.position: result for result in results}

    def add(self, result: EpisodeResult) -> None:
        """Write one line, at once."""
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
        except OSError as error:
            raise not_written(self._path, error) from error

    def conclude(self, results: Sequence[EpisodeResult]) -> Path:
        """Write results.json: the headline, each task, each episode."""
        ordered = sorted(results, key=lambda result: result.position)
        content = {
            "success": summarise(ordered).success,
            "all": asdict(summarise(ordered)),
            "tasks": {task: asdict(summarise(group)) for task, group in by_task(ordered).items()},
            "episodes": [asdict(result) for result in ordered],
        }
        path = self.folder / "results.json"
        write_atomically(path, json.dumps(content, indent=2) + "\n")
        return path
