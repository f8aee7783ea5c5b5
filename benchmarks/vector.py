"""Ours against other vector environments: same workloads, same machine, interleaved, medians.

    python benchmarks/vector.py                          # everything; writes docs/benchmarks/vector.{json,md}
    python benchmarks/vector.py --workloads null_state --repetitions 3 --out .

Every measurement is a process of its own, so that no peer sees what another left; repetitions go round the peers in
turn, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs" / "benchmarks"
MARKERS = ("<!-- benchmarks/vector.py: begin -->", "<!-- benchmarks/vector.py: end -->")
BASE = "gymnasium AsyncVectorEnv, copy=False"


@dataclass(frozen=True)
class VectorBenchmark:
    """What to measure."""

    workloads: tuple[str, ...] = ("null_state", "null_images", "busy", "mujoco")
    """Which environments; see workloads.py."""
    peers: tuple[str, ...] = ()
    """Only peers whose name contains one of these; default: all."""
    num_envs: int = 8
    """Environments side by side."""
    chunks: tuple[int, ...] = (1, 16)
    """Actions a call; peers other than ours get them through a wrapper."""
    seconds: float = 2.0
    """How long each measurement takes, after a warm-up."""
    repetitions: int = 5
    """Rounds over all peers; medians are reported."""
    out: Path = DOCS
    """Where vector.json and vector.md go; the default also renews the README's table."""


def measure(peer_name: str, workload: str, num_envs: int, chunk: int, seconds: float) -> dict[str, float]:
    """Measure one peer in this process."""
    import psutil
    from peers import PEERS

    began = time.perf_counter()
    peer = PEERS[peer_name](workload, num_envs, chunk)
    peer.start()
    start_seconds = time.perf_counter() - began
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]

    def cpu() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    warm = time.perf_counter()
    while time.perf_counter() - warm < min(0.5, seconds / 2):
        peer.step()
    latencies: list[float] = []
    spent = cpu()
    began = now = time.perf_counter()
    while now - began < seconds:
        peer.step()
        then, now = now, time.perf_counter()
        latencies.append(now - then)
    spent = cpu() - spent
    workers = processes[1:] or processes
    memory = float(np.mean([getattr(p.memory_full_info(), "pss", 0) or p.memory_info().rss for p in workers]))
    peer.close()
    steps = len(latencies) * num_envs * chunk
    return {
        "env_steps_per_second": steps / (now - began),
        "cpu_us_per_env_step": spent / steps * 1e6,
        "p50_ms": float(np.percentile(latencies, 50)) * 1e3,
        "p99_ms": float(np.percentile(latencies, 99)) * 1e3,
        "worker_mb": memory / 1e6,
        "start_seconds": start_seconds,
    }


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


def measure_in_a_process(peer: str, workload: str, config: VectorBenchmark, chunk: int) -> dict[str, float]:
    """Measure one peer in a process of its own."""
    arguments = [peer, workload, str(config.num_envs), str(chunk), str(config.seconds)]
    from peers import PEERS

    command = [interpreter(PEERS[peer].requirements), str(HERE / "vector.py"), "--measure", *arguments]
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{peer} on {workload}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def run(config: VectorBenchmark) -> dict[str, Any]:
    """Measure everything; return medians by workload, chunk and peer."""
    from peers import PEERS

    names = [name for name in PEERS if not config.peers or any(part in name for part in config.peers)]
    results: dict[str, Any] = {}
    for workload in config.workloads:
        for chunk in config.chunks:
            samples: dict[str, list[dict[str, float]]] = {name: [] for name in names}
            for repetition in range(config.repetitions):
                for name in list(samples):
                    try:
                        sample = measure_in_a_process(name, workload, config, chunk)
                    except RuntimeError as error:
                        print(f"left out: {error}", file=sys.stderr, flush=True)
                        del samples[name]
                        continue
                    samples[name].append(sample)
                    print(
                        f"{workload} K={chunk} {repetition + 1}/{config.repetitions} {name}: "
                        f"{sample['env_steps_per_second']:,.0f} env-steps/s",
                        file=sys.stderr,
                        flush=True,
                    )
            results[f"{workload} K={chunk}"] = {
                name: {key: float(np.median([s[key] for s in found])) for key in found[0]}
                for name, found in samples.items()
            }
    return {
        "config": {**asdict(config), "out": None},
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()},
        "results": results,
    }


def command_line(config: dict[str, Any]) -> str:
    """Return the command that measures the same again."""
    words = ["python benchmarks/vector.py"]
    for name in ("workloads", "peers", "num_envs", "chunks", "seconds", "repetitions"):
        value = config[name]
        if value:
            words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, (list, tuple)) else [value])]
    return " ".join(words)


def markdown(report: dict[str, Any]) -> str:
    """Return the tables for the documentation."""
    config, machine = report["config"], report["machine"]
    lines = [
        "# Vector environments compared",
        "",
        f"{config['num_envs']} environments on {machine['cpus']} cores, Python {machine['python']}; medians of "
        f"{config['repetitions']} interleaved rounds of {config['seconds']:g} s, each in a process of its own. What "
        "the workloads do is in `benchmarks/README.md`. Absolute figures move from machine to machine: compare the "
        "ratios. For chunks, peers get a wrapper whose step takes K actions. Made with:",
        "",
        f"    {command_line(config)}",
    ]
    for title, peers in report["results"].items():
        base = peers.get(BASE, next(iter(peers.values())))["env_steps_per_second"]
        lines += ["", f"## {title.replace(' K=', ', K = ')}", ""]
        lines += ["| | env-steps/s | ratio | CPU µs per env-step | call p50 / p99 ms | MB a worker | start s |"]
        lines += ["|---|---:|---:|---:|---:|---:|---:|"]
        for name, m in sorted(peers.items(), key=lambda item: -item[1]["env_steps_per_second"]):
            speed = m["env_steps_per_second"]
            label = f"**{name}**" if name.startswith("manyarms") else name
            lines.append(
                f"| {label} | {speed:,.0f} | {speed / base:.2f} | {m['cpu_us_per_env_step']:.1f} | "
                f"{m['p50_ms']:.3f} / {m['p99_ms']:.3f} | {m['worker_mb']:.0f} | {m['start_seconds']:.2f} |"
            )
    return "\n".join(lines) + "\n"


def readme_table(report: dict[str, Any]) -> str:
    """Return the few lines of the README: ours as ratios to Gymnasium's."""
    ours = {"manyarms": "one row a worker", "manyarms, 4 rows a worker": "four rows a worker"}
    lines = ["| | " + " | ".join(ours.values()) + " |", "|---|" + "---:|" * len(ours)]
    for title, peers in report["results"].items():
        base = peers[BASE]["env_steps_per_second"]
        ratios = [f"{peers[name]['env_steps_per_second'] / base:.1f} ×" for name in ours]
        lines.append(f"| `{title.replace(' K=', '`, K = ')} | " + " | ".join(ratios) + " |")
    return "\n".join(lines) + "\n"


def update_readme(path: Path, report: dict[str, Any]) -> None:
    """Put the table between the README's markers."""
    before, _, rest = path.read_text().partition(MARKERS[0])
    after = rest.partition(MARKERS[1])[2]
    path.write_text(f"{before}{MARKERS[0]}\n{readme_table(report)}{MARKERS[1]}{after}")


def main() -> None:
    """Measure and write the report, or be one measurement."""
    if sys.argv[1:2] == ["--measure"]:
        name, workload, num_envs, chunk, seconds = sys.argv[2:]
        print(json.dumps(measure(name, workload, int(num_envs), int(chunk), float(seconds))))
        return
    import tyro  # only where a person types

    config = tyro.cli(VectorBenchmark)
    report = run(config)
    config.out.mkdir(parents=True, exist_ok=True)
    (config.out / "vector.json").write_text(json.dumps(report, indent=2) + "\n")
    (config.out / "vector.md").write_text(markdown(report))
    if config.out == DOCS:
        update_readme(HERE.parent / "README.md", report)
    print(markdown(report))


if __name__ == "__main__":
    main()
