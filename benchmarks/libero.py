"""LIBERO with two 128x128 cameras and chunks of 8 in four processes: ours, and LIBERO's own vector environment.

    python benchmarks/libero.py                      # writes docs/benchmarks/libero.md and libero.json
    python benchmarks/libero.py --no-measure         # writes the page anew from libero.json

The same actions in the same interpreter, measured in turn, round after round:
LIBERO's SubprocVectorEnv as RIPT-VLA uses it (a call an action, all images with each), and ours three times: rendering
every step just as LIBERO does, rendering once a chunk, and that without shadows, reflections and smooth edges.
LIBERO_PYTHON names the interpreter that has LIBERO; default: the one that the tests make, on stand-ins for its assets.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import manyarms

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs" / "benchmarks"

#: What is measured: label, and how ours is made; None: LIBERO's own.
WAYS: dict[str, dict[str, Any] | None] = {
    "LIBERO's SubprocVectorEnv": None,
    "manyarms, every step rendered": {"faithful": True, "render_every": 1},
    "manyarms, once a chunk": {"faithful": True},
    "manyarms, once a chunk, fast": {"faithful": False},
}

#: What each is compared with the one before it, and what the difference is.
GAINS = ("hand-over", "chunk rendering", "fast rendering")


@dataclass(frozen=True)
class LiberoBenchmark:
    """What to measure."""

    task: str = "libero_object/0"
    num_envs: int = 4
    chunk: int = 8
    image_size: int = 128
    chunks: int = 4
    """Played in each measurement, after one to warm up."""
    rounds: int = 5
    out: Path = DOCS
    measure: bool = True
    """Otherwise the page is written from what was measured before."""


class Ours:
    """Our vector environment."""

    def __init__(self, config: LiberoBenchmark, python: str, options: dict[str, Any]) -> None:
        settings = {"image_size": config.image_size, "max_chunk": config.chunk, "copy": False, "start_timeout": 600.0}
        self._envs = manyarms.make_vec(
            f"libero/{config.task}", config.num_envs, python=python, max_episode_steps=10**9, **{**settings, **options}
        )
        self._envs.reset(seed=0, options={"init_states": [0] * config.num_envs})
        self._rng = np.random.default_rng(0)
        self._shape = (config.num_envs, config.chunk, 7)

    def play(self, chunks: int) -> float:
        """Play chunks; return how long it took."""
        began = time.perf_counter()
        for _ in range(chunks):
            self._envs.step_chunk(self._rng.uniform(-0.3, 0.3, self._shape).astype(np.float32))
        return time.perf_counter() - began

    def close(self) -> None:
        self._envs.close()


class Theirs:
    """LIBERO's, in its own interpreter."""

    def __init__(self, config: LiberoBenchmark, python: str) -> None:
        words = [python, str(HERE / "libero_peer.py"), _bddl(python, config.task)]
        words += [str(n) for n in (config.num_envs, config.image_size, config.chunk)]
        env = {
            "MUJOCO_GL": "osmesa",
            "LP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            **os.environ,
        }
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=env)
        while self._line().strip() != "up":
            pass

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                "LIBERO's vector environment has ended: run benchmarks/libero_peer.py by itself to see why"
            )
        return line

    def play(self, chunks: int) -> float:
        """Play chunks; return how long it took."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{chunks}\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def _bddl(python: str, task: str) -> str:
    """Return the file that says what a task is."""
    suite, _, index = task.partition("/")
    with manyarms.make_vec(f"libero/{task}", 1, python=python, cameras=[]) as envs:
        name = envs.row_tasks[0][0]
    code = (
        "import os, libero; print(os.path.dirname(libero.__path__[0] if libero.__file__ is None else libero.__file__))"
    )
    root = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    found = sorted(Path(root).glob(f"**/bddl_files/{suite}/{name}.bddl"))
    if not found:
        raise RuntimeError(f"LIBERO brings no BDDL file for {name} (task {index} of {suite}) under {root}")
    return str(found[0])


def measure(config: LiberoBenchmark, python: str) -> dict[str, Any]:
    """Return steps a second of each way: the median over rounds, and of ratios to the way before it."""
    rates: dict[str, list[float]] = {label: [] for label in WAYS}
    with ExitStack() as stack:
        players: dict[str, Ours | Theirs] = {}
        for label, options in WAYS.items():
            print(f"starting {label}", file=sys.stderr, flush=True)
            players[label] = Theirs(config, python) if options is None else Ours(config, python, options)
            stack.callback(players[label].close)
        for round_ in range(config.rounds):
            for label, player in players.items():
                player.play(1)
                steps = config.chunks * config.chunk * config.num_envs
                rates[label].append(steps / player.play(config.chunks))
            print(
                f"round {round_ + 1}: " + ", ".join(f"{r[-1]:.1f}" for r in rates.values()), file=sys.stderr, flush=True
            )
    labels = list(WAYS)
    pairs = zip(GAINS, labels, labels[1:], strict=False)
    gains = {gain: _median_ratio(rates[after], rates[before]) for gain, before, after in pairs}
    return {
        "config": {name: value for name, value in asdict(config).items() if name not in ("out", "measure")},
        "steps_per_second": {label: statistics.median(values) for label, values in rates.items()},
        "rounds": rates,
        "gains": gains,
        "total": _median_ratio(rates[labels[-1]], rates[labels[0]]),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
    }


def _median_ratio(over: list[float], under: list[float]) -> float:
    return statistics.median(ratios(over, under))


def ratios(over: list[float], under: list[float]) -> list[float]:
    """Return how many times as fast the one was as the other, round by round."""
    return [a / b for a, b in zip(over, under, strict=True)]


def _range(factors: list[float]) -> str:
    digits = 0 if max(factors) >= 100 else 1
    return f"{min(factors):.{digits}f} to {max(factors):.{digits}f}"


def markdown(found: dict[str, Any]) -> str:
    """Return the page."""
    config = found["config"]
    lines = [
        "# LIBERO",
        "",
        f"`python benchmarks/libero.py` on {found['machine']['cpus']} CPUs, software rendering: `{config['task']}` on "
        "primitive stand-ins for LIBERO's assets",
        f"(its own code, controller and initial states), {config['num_envs']} processes, two {config['image_size']}x"
        f"{config['image_size']} cameras, chunks of {config['chunk']}.",
        f"Every way in turn, {config['rounds']} rounds. Speeds are medians over the rounds; factors are medians of the "
        "ratios within a round,",
        "with the least and the greatest: the machine was shared, and a round is not like another.",
        "",
        "| | env-steps/s | times as fast | over the rounds |",
        "|---|---:|---:|---:|",
    ]
    rounds = found["rounds"]
    labels = list(rounds)
    for label, rate in found["steps_per_second"].items():
        factors = ratios(rounds[label], rounds[labels[0]])
        between = _range(factors) if label != labels[0] else ""
        lines.append(f"| {label} | {rate:.1f} | {statistics.median(factors):.1f} × | {between} |")
    parts = [
        f"{name} {gain:.1f} × ({_range(ratios(rounds[after], rounds[before]))})"
        for (name, gain), before, after in zip(found["gains"].items(), labels, labels[1:], strict=False)
    ]
    lines += ["", "What it is made of, each beside the way before it:", ",\n".join(parts) + ".", ""]
    lines += [
        "Hand-over is what is left when every step renders as LIBERO does: observations in shared memory instead of",
        "pickles, one round trip a chunk, and a control loop that computes only what is observed. With LIBERO's own",
        "assets scenes are heavier and rendering is a larger part of a step; that was not measured here.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    sys.path.pop(0)  # workers look where we do, and would take this file for LIBERO
    config = tyro.cli(LiberoBenchmark)
    if config.measure:
        found = measure(config, os.environ.get("LIBERO_PYTHON") or _test_interpreter())
        config.out.mkdir(parents=True, exist_ok=True)
        (config.out / "libero.json").write_text(json.dumps(found, indent=2) + "\n")
    found = json.loads((config.out / "libero.json").read_text())
    (config.out / "libero.md").write_text(markdown(found))
    print(markdown(found))


def _test_interpreter() -> str:
    made = HERE.parent / ".venvs" / "libero" / "bin" / "python"
    if not made.exists():
        raise SystemExit("there is no LIBERO: make interpreters, or name its Python in LIBERO_PYTHON")
    return str(made)


if __name__ == "__main__":
    main()
