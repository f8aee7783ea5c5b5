"""All that the page of a run shows, as one document."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from manyarms.reporting.charts import PERCENT, Scale, interval_bar, legend, line_chart, percent, share_bar, small_chart
from manyarms.reporting.charts import number as in_words
from manyarms.reporting.files import content, is_count, number
from manyarms.reporting.following import SMALL, LiveFiles, Metrics, Pulse, Tail
from manyarms.reporting.report import between, stage_colours, stage_legend, success_curves
from manyarms.reporting.results import EpisodeResult, by_task, wilson
from manyarms.reporting.runs import (
    EVALUATION,
    EVALUATIONS_FILE,
    EvaluationFacts,
    Run,
    RunFacts,
    Score,
    StopReason,
    kind_of,
    last_change,
    newest_videos,
    read_evaluations,
)

#: Seconds of silence after which a run that keeps no live files is probably dead.
_PATIENCE = 120.0

#: What a list of runs shows of each.
_SUMMARY = ("name", "kind", "simulator", "policy", "tasks", "phase", "because", "silent", "done", "total", "success")

#: What only a training run has.
_OF_TRAINING = ("started", "finished", "seconds", "seconds_to_limit", "first_success", "speed", "steps", "judged")

#: Bytes of a config.
_LONGEST_CONFIG = 1 << 20

#: What takes so many seconds to draw, as curves of a hundred thousand updates do, rests for so many times as long.
_LONG, _REST = 0.2, 10.0

#: Videos that a page offers.
_VIDEOS = 24


class WatchedRun:
    """A run's folder, read again and again; what has not changed is not read twice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kind = kind_of(folder)
        self._lock = threading.Lock()
        self._metrics, self._live, self._pulse = Metrics(folder), LiveFiles(folder), Pulse()
        self._tails: dict[Path, Tail] = {}
        self._episodes: dict[int, EpisodeResult] = {}
        self._evaluations: tuple[object, dict[int, dict[str, Score]]] = (None, {})
        self._runner: tuple[object, dict[str, Any]] = (None, {})
        self._first: tuple[float, int] | None = None
        """When episodes were first counted, and how many there were."""
        self._summary: tuple[float, dict[str, Any]] | None = None
        self._parts = _Parts()
        self._drawn: object = None
        """What the curves are drawn of."""
        self._draw_after = 0.0

    def state(self, since: str = "", looking: bool = True) -> dict[str, Any]:
        """Return the run as it is now, with what is drawn anew since an earlier answer's `position`.

        `looking` asks it for frames.
        """
        with self._lock:
            found = self._known()
            if looking and found["phase"] in ("starting", "running", "silent"):
                self._live.touch()
            if not found["more"]:  # else the page asks again at once
                self._draw()
            return {**found, "videos": self._videos(), **self._parts.since(since)}

    def summary(self) -> dict[str, Any]:
        """Return what a list of runs shows of this one."""
        changed = last_change(self.folder)
        if self._summary is not None and self._summary[0] == changed:
            return self._summary[1]
        with self._lock:
            state = self._known()
        rows = sum(len(process["rows"]) for process in state["processes"] if not process["closed"])
        found = {**{name: state[name] for name in _SUMMARY}, "rows": rows, "changed": changed}
        # What is over, or seems so, is read again when it writes again: there may be hundreds of runs.
        settled = state["phase"] not in ("starting", "running") and not state["more"]
        self._summary = (changed, found) if settled else None
        return found

    def _known(self) -> dict[str, Any]:
        """Return all but what is drawn."""
        self.kind = kind_of(self.folder) or self.kind
        processes = self._live.read()
        found = self._evaluation() if self.kind == EVALUATION else self._training()
        found = {**dict.fromkeys(_OF_TRAINING), **found}
        return {
            "name": self.folder.resolve().name,
            "folder": str(self.folder),
            "kind": self.kind,
            **found,
            **self._phase(found, processes),
            "more": self._metrics.more,
            "processes": processes,
            "failures": self._live.failures.list(),
            "report": (self.folder / "report.html").is_file(),
        }

    def _draw(self) -> None:
        """Draw what is not drawn yet."""
        evaluations = self._evaluations[1]
        stamp = (self._metrics.stamp, self._evaluations[0])
        if stamp != self._drawn and time.monotonic() >= self._draw_after:
            self._drawn, began = stamp, time.monotonic()
            run = self._metrics.run(evaluations)
            self._parts.put("success", _success(run))
            self._parts.put("small", _small(run))
            self._parts.put("stages", _stages(self._metrics.stages()))
            took = time.monotonic() - began
            self._draw_after = began + _REST * took if took > _LONG else began
        scores = next(reversed(evaluations.values()), {}) if self.kind != EVALUATION else self._scores()
        self._parts.put("tasks-rows", "".join(_task_row(task, score) for task, score in scores.items()))

    # -- training -----------------------------------------------------------------------------------------------------

    def _training(self) -> dict[str, Any]:
        metrics, facts = self._metrics, RunFacts.read(self.folder)
        metrics.read()
        runner = self._runner_settings()
        evaluations = self._read_evaluations()
        scores = {step: Score.sum(list(tasks.values())) for step, tasks in evaluations.items()}
        total = runner.get("max_epochs") or runner.get("max_steps")
        return {
            **{name: getattr(facts, name) for name in ("simulator", "policy", "started", "finished", "tasks")},
            "because": facts.finished_because,
            "status": facts.status and facts.status.value,
            "resuming": facts.resuming is True,
            "done": metrics.step,
            "total": total if is_count(total) else None,
            "seconds": metrics.latest("seconds"),
            "seconds_an_update": metrics.seconds_an_update(),
            "seconds_to_limit": self._to_limit(runner.get("max_seconds"), facts.from_step),
            "success": self._success(scores),
            "first_success": _told(next(iter(scores.values()))) if len(scores) > 1 else None,
            "speed": metrics.latest("throughput/env_steps_per_s"),
            "steps": metrics.latest("throughput/env_steps_total"),
            "judged": next(reversed(evaluations), None),
        }

    def _to_limit(self, limit: object, begun: int | None) -> float | None:
        """Return the seconds before the run is ended by its limit, which counts from a session's first update."""
        limit = number(limit)
        if limit is None:
            return None
        if begun is not None and self._metrics.step <= begun:  # what is logged is of an earlier session
            return float(limit)
        passed = self._metrics.latest("session_seconds")
        return None if passed is None else max(0.0, limit - passed)

    def _success(self, scores: dict[int, Score]) -> dict[str, Any] | None:
        """Return the last evaluation; where there is none, the success of the last update's episodes."""
        if scores:
            step, score = next(reversed(scores.items()))
            return {"step": step, **_told(score)}
        rate, episodes = self._metrics.latest("env/success_once"), self._metrics.latest("env/num_trajectories")
        if rate is None or not 0.0 <= rate <= 1.0:
            return None
        played = round(max(0, episodes or 0))
        score = Score(won := round(rate * played), played, wilson(won, played), 0.0)
        return {"step": self._metrics.step, **_told(score), "rate": rate}

    def _runner_settings(self) -> dict[str, Any]:
        from manyarms.decoding import Undecodable, from_yaml

        path = self.folder / "config.yaml"
        stamp = _stamp(path)
        if stamp != self._runner[0]:
            try:
                config = from_yaml(content(path)[:_LONGEST_CONFIG].decode(errors="replace"))
            except (OSError, Undecodable):
                return {}  # not whole yet, or of somebody who means no good
            runner = config.get("runner") if isinstance(config, dict) else None
            self._runner = stamp, runner if isinstance(runner, dict) else {}
        return self._runner[1]

    def _read_evaluations(self) -> dict[int, dict[str, Score]]:
        path = self.folder / EVALUATIONS_FILE
        stamp = _stamp(path)
        if stamp != self._evaluations[0]:
            self._evaluations = stamp, read_evaluations(self.folder)
        return self._evaluations[1]

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def _evaluation(self) -> dict[str, Any]:
        facts = EvaluationFacts.read(self.folder)
        for path in sorted(self.folder.glob("episodes-*.jsonl")):
            for line in self._tails.setdefault(path, Tail(path, "position")).read():
                self._episodes[line["position"]] = EpisodeResult.read(line)
        scores = self._scores()
        whole = (self.folder / "results.json").is_file()
        now, done = time.monotonic(), len(self._episodes)
        began, before = self._first = self._first or (now, done)
        return {
            "simulator": facts.simulator,
            "policy": facts.policy,
            "because": "all episodes are in" if whole else None,
            "status": StopReason.COMPLETED.value if whole else None,
            "resuming": False,
            "tasks": facts.tasks or [task for task in scores if task],
            "done": done,
            "total": self._planned(facts, whole),
            "seconds_an_update": (now - began) / (done - before) if done > before else None,
            "success": _told(Score.sum(list(scores.values()))) if scores else None,
        }

    def _scores(self) -> dict[str, Score]:
        """Return the scores of an evaluation so far by task."""
        return {task: Score.of_episodes(group) for task, group in by_task(self._episodes.values()).items()}

    def _planned(self, facts: EvaluationFacts, whole: bool) -> int | None:
        """Return how many episodes there will be, where the settings alone say so."""
        if whole:
            return len(self._episodes)
        count = len(facts.tasks) or ("/" in (facts.simulator or ""))
        return facts.episodes * count if count and facts.episodes is not None else None

    # -- what both have -----------------------------------------------------------------------------------------------

    def _phase(self, found: Mapping[str, Any], processes: list[dict[str, Any]]) -> dict[str, Any]:
        """Return whether it goes on, has ended, or has not been heard of."""
        status = found["status"]
        changed = last_change(self.folder)
        silence = self._pulse.silence(changed, time.time() - changed)
        silence = min([silence, *(process["silent"] for process in processes)])
        told = {"silent": round(silence, 1), "left": None}
        if status is not None:
            return {**told, "phase": "failed" if status == StopReason.FAILED.value else "finished"}
        slow = _PATIENCE + 3 * (found["seconds_an_update"] or 0.0)
        patience = max((process["patience"] for process in processes), default=slow)
        if silence > patience:
            return {**told, "phase": "silent"}
        if found["resuming"] or not found["done"]:
            return {**told, "phase": "starting"}
        return {**told, "phase": "running", "left": _left(found)}

    def _videos(self) -> list[dict[str, Any]]:
        videos = []
        for path in newest_videos(self.folder)[:_VIDEOS]:
            inside = path.relative_to(self.folder)
            stamp = _stamp(path)
            if stamp is not None and stamp[1]:  # one of no bytes is being written
                videos.append({"path": inside.as_posix(), "stamp": f"{stamp[0]:x}"})
        return videos


class _Parts:
    """Parts of a page as HTML, by the ids of their places; each is sent once, and again when it has changed."""

    def __init__(self) -> None:
        self._life, self._count = secrets.token_hex(4), 0
        self._drawn: dict[str, tuple[int, str]] = {}

    def put(self, place: str, html: str) -> None:
        """Have this in a place."""
        if self._drawn.get(place, (0, ""))[1] != html:
            self._count += 1
            self._drawn[place] = self._count, html

    def since(self, position: str) -> dict[str, Any]:
        """Return what has changed after a position; all if it is none of ours."""
        life, _, count = position.partition("-")
        ours = life == self._life and count.isdecimal() and len(count) < 16 and int(count) <= self._count
        seen = int(count) if ours else 0
        changed = {place: html for place, (number, html) in self._drawn.items() if number > seen}
        return {"position": f"{self._life}-{self._count}", "parts": changed}


def _success(run: Run) -> str:
    curves = success_curves(run)
    if not curves:
        return ""
    across = Scale.of_steps(*run.span)
    return legend(curves) + line_chart(curves, across, up=PERCENT, label="success over updates")


def _small(run: Run) -> str:
    across = Scale.of_steps(*run.span, 3)
    shown = ((name, words, run.series.get(name, ())) for name, words in SMALL.items())
    return "".join(
        small_chart(name, words, points, across)
        for name, words, points in shown
        if any(math.isfinite(value) for _, value in points)
    )


def _stages(stages: Mapping[str, Mapping[str, float]]) -> str:
    whole = next(iter(stages.values()))
    colours = list(stage_colours(whole).items())
    bars = ""
    for title, seconds in stages.items():
        shares = [value / (sum(seconds.values()) or 1.0) for value in seconds.values()]
        bars += f'<div class="split"><span>{title}</span>{share_bar(colours, shares, title)}</div>'
    return bars + stage_legend(whole) if whole else ""


def _task_row(task: str, score: Score) -> str:
    told = (task or "all episodes", percent(score.rate), between(score), f"{score.successes} / {score.episodes}")
    cells = "".join(f"<td>{escape(text)}</td>" for text in told)
    bar = interval_bar(score.rate, score.interval)
    return f'<tr>{cells}<td class="range">{bar}</td><td class="wide">{in_words(score.mean_length, 3)}</td></tr>'


def _left(found: Mapping[str, Any]) -> float | None:
    """Estimate the seconds that are left."""
    left = []
    if found["total"] and found["seconds_an_update"]:
        left.append(max(0, found["total"] - found["done"]) * found["seconds_an_update"])
    if found["seconds_to_limit"] is not None:
        left.append(found["seconds_to_limit"])
    return min(left, default=None)


def _told(score: Score) -> dict[str, Any]:
    low, high = score.interval
    length = score.mean_length if math.isfinite(score.mean_length) else None  # NaN is no JSON
    told = {"successes": score.successes, "episodes": score.episodes, "low": low, "high": high, "length": length}
    return {**told, "rate": score.rate if score.episodes else None}


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
