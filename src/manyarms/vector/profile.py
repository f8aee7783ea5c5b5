"""Where the time goes: the split of every call, percentiles over workers, and a trace file."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from manyarms.vector.chunk import ChunkTiming
from manyarms.workers import words as w

_PARTS = {"exec": w.EXEC, "sim": w.SIM, "obs": w.OBS, "vid": w.VID, "toggle": w.TOGGLE, "cpu": w.CPU}

#: A run of days must not fill the memory with timings: the latest are kept.
_REMEMBERED_CALLS = 50_000
_REMEMBERED_EVENTS = 1_000_000


class Profiler:
    """Collects the timings of every call."""

    def __init__(self, timings: np.ndarray, trace: str | os.PathLike[str] | None) -> None:
        self._timings = timings
        self._trace_path = Path(trace) if trace is not None else None
        self._events: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED_EVENTS)
        self._chunks: deque[ChunkTiming] = deque(maxlen=_REMEMBERED_CALLS)
        self._workers: deque[np.ndarray] = deque(maxlen=_REMEMBERED_CALLS)
        self._last_return = time.perf_counter()
        self._origin = self._last_return

    def begin(self) -> tuple[float, float]:
        """Note the start of a call; return it and how long the caller took to come back."""
        now = time.perf_counter()
        return now, now - self._last_return

    def finish(self, began: float, build: float, rows: np.ndarray) -> ChunkTiming:
        """Note the end of a call that brought back `rows`."""
        now = self._last_return = time.perf_counter()
        timings = self._timings[rows]
        slowest = int(np.argmax(timings[:, w.EXEC]))
        parts = {name: float(timings[slowest, word]) for name, word in _PARTS.items()}
        timing = ChunkTiming(build=build, env_call=now - began, row=int(rows[slowest]), **parts)
        self._chunks.append(timing)
        self._workers.append(timings.copy())
        if self._trace_path is not None:
            self._add_events(began, build, now, rows, timings)
        return timing

    def clear(self) -> None:
        """Forget everything so far, as after a warm-up."""
        self._chunks.clear()
        self._workers.clear()

    def summary(self) -> dict[str, Any]:
        """Return mean milliseconds a call of each part, and percentiles over all workers' answers."""
        if not self._chunks:
            return {}
        names = ("build", "env_call", "exec", "sim", "obs", "vid", "toggle", "other", "cpu", "ipc")
        mean = {name: float(np.mean([getattr(chunk, name) for chunk in self._chunks])) * 1e3 for name in names}
        stacked = np.concatenate(self._workers)
        percentiles = {
            name: dict(
                zip(("p50", "p90", "p99"), map(float, np.percentile(stacked[:, word] * 1e3, (50, 90, 99))), strict=True)
            )
            for name, word in _PARTS.items()
        }
        return {"calls": len(self._chunks), "mean_ms": mean, "workers_ms": percentiles}

    def _add_events(self, began: float, build: float, now: float, rows: np.ndarray, timings: np.ndarray) -> None:
        self._event("build", began - build, build, 0)
        self._event("env_call", began, now - began, 0)
        for row, spent in zip(rows, timings, strict=True):
            self._event("exec", spent[w.STARTED], spent[w.EXEC], int(row) + 1, {"cpu_ms": spent[w.CPU] * 1e3})
            # A worker simulates first and observes last; what it films or toggles in between is counted, not placed.
            start = spent[w.STARTED]
            for name in ("sim", "toggle", "vid", "obs"):
                duration = spent[_PARTS[name]]
                if duration:
                    self._event(name, start, duration, int(row) + 1)
                    start += duration

    def _event(self, name: str, start: float, duration: float, thread: int, args: dict[str, Any] | None = None) -> None:
        event = {
            "name": name,
            "ph": "X",
            "ts": (start - self._origin) * 1e6,
            "dur": duration * 1e6,
            "pid": 0,
            "tid": thread,
        }
        self._events.append({**event, "args": args} if args else event)

    def write_trace(self) -> None:
        """Write the trace for chrome://tracing or Perfetto."""
        if self._trace_path is None:
            return
        names = {0: "main", **{event["tid"]: f"row {event['tid'] - 1}" for event in self._events if event["tid"]}}
        head = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": thread, "args": {"name": name}}
            for thread, name in sorted(names.items())
        ]
        self._trace_path.parent.mkdir(parents=True, exist_ok=True)
        self._trace_path.write_text(json.dumps({"traceEvents": [*head, *self._events], "displayTimeUnit": "ms"}))
