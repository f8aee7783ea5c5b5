"""The folder of a run as its processes leave it, made for tests of who watches it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from manyarms.reporting.results import wilson

TASKS = ("open_drawer", "stack_blocks", "push_button", "pick_up_cup")


def line(step: int) -> dict[str, Any]:
    """Return the metrics of an update."""
    wave = math.sin(0.9 * step)
    return {
        "step": step,
        "seconds": 9.0 * step,
        "env/num_trajectories": 64.0,
        "env/success_once": min(1.0, max(0.0, 1 - math.exp(-step / 25) + 0.04 * wave)),
        "env/return": 4 - 3 * math.exp(-step / 30) + 0.2 * wave,
        "env/episode_len": 40 + 60 * math.exp(-step / 40),
        "actor/loss": 0.4 * math.exp(-step / 20) + 0.02 * wave,
        "actor/approx_kl": 0.01 + 0.004 * wave,
        "actor/pg_clipfrac": 0.12 + 0.03 * wave,
        "throughput/env_steps_per_s": 5200 + 300 * wave,
        "throughput/env_steps_total": 6400.0 * step,
        "time/env": 5.0,
        "time/rollout": 1.2,
        "time/actor": 2.3,
    }


def write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))


def append_line(path: Path, added: Mapping[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(added) + "\n")


def score(successes: int, episodes: int = 50) -> dict[str, Any]:
    return {
        "successes": successes,
        "episodes": episodes,
        "mean_length": 61.0,
        "interval": list(wilson(successes, episodes)),
    }


def training(folder: Path, updates: int = 5, total: int = 120) -> Path:
    """Write a training run that is under way."""
    write_lines(folder / "metrics.jsonl", [line(step) for step in range(1, updates + 1)])
    shares = [(step, 1 - math.exp(-step / 25)) for step in range(0, updates + 1, 5)]
    write_lines(
        folder / "evaluations.jsonl",
        [
            {"step": step, "tasks": {task: score(round(share * (50 - 3 * i))) for i, task in enumerate(TASKS)}}
            for step, share in shares
        ],
    )
    (folder / "config.yaml").write_text(f"runner:\n  max_steps: {total}\n")
    facts = {"simulator": "tabletop", "policy": "mlp", "tasks": TASKS, "started": "2026-11-16 09:30:00"}
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


def finish(folder: Path, because: str = "all updates were made", status: str | None = "completed") -> None:
    """Write that a run has ended; no status: as earlier versions did."""
    facts = json.loads((folder / "run.json").read_text())
    told = {"finished_because": because} if status is None else {"finished_because": because, "status": status}
    (folder / "run.json").write_text(json.dumps({**facts, **told}))


def rows(count: int, **changes: Any) -> list[dict[str, Any]]:
    return [
        {
            "row": i,
            "worker": i // 4,
            "pid": 4000 + i // 4,
            "task": TASKS[i % len(TASKS)],
            "state": "stepping",
            "seed": i,
            "episode_steps": 3 * i,
            "episodes": 2,
            "restarts": 0,
            "failure": None,
            "frame": i,
            **changes,
        }
        for i in range(count)
    ]


def write_live(
    folder: Path, told: Sequence[Mapping[str, Any]], name: str = "rank-0", closed: bool = False, blue: int = 140
) -> None:
    """Write a live file and its contact sheet: a row's tile has a red of ten times its number."""
    live = folder / "live"
    live.mkdir(exist_ok=True)
    columns = min(8, len(told))
    sheet = Image.new("RGB", (96 * columns, 96 * -(-len(told) // columns)))
    for i in range(len(told)):
        left, top = 96 * (i % columns), 96 * (i // columns)
        sheet.paste((min(250, 10 * i), 90, blue), (left, top, left + 96, top + 96))
    sheet.save(live / f".{name}.jpg", "JPEG")
    (live / f".{name}.jpg").replace(live / f"{name}.jpg")
    document = {
        "version": 1,
        "name": name,
        "pid": 1,
        "host": "here",
        "simulator": "tabletop",
        "written": time.time(),
        "interval": 60.0,  # else a browser that is slow to start would find it silent
        "closed": closed,
        "rows": list(told),
        "sheet": {"file": f"{name}.jpg", "columns": columns, "width": 96, "height": 96, "written": time.time()},
    }
    beside = live / f".{name}"
    beside.write_text(json.dumps(document))
    beside.replace(live / f"{name}.json")
