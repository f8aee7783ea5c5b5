"""Ours against other vector environments: same workloads, same machine, interleaved, medians.

    python benchmarks/vector.py                     # everything; writes docs/benchmarks/vector.{json,md,png}
    python benchmarks/vector.py --cases null_state:8 --peers gymnasium manyarms --rounds 3 --out .

Every peer is a process of its own. All are started, then measured in turn, round after round, so that a machine that
slows down slows all of them; the others sleep meanwhile. Peers that render are started anew for every round: a renderer
that has slept for a minute takes twice the time for its next frames.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import report
from peers import PEERS

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs" / "benchmarks"
_PLOTTING = ("matplotlib==3.11.2",)

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

#: One that starts more slowly than this is started once only.
_SLOW_START_SECONDS = 10.0


@dataclass(frozen=True)
class VectorBenchmark:
    """What to measure."""

    cases: tuple[str, ...] = ("null_state:8", "null_images:8", "busy:8", "busy:32", "mujoco:2")
    """``<workload>:<environments>``; see workloads.py."""
    peers: tuple[str, ...] = ()
    """Only peers whose name contains one of these; default: all."""
    chunks: tuple[int, ...] = (1, 16)
    """Actions a call; peers other than ours get them through a wrapper."""
    seconds: float = 1.5
    """How long each measurement takes, after a warm-up."""
    rounds: int = 5
    """Medians over these are reported."""
    startup: int = 16
    """How many workers to start for the table of start-up times; 0: leave it out."""
    merge: bool = False
    """Keep what vector.json holds on other cases and chunks, and the start-up times unless they are measured anew."""
    plot: bool = True
    """Draw the figure, with a matplotlib that is installed for it."""
    out: Path = DOCS
    """Where vector.json, vector.md and vector.png go; the default also renews the READMEs' table."""


class Broken(Exception):
    """A peer does not run here."""


class Subject:
    """A peer in its process."""

    def __init__(self, name: str, case: str, chunk: int, seconds: float, start_method: str) -> None:
        workload, _, num_envs = case.partition(":")
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by close())
        self._process: Any = subprocess.Popen(
            [
                *(interpreter(PEERS[name].requirements), str(HERE / "measure.py"), name, workload),
                *(num_envs, str(chunk), str(seconds), start_method),
            ],
            env={"MUJOCO_GL": "osmesa", **os.environ, **_ONE_THREAD, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.start_seconds: float = self._hear()["start_seconds"]

    def measure(self) -> dict[str, float]:
        """Have it step for a while."""
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return {**self._hear(), "start_seconds": self.start_seconds}

    def _hear(self) -> dict[str, float]:
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self._errors.seek(0)
        raise Broken(self._errors.read().strip()[-2000:])

    def close(self) -> None:
        """Let it end, or end it."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def interpreter(requirements: tuple[str, ...]) -> str:
    """Return a Python that has these packages: this one, or one of an environment made for them."""
    if not requirements:
        return sys.executable
    name = hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:12]
    home = HERE.parent / ".venvs" / f"peer-{name}"
    if not (home / "ready").exists():
        print(f"installing {' '.join(requirements)}", file=sys.stderr, flush=True)
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(home / "bin/python"), "-m", "pip", "install", "--quiet", *requirements], check=True)
        (home / "ready").touch()
    return str(home / "bin/python")


def chosen(config: VectorBenchmark, workload: str) -> list[str]:
    """Return the peers to measure on a workload."""
    wanted = [name for name in PEERS if not config.peers or any(part in name for part in config.peers)]
    return [name for name in wanted if workload in PEERS[name].workloads]


def compare(config: VectorBenchmark, case: str, chunk: int) -> dict[str, dict[str, Any]]:
    """Measure all peers on one case; return medians by peer."""
    names = chosen(config, case.partition(":")[0])
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    begin = partial(started, case=case, chunk=chunk, seconds=config.seconds)

    def measure(name: str, subject: Subject) -> None:
        samples[name].append(subject.measure())
        count, rate = len(samples[name]), samples[name][-1]["env_steps_per_second"]
        note(f"{case} K={chunk} {count}/{config.rounds} {name}: {rate:,.0f} env-steps/s")

    if renders(case):
        for _ in range(config.rounds):
            for name in names:
                with begin([name]) as subjects:
                    for item in subjects.items():
                        measure(*item)
    else:
        loud = [name for name in names if not PEERS[name].quiet]
        for group in [[name for name in names if name not in loud], *([name] for name in loud)]:
            with begin(group) as subjects:
                for _ in range(config.rounds):
                    for item in subjects.items():
                        measure(*item)
    return {name: summary(found) for name, found in samples.items() if found}


@contextlib.contextmanager
def started(names: list[str], case: str, chunk: int, seconds: float) -> Iterator[dict[str, Subject]]:
    """Start peers one after the other; those that do not run here are left out, and named."""
    # A forked process that has rendered before may hang; otherwise peers start as they do by default.
    method = "spawn" if renders(case) else "fork"
    with contextlib.ExitStack() as stack:
        subjects: dict[str, Subject] = {}
        for name in names:
            try:
                subjects[name] = Subject(name, case, chunk, seconds, method)
            except Broken as error:
                note(f"left out: {name} on {case}: {error}")
                continue
            stack.callback(subjects[name].close)
        yield subjects


def renders(case: str) -> bool:
    return case.startswith("mujoco")


def summary(samples: list[dict[str, float]]) -> dict[str, Any]:
    medians = {key: float(np.median([sample[key] for sample in samples])) for key in samples[0]}
    return {**medians, "rounds": [round(sample["env_steps_per_second"], 1) for sample in samples]}


def compare_startup(config: VectorBenchmark) -> dict[str, list[float]]:
    """Time the start of many workers in clean processes; gymnasium's default, a fork of the caller, for comparison."""
    case = f"null_state:{config.startup}"
    methods = {name: "spawn" for name in chosen(config, "null_state") if "SyncVectorEnv" not in name}
    seconds: dict[str, list[float]] = {}
    for _ in range(config.rounds):
        for name, method in methods.items():
            if seconds.get(name, [0.0])[0] > _SLOW_START_SECONDS:
                continue
            try:
                subject = Subject(name, case, 1, config.seconds, method)
            except Broken as error:
                note(f"left out: start of {name}: {error}")
                continue
            subject.close()
            seconds.setdefault(name, []).append(subject.start_seconds)
            note(f"start of {config.startup}: {name}: {subject.start_seconds:.2f} s")
    return seconds


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure and write the report."""
    import tyro

    config = tyro.cli(VectorBenchmark)
    for requirements in {
        PEERS[name].requirements for case in config.cases for name in chosen(config, case.split(":")[0])
    }:
        interpreter(requirements)  # installing is not measuring
    source = config.out / "vector.json"
    found: dict[str, Any] = {
        "config": {**asdict(config), "out": None, "merge": None},
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()},
        "results": {},
        "startup": {},
    }
    if config.merge:
        found = json.loads(source.read_text())
    for case in config.cases:
        for chunk in config.chunks:
            found["results"].setdefault(case, {})[str(chunk)] = compare(config, case, chunk)
    if config.startup:
        found["startup"] = compare_startup(config)
    config.out.mkdir(parents=True, exist_ok=True)
    source.write_text(json.dumps(found, indent=2) + "\n")
    (config.out / "vector.md").write_text(report.markdown(found))
    if config.plot:
        command = [interpreter(_PLOTTING), str(HERE / "plot.py"), str(source), str(config.out / "vector.png")]
        subprocess.run(command, check=True)
    if config.out == DOCS:
        subprocess.run([sys.executable, str(HERE / "readme.py")], check=True)
    print(report.markdown(found))


if __name__ == "__main__":
    main()
