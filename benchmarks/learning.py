"""What the recipes reach, with three seeds each: writes docs/results/learning.md, .json and a plot for each recipe.

    python benchmarks/learning.py                              # all of them, an hour and a half on two cores
    python benchmarks/learning.py --recipes reach_target_ppo   # one; the others' results are kept
    python benchmarks/learning.py --collect runs/results       # only the page, of runs that are there already

Every run is `manyarms train RECIPE actor.seed=S env.train.seed=S*100000`; evaluation is on seeds from 1,000,000 on,
which no run learns from.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from vector import interpreter

from manyarms.cli import eval as evaluation
from manyarms.cli.eval import EvalConfig
from manyarms.learning.checkpoint import steps_of
from manyarms.learning.settings import load
from manyarms.reporting.files import read_lines
from manyarms.reporting.results import wilson
from manyarms.reporting.runs import read_metrics

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "docs" / "results"
_PLOTTING = ("matplotlib==3.11.2",)
#: Settings were chosen by looking at evaluations from seed 1,000,000 on; from here on nothing was looked at.
_FRESH = 2_000_000

RECIPES = {
    "reach_target_ppo": "PPO from scratch on states: reach a ball, radius 5 cm, horizon 100",
    "push_button_ppo": "PPO from scratch on states, with contact: press a button",
    "pixel_grpo": "from pixels: 25 demonstrations, then GRPO, success the only reward",
    "pixel_rloo": "the same with RLOO",
    "four_tasks_grpo": "one policy that is told what to do, four tasks: 8 demonstrations of each, then GRPO",
}


@dataclass(frozen=True)
class LearningBenchmark:
    """What to run."""

    recipes: tuple[str, ...] = tuple(RECIPES)
    seeds: tuple[int, ...] = (0, 1, 2)
    collect: Path | None = None
    """A folder with runs named RECIPE-SEED, to be read instead of made."""
    fresh: int = 200
    """Episodes on fresh seeds, for the first and the last checkpoint; 0: none."""
    machine: str = ""
    """Where the runs were made, for the page; default: this machine's CPUs."""
    out: Path = RESULTS
    runs: Path = Path("runs") / "results"


def train(config: LearningBenchmark, recipe: str, seed: int) -> None:
    """Run a recipe, or go on with it."""
    words = [f"actor.seed={seed}", f"env.train.seed={100_000 * seed}", f"runner.logger.log_path={config.runs}"]
    words += [f"runner.logger.experiment_name={recipe}-{seed}", "--resume"]
    subprocess.run([sys.executable, "-m", "manyarms", "train", recipe, *words], check=True)


def collected(folder: Path) -> dict[str, Any]:
    """Return what the page needs of a run."""
    lines = read_metrics(folder)
    steps = {line["step"]: int(line.get("throughput/env_steps_total") or 0) for line in lines}
    seconds = {line["step"]: float(line["seconds"]) for line in lines}
    return {
        "evaluations": [
            {"step": e["step"], "env_steps": steps.get(e["step"], 0), "seconds": seconds.get(e["step"]), **e}
            for e in read_lines(folder / "evaluations.jsonl")
        ],
        "training": [[steps[line["step"]], line["env/success_once"]] for line in lines if line["step"]],
        "seconds": round(seconds[max(seconds)], 1),
        "env_steps": max(steps.values()),
    }


def fresh(folder: Path, episodes: int) -> dict[str, list[int]]:
    """Return successes and episodes of the first and the last checkpoint, on seeds that nobody has looked at before."""
    env = load(str(folder / "config.yaml")).config.eval
    found = {}
    checkpoints = steps_of(folder / "checkpoints")
    for when, checkpoint in (("first", checkpoints[0]), ("last", checkpoints[-1])):
        with tempfile.TemporaryDirectory() as out:
            results = evaluation.run(
                EvalConfig(
                    env.simulators[0].simulator,
                    tasks=env.tasks,
                    policy=str(checkpoint),
                    episodes=max(1, episodes // max(1, len(env.tasks))),
                    seed=_FRESH,
                    num_envs=env.total_num_envs,
                    rows_per_worker=env.rows_per_worker,
                    out=Path(out) / "eval",
                )
            ).results
        found[when] = [sum(result.success for result in results), len(results)]
    return found


def score(evaluation: Mapping[str, Any]) -> tuple[int, int]:
    """Return successes and episodes of all tasks."""
    tasks = evaluation["tasks"].values()
    return sum(task["successes"] for task in tasks), sum(task["episodes"] for task in tasks)


def percent(successes: int, episodes: int) -> str:
    low, high = wilson(successes, episodes)
    return f"{100 * successes / episodes:.1f} % ({100 * low:.0f}–{100 * high:.0f})"


def section(recipe: str, runs: Mapping[str, Any], machine: str) -> str:
    """Return a recipe's part of the page."""
    rows = ["| seed | at the start | at the end | change | on fresh seeds | env-steps | seconds, all in |"]
    rows.append("|---:|---:|---:|---:|---:|---:|---:|")
    for seed, run in sorted(runs.items()):
        first, last = score(run["evaluations"][0]), score(run["evaluations"][-1])
        gained = 100 * (last[0] / last[1] - first[0] / first[1])
        cells = [seed, percent(*first), percent(*last), f"{gained:+.1f}", on_fresh(run), f"{run['env_steps']:,}"]
        rows.append(f"| {' | '.join(cells)} | {run['seconds']:.0f} |")
    updates = load(recipe).config.runner.updates
    text = [f"## `{recipe}`", f"{RECIPES[recipe][0].upper()}{RECIPES[recipe][1:]}. {updates} updates. {machine}"]
    text += ["\n".join(rows), *by_task(runs), f"![Success over env-steps]({recipe}.png)"]
    return "\n\n".join(text)


def on_fresh(run: Mapping[str, Any]) -> str:
    if "fresh" not in run:
        return "–"
    first, last = ((100 * won / played) for won, played in (run["fresh"]["first"], run["fresh"]["last"]))
    return f"{first:.1f} → {last:.1f} %"


def by_task(runs: Mapping[str, Any]) -> list[str]:
    """Return a table task by task, where there are several."""
    tasks = list(next(iter(runs.values()))["evaluations"][0]["tasks"])
    if len(tasks) < 2:
        return []
    rows = ["| task | " + " | ".join(f"seed {seed}" for seed in sorted(runs)) + " |", "|---|" + "---|" * len(runs)]
    for task in tasks:
        cells = []
        for _, run in sorted(runs.items()):
            ends = [run["evaluations"][i]["tasks"][task] for i in (0, -1)]
            cells.append(" → ".join(percent(end["successes"], end["episodes"]) for end in ends))
        rows.append(f"| {task} | {' | '.join(cells)} |")
    return ["\n".join(rows)]


def page(found: Mapping[str, Any]) -> str:
    """Return docs/results/learning.md."""
    parts = [
        "# What the recipes reach",
        "Success on held-out seeds (200 episodes, 100 a task where there are several), the policy doing what it finds "
        "best; in brackets the 95 % interval. Every run is `manyarms train RECIPE actor.seed=S env.train.seed=…` as it "
        "comes; `python benchmarks/learning.py` makes them all and this page. On a CPU a run repeats bit for bit on "
        "the same machine. Env-steps include those of groups that were played in vain. Curves: thin, episodes of "
        "training; dots, evaluations with their interval.",
        "Settings were found by looking at single runs and their evaluations, so the held-out seeds are not untouched; "
        "*on fresh seeds* are the first and the last checkpoint on 200 episodes that nobody had looked at before.",
    ]
    parts += [section(recipe, found[recipe]["runs"], found[recipe]["machine"]) for recipe in RECIPES if recipe in found]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run what is missing, then write the page."""
    config = tyro.cli(LearningBenchmark)
    if config.collect is None:
        for recipe in config.recipes:
            for seed in config.seeds:
                train(config, recipe, seed)
    source = config.out / "learning.json"
    found: dict[str, Any] = json.loads(source.read_text()) if source.exists() else {}
    folder = config.collect or config.runs
    for recipe in config.recipes:
        runs = {str(s): folder / f"{recipe}-{s}" for s in config.seeds if (folder / f"{recipe}-{s}").is_dir()}
        if runs:
            machine = config.machine or f"{os.cpu_count()} CPUs."
            found[recipe] = {"machine": machine, "runs": {seed: collected(path) for seed, path in runs.items()}}
            for seed, path in runs.items():
                if config.fresh and steps_of(path / "checkpoints"):
                    found[recipe]["runs"][seed]["fresh"] = fresh(path, config.fresh)
    config.out.mkdir(parents=True, exist_ok=True)
    source.write_text(json.dumps(found) + "\n")
    (config.out / "learning.md").write_text(page(found))
    subprocess.run([interpreter(_PLOTTING), str(HERE / "learning_plot.py"), str(source), str(config.out)], check=True)
    print(page(found))


if __name__ == "__main__":
    main()
