"""The folder of a run: which folders hold one, and one schema and one reader for each file in it, whoever wrote it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

from manyarms.errors import ConfigError
from manyarms.reporting.charts import Point
from manyarms.reporting.files import document, is_count, number, read_lines, words, write_atomically
from manyarms.reporting.results import EpisodeResult, summarise, wilson

FACTS_FILE, METRICS_FILE, EVALUATIONS_FILE = "run.json", "metrics.jsonl", "evaluations.jsonl"

#: What lines of metrics count the time in: of all sessions, and of the last since its first update.
CLOCKS = ("seconds", "session_seconds")

#: Of live files and their pictures.
_NAME = re.compile(r"[\w.-]+")


# -- run.json ---------------------------------------------------------------------------------------------------------


class StopReason(Enum):
    """Why a training run ended; `status` in ``run.json``."""

    COMPLETED = "completed"
    EVALUATED = "evaluated"
    """Evaluation was all that it was started for."""
    TIME_LIMIT = "time_limit"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True)
class RunFacts:
    """What is run, and how it ended."""

    version: str | None = None
    command: str | None = None
    started: str | None = None
    machine: str | None = None
    policy: str | None = None
    simulator: str | None = None
    tasks: Sequence[str] = ()
    from_step: int | None = None
    """The update that this session goes on from."""
    resuming: bool | None = None
    finished: str | None = None
    status: StopReason | None = None
    """None while it goes on."""
    finished_because: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    """What other versions write."""

    @classmethod
    def read(cls, folder: Path) -> RunFacts:
        """Return what is known of a run; nothing where it cannot be read."""
        found = document(folder / FACTS_FILE)
        texts = ("version", "command", "started", "machine", "policy", "simulator", "finished", "finished_because")
        known: dict[str, Any] = {name: words(found.get(name)) for name in texts}
        tasks, begun = found.get("tasks"), found.get("from_step")
        known["tasks"] = tuple(task for task in tasks if isinstance(task, str)) if isinstance(tasks, list) else ()
        known["from_step"] = begun if is_count(begun) else None
        known["resuming"] = found.get("resuming") is True or None
        known["status"] = None if known["resuming"] else _status(found.get("status"), known["finished_because"])
        return cls(**known, others={name: value for name, value in found.items() if not known.get(name)})

    def write(self, folder: Path) -> None:
        """Write it, whole or not at all."""
        write_atomically(folder / FACTS_FILE, json.dumps(self.document(), indent=2) + "\n")

    def document(self) -> dict[str, Any]:
        """Return what is known, as it is written."""
        known = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "others"}
        known["status"] = None if self.status is None else self.status.value
        known = {name: value for name, value in known.items() if value is not None}
        return {**known, **{name: value for name, value in self.others.items() if name not in known}}


def _status(status: object, because: str | None) -> StopReason | None:
    try:
        return StopReason(status)
    except ValueError:
        pass
    if because is None:  # earlier versions wrote no status
        return None
    return StopReason.FAILED if because.startswith("it failed") else StopReason.COMPLETED


# -- metrics.jsonl ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MetricsLine:
    """The metrics of an update, and the time it was logged at; NaN: the value was not finite."""

    step: int
    values: Mapping[str, float]

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> MetricsLine:
        """Take from a line, which has a step, what is a number or was one."""
        found = {name: number(value) for name, value in line.items() if value is None or isinstance(value, int | float)}
        found.pop("step", None)
        return cls(line["step"], {name: math.nan if value is None else value for name, value in found.items()})

    def text(self) -> str:
        """Return the line as it is written."""
        finite = {name: value if math.isfinite(value) else None for name, value in self.values.items()}
        return json.dumps({"step": self.step, **finite}) + "\n"

    def add_to(self, series: dict[str, list[Point]]) -> None:
        """Add it to metrics by name; a step that comes again takes the place of what came after it."""
        for name, value in self.values.items():
            points = series.setdefault(name, [])
            while points and points[-1][0] >= self.step:
                points.pop()
            points.append((self.step, float(value)))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics, a line that was cut short left out."""
    return read_lines(folder / METRICS_FILE)


# -- evaluations.jsonl ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """Successes of a task, or of all of them."""

    successes: int
    episodes: int
    interval: tuple[float, float]
    mean_length: float

    @classmethod
    def of(cls, known: object) -> Score | None:
        """Return a score as it was written down; None for what is none, or of no episodes."""
        if not isinstance(known, Mapping):
            return None
        won, played = known.get("successes") or 0, known.get("episodes") or 0
        if not is_count(won) or not is_count(played) or not won <= played > 0:
            return None
        length = number(known.get("mean_length"))
        return cls(won, played, wilson(won, played), math.nan if length is None else length)

    @classmethod
    def of_episodes(cls, results: Sequence[EpisodeResult]) -> Score:
        found = summarise(results)
        return cls(found.successes, found.episodes, found.interval, found.mean_length)

    @classmethod
    def sum(cls, scores: Sequence[Score]) -> Score:
        won, played = sum(score.successes for score in scores), sum(score.episodes for score in scores)
        length = sum(score.mean_length * score.episodes for score in scores) / played if played else math.nan
        return cls(won, played, wilson(won, played), length)

    @property
    def rate(self) -> float:
        return self.successes / self.episodes if self.episodes else math.nan


def read_evaluations(folder: Path) -> dict[int, dict[str, Score]]:
    """Return the scores of a run by step and task."""
    found: dict[int, dict[str, Score]] = {}
    for line in read_lines(folder / EVALUATIONS_FILE):
        tasks = line.get("tasks")
        scores = {task: Score.of(known) for task, known in tasks.items()} if isinstance(tasks, dict) else {}
        found[line["step"]] = {task: score for task, score in scores.items() if score is not None}
    return {step: found[step] for step in sorted(found) if found[step]}


def add_evaluation(folder: Path, step: int, scores: Mapping[str, Score]) -> None:
    """Write down an evaluation, task by task, in place of an earlier one of the same step."""
    path = folder / EVALUATIONS_FILE
    kept = [line for line in read_lines(path) if line["step"] != step]
    added = {"step": step, "tasks": {task: asdict(score) for task, score in scores.items()}}
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in [*kept, added]))


# -- live/<name>.json -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LiveRow:
    """An environment as it was at a moment: `vector.RowState`, and where its frame is."""

    row: int | None = None
    worker: int | None = None
    pid: int | None = None
    task: str | None = None
    state: str | None = None
    seed: int | None = None
    episode_steps: int | None = None
    episodes: int | None = None
    restarts: int | None = None
    failure: str | None = None
    frame: int | None = None
    """Its place on the sheet; None where it has none."""

    @classmethod
    def of(cls, known: Mapping[str, Any]) -> LiveRow:
        texts = ("task", "state", "failure")
        kinds = {each.name: str if each.name in texts else int for each in fields(cls)}
        return cls(**{name: known[name] for name, kind in kinds.items() if isinstance(known.get(name), kind)})


@dataclass(frozen=True)
class LiveSheet:
    """A picture of all environments, tile by tile."""

    file: str
    columns: int
    width: int
    height: int
    written: float | str

    @classmethod
    def of(cls, known: object) -> LiveSheet | None:
        if not isinstance(known, Mapping) or not _NAME.fullmatch(str(known.get("file"))):
            return None
        found = (known.get(name) for name in ("columns", "width", "height"))
        sizes = [size for size in found if isinstance(size, int) and size > 0]
        return cls(str(known["file"]), *sizes, written=str(known.get("written"))) if len(sizes) == 3 else None


@dataclass(frozen=True)
class LiveFile:
    """What a process says of its environments, about once a second."""

    name: str
    pid: int | None
    host: str | None
    simulator: str | None
    written: float | None
    interval: float | None
    """Seconds between two of these."""
    closed: bool
    rows: Sequence[LiveRow]
    sheet: LiveSheet | None
    version: int = 1

    @classmethod
    def of(cls, name: str, known: Any) -> LiveFile:
        """Take what is known and of the right kind; what is no live file is a ValueError."""
        if not _NAME.fullmatch(name) or not isinstance(known, dict) or not isinstance(known.get("rows"), list):
            raise ValueError("not a live file")
        pid, version = known.get("pid"), known.get("version")
        return cls(
            name,
            pid if is_count(pid) else None,
            words(known.get("host")),
            words(known.get("simulator")),
            number(known.get("written")),
            number(known.get("interval")),
            known.get("closed") is True,
            [LiveRow.of(row) for row in known["rows"] if isinstance(row, dict)],
            LiveSheet.of(known.get("sheet")),
            version if is_count(version) else 1,
        )

    def text(self) -> str:
        """Return it as it is written."""
        parts = {"rows": [vars(row) for row in self.rows], "sheet": vars(self.sheet) if self.sheet else None}
        return json.dumps({**vars(self), **parts})


# -- config.json of an evaluation -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluationFacts:
    """What is evaluated, as far as it is shown."""

    simulator: str | None
    policy: str | None
    tasks: Sequence[str]
    episodes: int | None
    """Of each task."""

    @classmethod
    def read(cls, folder: Path) -> EvaluationFacts:
        found = document(folder / "config.json")
        tasks = [task.strip() for task in str(found.get("tasks") or "").split(",") if task.strip()]
        episodes = found.get("episodes")
        names = (words(found.get("simulator")), words(found.get("policy")))
        return cls(*names, tasks, episodes if is_count(episodes) else None)


# -- runs as a whole --------------------------------------------------------------------------------------------------


TRAINING, EVALUATION = "training", "evaluation"

#: How far below a folder runs are looked for: runs/<name> and runs/<group>/<name>.
DEPTH = 2

_LOOKS = (
    "a training run has metrics.jsonl or run.json, an evaluation has config.json and episodes-0.jsonl; "
    "neither is here or in a folder below"
)
_GIVE = "give the folder that `manyarms train` or `manyarms eval` names at its end (usually runs/<name>), or its parent"


def kind_of(folder: Path) -> str | None:
    """Return what kind of run a folder holds; None: it holds none."""
    if (folder / "metrics.jsonl").is_file() or (folder / "run.json").is_file():
        return TRAINING
    begun = any((folder / "live").glob("*.json"))
    if (folder / "config.json").is_file():
        return EVALUATION if begun or any(folder.glob("episodes-*.jsonl")) else None
    return TRAINING if begun else None


def runs_below(folder: Path) -> list[Path]:
    """Return the runs in a folder, newest first; links that lead out of it do not count."""
    inside = folder.resolve()
    found: list[Path] = []
    level = [folder]
    for _ in range(DEPTH):
        level = [child for parent in level for child in _folders_in(parent) if child.resolve().is_relative_to(inside)]
        found += [child for child in level if kind_of(child)]
        level = [child for child in level if child not in found]
    return sorted(found, key=last_change, reverse=True)


def _folders_in(parent: Path) -> list[Path]:
    try:
        return [child for child in parent.iterdir() if not child.name.startswith(".") and child.is_dir()]
    except OSError:
        return []  # not ours to read


def last_change(folder: Path) -> float:
    """Return when a run last wrote something, in Unix seconds."""
    names = ("metrics.jsonl", "run.json", "config.json", "evaluations.jsonl", "results.json")
    paths = [*(folder / name for name in names), *folder.glob("episodes-*.jsonl"), *(folder / "live").glob("*.json")]
    return max((_changed(path) for path in paths), default=0.0)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def check(folder: Path) -> None:
    """Refuse what is neither a run nor holds some."""
    if not folder.exists():
        raise ConfigError(f"there is no folder {folder}", do=_GIVE)
    if not folder.is_dir():
        raise ConfigError(f"{folder} is a file, not the folder of a run", do=_GIVE)
    if kind_of(folder) is None and not runs_below(folder):
        raise ConfigError(f"{folder} holds no run", why=_LOOKS, do=_GIVE)


def shown_file(folder: Path, parts: list[str]) -> Path | None:
    """Return a file that the page of a run may show; None for anything else, and for links that lead out."""
    if any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
        return None
    match parts:
        case ["live", name] if name.endswith(".jpg"):
            pass
        case ["video" | "videos", *_, name] if name.endswith(".mp4"):
            pass
        case ["report.html"]:
            pass
        case _:
            return None
    try:
        path = folder.joinpath(*parts).resolve(strict=True)
    except (OSError, RuntimeError):  # not there, or links in a circle
        return None
    return path if path.is_file() and path.is_relative_to(folder.resolve()) else None


# -- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A run as far as it has come."""

    folder: Path
    facts: RunFacts
    config: str
    series: Mapping[str, Sequence[Point]]
    """Metrics by name; what was not finite is NaN."""
    evaluations: Mapping[int, Mapping[str, Score]]
    """Scores by step and task."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @classmethod
    def of(cls, folder: Path) -> Run:
        series: dict[str, list[Point]] = {}
        for line in read_metrics(folder):
            MetricsLine.of(line).add_to(series)
        evaluations = read_evaluations(folder)
        if not series and not evaluations:
            raise ConfigError(f"{folder} holds no training run", why="it has neither metrics nor evaluations")
        return cls(folder, RunFacts.read(folder), _text(folder / "config.yaml"), series, evaluations)

    @property
    def span(self) -> tuple[float, float]:
        """The steps it spans."""
        ends = [points[i][0] for points in self.series.values() for i in (0, -1)]
        steps = [*ends, *self.evaluations] or [0.0]
        return min(steps), max(steps)

    def latest(self, name: str) -> float:
        """Return the last value of a metric that is one."""
        return next((value for _, value in reversed(self.series.get(name, ())) if math.isfinite(value)), math.nan)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


#: Metrics of time, in words.
_STAGES = {
    "time/env": "simulators",
    "time/rollout": "policy",
    "time/actor": "learning",
    "time/eval": "evaluation",
    "time/save": "checkpoints",
}


def seconds_by_stage(run: Run) -> dict[str, dict[float, float]]:
    """Return the seconds of every stage by step, so that they add up to the time that passed."""
    stages = {
        _STAGES.get(name, name.removeprefix("time/")): {
            step: value for step, value in points if math.isfinite(value) and value >= 0
        }
        for name, points in run.series.items()
        if name.startswith("time/")
    }
    if not any(stages.values()):
        return {}
    # What every update does comes first, so that what is rare does not break it up.
    stages = dict(sorted(stages.items(), key=lambda stage: -len(stage[1])))
    clock = [(0.0, 0.0), *(point for point in run.series.get("seconds", ()) if math.isfinite(point[1]))]
    passed = {step: value - before for (_, before), (step, value) in pairwise(clock)}
    other = {step: value - sum(stage.get(step, 0.0) for stage in stages.values()) for step, value in passed.items()}
    other = {step: max(0.0, value) for step, value in other.items()}
    if sum(other.values()) > 0.01 * sum(passed.values()):
        stages["other"] = other
    return {name: stage for name, stage in stages.items() if sum(stage.values())}


def newest_videos(folder: Path) -> list[Path]:
    """Return the videos of a run: evaluations before others, the latest before earlier ones."""
    found = [path for kind in ("video", "videos") for path in (folder / kind).glob("**/*.mp4") if path.is_file()]

    def age(path: Path) -> tuple[bool, list[int]]:
        inside = path.parent.relative_to(folder).as_posix()
        return "eval" not in inside, [-int(digits) for digits in re.findall(r"\d+", inside)]

    return sorted(found, key=lambda path: (*age(path), path.name))
