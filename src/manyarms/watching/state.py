"""All that the page of a run shows, as one document."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from manyarms.reporting.reading import content, document, is_count, number, words
from manyarms.reporting.results import wilson
from manyarms.reporting.runs import Score, StopReason, newest_videos, read_evaluations
from manyarms.watching.folders import EVALUATION, kind_of, last_change
from manyarms.watching.live import LiveFiles
from manyarms.watching.metrics import Metrics
from manyarms.watching.tail import Pulse, Tail

#: Seconds of silence after which a run that keeps no live files is probably dead.
_PATIENCE = 120.0

#: What a list of runs shows of each.
_SUMMARY = ("name", "kind", "simulator", "policy", "tasks", "phase", "because", "silent", "done", "total", "success")

#: Bytes of a config.
_LONGEST_CONFIG = 1 << 20

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
        self._episodes: dict[int, dict[str, Any]] = {}
        self._evaluations: tuple[object, dict[int, dict[str, Score]]] = (None, {})
        self._runner: tuple[object, dict[str, Any]] = (None, {})
        self._first: tuple[float, int] | None = None
        """When episodes were first counted, and how many there were."""
        self._summary: tuple[float, dict[str, Any]] | None = None

    def state(self, since: str = "", looking: bool = True) -> dict[str, Any]:
        """Return the run as it is now; of its metrics those after `since`. `looking` asks it for frames."""
        with self._lock:
            self.kind = kind_of(self.folder) or self.kind
            processes = self._live.read()
            found = self._evaluation() if self.kind == EVALUATION else self._training()
            phase = self._phase(found, processes)
            if looking and phase["phase"] in ("starting", "running", "silent"):
                self._live.touch()
            return {
                "name": self.folder.resolve().name,
                "folder": str(self.folder),
                "kind": self.kind,
                **found,
                **phase,
                "metrics": self._metrics.since(since),
                "processes": processes,
                "failures": self._live.failures.list(),
                "videos": self._videos(),
                "report": (self.folder / "report.html").is_file(),
            }

    def summary(self) -> dict[str, Any]:
        """Return what a list of runs shows of this one."""
        changed = last_change(self.folder)
        if self._summary is not None and self._summary[0] == changed:
            return self._summary[1]
        state = self.state(looking=False)
        rows = sum(len(process["rows"]) for process in state["processes"] if not process["closed"])
        found = {**{name: state[name] for name in _SUMMARY}, "rows": rows, "changed": changed}
        # What is over, or seems so, is read again when it writes again: there may be hundreds of runs.
        settled = state["phase"] not in ("starting", "running") and not state["metrics"]["more"]
        self._summary = (changed, found) if settled else None
        return found

    # -- training -----------------------------------------------------------------------------------------------------

    def _training(self) -> dict[str, Any]:
        metrics, facts = self._metrics, document(self.folder / "run.json")
        metrics.read()
        runner = self._runner_settings()
        evaluations = self._read_evaluations()
        scores = {step: Score.sum(list(tasks.values())) for step, tasks in evaluations.items()}
        tasks, total = facts.get("tasks"), runner.get("max_epochs") or runner.get("max_steps")
        last = next(reversed(evaluations.values()), {})
        return {
            **{name: words(facts.get(name)) for name in ("simulator", "policy", "started", "finished")},
            "tasks": [task for task in tasks if isinstance(task, str)] if isinstance(tasks, list) else [],
            "because": words(facts.get("finished_because")),
            "status": _status(StopReason.of(facts)),
            "resuming": facts.get("resuming") is True,
            "done": metrics.step,
            "total": total if is_count(total) else None,
            "seconds": metrics.latest("seconds"),
            "seconds_an_update": metrics.seconds_an_update(),
            "seconds_to_limit": self._to_limit(runner.get("max_seconds"), facts),
            "success": self._success(scores),
            "first_success": _told(next(iter(scores.values()))) if len(scores) > 1 else None,
            "evaluations": [{"step": step, **_told(score)} for step, score in scores.items()],
            "by_task": [{"task": task, **_told(score)} for task, score in last.items()],
            "stages": metrics.stages(),
        }

    def _to_limit(self, limit: object, facts: Mapping[str, Any]) -> float | None:
        """Return the seconds before the run is ended by its limit, which counts from a session's first update."""
        limit = number(limit)
        if limit is None:
            return None
        begun = facts.get("from_step")
        if isinstance(begun, int) and self._metrics.step <= begun:  # what is logged is of an earlier session
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
        path = self.folder / "evaluations.jsonl"
        stamp = _stamp(path)
        if stamp != self._evaluations[0]:
            self._evaluations = stamp, read_evaluations(self.folder)
        return self._evaluations[1]

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def _evaluation(self) -> dict[str, Any]:
        config = document(self.folder / "config.json")
        for path in sorted(self.folder.glob("episodes-*.jsonl")):
            for line in self._tails.setdefault(path, Tail(path)).read():
                if is_count(line.get("position")):
                    self._episodes[line["position"]] = line
        groups: dict[str, list[dict[str, Any]]] = {}
        for _, line in sorted(self._episodes.items()):
            groups.setdefault(str(line.get("task") or ""), []).append(line)
        scores = {task: _score(group) for task, group in groups.items()}
        tasks = [task.strip() for task in str(config.get("tasks") or "").split(",") if task.strip()]
        whole = (self.folder / "results.json").is_file()
        now, done = time.monotonic(), len(self._episodes)
        began, before = self._first = self._first or (now, done)
        return {
            **{name: words(config.get(name)) for name in ("simulator", "policy")},
            "started": None,
            "finished": None,
            "because": "all episodes are in" if whole else None,
            "status": _status(StopReason.COMPLETED if whole else None),
            "resuming": False,
            "tasks": tasks or [task for task in groups if task],
            "done": done,
            "total": self._planned(config, tasks, whole),
            "seconds": None,
            "seconds_an_update": (now - began) / (done - before) if done > before else None,
            "seconds_to_limit": None,
            "success": _told(Score.sum(list(scores.values()))) if scores else None,
            "first_success": None,
            "evaluations": [],
            "by_task": [{"task": task, **_told(score)} for task, score in scores.items()],
            "stages": {},
        }

    def _planned(self, config: Mapping[str, Any], tasks: list[str], whole: bool) -> int | None:
        """Return how many episodes there will be, where the settings alone say so."""
        if whole:
            return len(self._episodes)
        count = len(tasks) or ("/" in str(config.get("simulator")))
        episodes = config.get("episodes")
        return episodes * count if count and is_count(episodes) else None

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


def _status(reason: StopReason | None) -> str | None:
    return None if reason is None else reason.value


def _left(found: Mapping[str, Any]) -> float | None:
    """Estimate the seconds that are left."""
    left = []
    if found["total"] and found["seconds_an_update"]:
        left.append(max(0, found["total"] - found["done"]) * found["seconds_an_update"])
    if found["seconds_to_limit"] is not None:
        left.append(found["seconds_to_limit"])
    return min(left, default=None)


def _score(episodes: Iterable[Mapping[str, Any]]) -> Score:
    lengths = [episode.get("length") for episode in episodes]
    won = sum(episode.get("success") is True for episode in episodes)
    known = [length for length in lengths if is_count(length)]
    return Score(won, len(lengths), wilson(won, len(lengths)), sum(known) / max(1, len(known)))


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
