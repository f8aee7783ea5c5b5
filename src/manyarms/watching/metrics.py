"""The metrics of a run as its page asks for them: a line once, and of it only what is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyarms.reporting.reading import is_count, number
from manyarms.reporting.runs import Run, seconds_by_stage
from manyarms.reporting.trackers import CLOCKS, METRICS_FILE
from manyarms.watching.tail import Tail

#: What the page draws, besides where the time went.
_SHOWN = (
    *("env/success_once", "eval/success_once", "env/return", "env/episode_len", "env/num_trajectories"),
    *("actor/approx_kl", "actor/pg_clipfrac", "actor/loss", "throughput/env_steps_per_s", "throughput/env_steps_total"),
)

#: Updates that "lately" means.
_LATELY = 10


class Metrics:
    """All lines of `metrics.jsonl` so far."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._tail = folder, Tail(folder / METRICS_FILE)
        self._turn = self._tail.turn
        self.lines: list[dict[str, float | int | None]] = []
        self._stages: tuple[object, dict[str, list[tuple[str, float]]]] = (None, {})

    def read(self) -> None:
        """Take in what has come since."""
        found = self._tail.read()
        if self._tail.turn != self._turn:
            self._turn, self.lines = self._tail.turn, []
        self.lines += [_shown(line) for line in found if is_count(line.get("step"))]

    def since(self, position: str) -> dict[str, Any]:
        """Return the lines after a position that an earlier answer gave; all of them if it means nothing any more."""
        turn, _, count = position.partition("-")
        known = turn == self._turn and count.isdecimal() and int(count) <= len(self.lines)
        lines = self.lines[int(count) if known else 0 :]
        names = sorted({name for line in lines for name in line})
        return {
            "position": f"{self._turn}-{len(self.lines)}",
            "anew": not known,
            "more": self._tail.more,
            "columns": {name: [line.get(name) for line in lines] for name in names},
        }

    @property
    def step(self) -> int:
        """Updates so far."""
        return int(self.lines[-1]["step"] or 0) if self.lines else 0

    def latest(self, name: str) -> float | None:
        """Return the last value of a metric that is one."""
        return next((value for line in reversed(self.lines) if (value := line.get(name)) is not None), None)

    def seconds_an_update(self) -> float | None:
        """Return how long updates have taken lately, with what comes between them."""
        clock = [(line["step"], line["seconds"]) for line in self.lines[-2 * _LATELY :] if line.get("seconds")]
        if self.lines and (self.lines[0]["step"] or 0) > 0 and len(self.lines) <= 2 * _LATELY:
            clock.insert(0, (0, 0.0))
        if len(clock) < 2:
            return None
        (first, began), (last, ended) = clock[0], clock[-1]
        updates = (last or 0) - (first or 0)
        return ((ended or 0.0) - (began or 0.0)) / updates if updates > 0 else None

    def stages(self) -> dict[str, list[tuple[str, float]]]:
        """Return the seconds of every stage: of the whole run, and lately."""
        stamp = (self._turn, len(self.lines))
        if self._stages[0] != stamp:
            self._stages = stamp, self._summed()
        return self._stages[1]

    def _summed(self) -> dict[str, list[tuple[str, float]]]:
        series: dict[str, list[tuple[float, float]]] = {}
        for line in self.lines:
            for name, value in line.items():
                if name == "seconds" or name.startswith("time/"):
                    series.setdefault(name, []).append((line["step"] or 0, math.nan if value is None else value))
        by_stage = seconds_by_stage(Run(self._folder, {}, "", series, {}, 0, self.step))
        whole = [(name, sum(steps.values())) for name, steps in by_stage.items()]
        late = self.step - _LATELY
        lately = [(name, sum(s for step, s in steps.items() if step > late)) for name, steps in by_stage.items()]
        return {"whole": whole, "lately": lately} if late > 0 else {"whole": whole}


def _shown(line: Mapping[str, Any]) -> dict[str, float | int | None]:
    wanted = {name: value for name, value in line.items() if name in _SHOWN or name.startswith("time/")}
    wanted |= {name: line.get(name) for name in ("step", *CLOCKS)}
    return {name: number(value) for name, value in wanted.items()}
