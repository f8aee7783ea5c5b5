"""What the folder of a training run holds: metrics, evaluations, settings and videos, as far as the run has come."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

from manyarms.errors import ConfigError
from manyarms.reporting.charts import Point
from manyarms.reporting.reading import document, is_count, number
from manyarms.reporting.results import wilson
from manyarms.reporting.trackers import read_lines, read_metrics


class StopReason(Enum):
    """Why a training run ended; `status` in ``run.json``."""

    COMPLETED = "completed"
    EVALUATED = "evaluated"
    """Evaluation was all that it was started for."""
    TIME_LIMIT = "time_limit"
    INTERRUPTED = "interrupted"
    FAILED = "failed"

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> StopReason | None:
        """Return why the run ended that ``run.json`` tells of; None while it goes on."""
        try:
            return cls(facts["status"])
        except (KeyError, ValueError):
            pass
        because = facts.get("finished_because")  # earlier versions wrote no status
        if not isinstance(because, str):
            return None
        return cls.FAILED if because.startswith("it failed") else cls.COMPLETED


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
    def sum(cls, scores: Sequence[Score]) -> Score:
        won, played = sum(score.successes for score in scores), sum(score.episodes for score in scores)
        length = sum(score.mean_length * score.episodes for score in scores) / played if played else math.nan
        return cls(won, played, wilson(won, played), length)

    @property
    def rate(self) -> float:
        return self.successes / self.episodes if self.episodes else math.nan


@dataclass(frozen=True)
class Run:
    """A run as far as it has come."""

    folder: Path
    facts: Mapping[str, Any]
    config: str
    series: Mapping[str, Sequence[Point]]
    """Metrics by name; what was not finite is NaN."""
    evaluations: Mapping[int, Mapping[str, Score]]
    """Scores by step and task."""
    first: int
    last: int
    """The steps it spans."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @classmethod
    def of(cls, folder: Path) -> Run:
        gathered: dict[str, dict[int, float]] = {}
        for line in read_metrics(folder):
            for name, value in line.items():
                if name != "step" and (value is None or isinstance(value, int | float)):
                    found = number(value)
                    gathered.setdefault(name, {})[line["step"]] = math.nan if found is None else float(found)
        evaluations = read_evaluations(folder)
        steps = {step for values in gathered.values() for step in values} | set(evaluations)
        if not steps:
            raise ConfigError(f"{folder} holds no training run", why="it has neither metrics nor evaluations")
        series = {name: sorted(values.items()) for name, values in gathered.items()}
        facts = document(folder / "run.json")
        return cls(folder, facts, _text(folder / "config.yaml"), series, evaluations, min(steps), max(steps))

    def latest(self, name: str) -> float:
        """Return the last value of a metric that is one."""
        return next((value for _, value in reversed(self.series.get(name, ())) if math.isfinite(value)), math.nan)


def read_evaluations(folder: Path) -> dict[int, dict[str, Score]]:
    """Return the scores of a run by step and task."""
    found: dict[int, dict[str, Score]] = {}
    for line in read_lines(folder / "evaluations.jsonl"):
        tasks = line.get("tasks")
        scores = {task: Score.of(known) for task, known in tasks.items()} if isinstance(tasks, dict) else {}
        found[line["step"]] = {task: score for task, score in scores.items() if score is not None}
    return {step: found[step] for step in sorted(found) if found[step]}


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
