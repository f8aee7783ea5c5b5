"""From measurements to the tables of the documentation; ``report.py vector.json`` writes them anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

#: Steps one environment after the other in the caller's process: fast where a step is free, and no peer of ours.
IN_PROCESS = "SyncVectorEnv"


def is_ours(name: str) -> bool:
    return name.startswith("manyarms")


def best(peers: dict[str, Any], ours: bool) -> tuple[str, float]:
    """Return the fastest of ours, or of those that run environments in processes like ours."""
    rates = {
        name: m["env_steps_per_second"] for name, m in peers.items() if is_ours(name) is ours and IN_PROCESS not in name
    }
    name = max(rates, key=lambda key: rates[key])
    return name, rates[name]


def title(case: str, chunk: str) -> str:
    workload, _, num_envs = case.partition(":")
    return f"`{workload}`, {num_envs} environments, K = {chunk}"


def command_line(config: dict[str, Any]) -> str:
    """Return the command that measures the same again."""
    words = ["python benchmarks/vector.py"]
    for name in ("cases", "peers", "chunks", "seconds", "rounds", "startup"):
        value = config[name]
        if value:
            words += [f"--{name}", *map(str, value if isinstance(value, (list, tuple)) else [value])]
    return " ".join(words)


def markdown(found: dict[str, Any]) -> str:
    """Return the page of the documentation."""
    config, machine = found["config"], found["machine"]
    rounds = {
        len(m["rounds"]) for chunks in found["results"].values() for peers in chunks.values() for m in peers.values()
    }
    lines = [
        "# Vector environments compared",
        "",
        f"{machine['cpus']} cores, Python {machine['python']}; medians of {_range(rounds)} interleaved rounds of "
        f"{config['seconds']:g} s, every peer in a process of its own. What the workloads do, how peers are used and "
        "what the variants of ours are is in `benchmarks/README.md`. Absolute figures move from machine to machine: "
        "compare the ratios, which are to the best peer that runs environments in processes. Made with:",
        "",
        f"    {command_line(config)}",
        "",
        "![Throughput by workload](vector.png)",
        "",
        "## In short",
        "",
        *summary(found),
        "",
        "*As is* runs the same Gymnasium environment as the others, one a worker. Several rows a worker pay where a "
        "step costs next to nothing. *A simulator* is the workload written as a `Simulator`, which writes into the "
        "shared memory itself and renders once a chunk: that is where real simulators gain.",
    ]
    for case, chunks in found["results"].items():
        for chunk, peers in chunks.items():
            lines += ["", f"## {title(case, chunk)}", ""]
            lines += table(peers, None if chunk == "1" else chunks.get("1"))
    if found["startup"]:
        lines += [
            "",
            f"## Start-up of {config['startup']} workers in clean processes",
            "",
            "| | seconds |",
            "|---|---:|",
        ]
        for name, seconds in sorted(found["startup"].items(), key=lambda item: float(np.median(item[1]))):
            lines.append(f"| {label(name)} | {np.median(seconds):.2f} |")
    return "\n".join(lines) + "\n"


def _range(numbers: set[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def table(peers: dict[str, Any], as_shipped: dict[str, Any] | None) -> list[str]:
    """Return one table; where a call is a chunk, also against peers as they are, with a call an action."""
    base = best(peers, ours=False)[1]
    shipped = best(as_shipped, ours=False)[1] if as_shipped else 0.0
    head = ["env-steps/s", "ratio", "CPU µs per env-step", "call p50 / p99 ms", "MB a worker", "start s"]
    if as_shipped:
        head = ["env-steps/s", "ratio, others with a wrapper", "ratio, others as shipped", *head[2:]]
    lines = ["| | " + " | ".join(head) + " |", "|---|" + "---:|" * len(head)]
    for name, m in sorted(peers.items(), key=lambda item: -item[1]["env_steps_per_second"]):
        speed = m["env_steps_per_second"]
        cells = [f"{speed:,.0f}", f"{speed / base:.2f}"]
        if as_shipped:
            cells.append(f"{(speed if is_ours(name) else as_shipped[name]['env_steps_per_second']) / shipped:.2f}")
        cells += [f"{m['cpu_us_per_env_step']:.1f}", f"{m['p50_ms']:.3f} / {m['p99_ms']:.3f}"]
        cells += [f"{m['worker_mb']:.0f}", f"{m['start_seconds']:.2f}"]
        lines.append(f"| {label(name)} | " + " | ".join(cells) + " |")
    return lines


def label(name: str) -> str:
    return f"**{name}**" if is_ours(name) else name


def summary(found: dict[str, Any]) -> list[str]:
    """Return ours as ratios to the best of all others."""
    lines = ["| | best of the others | ours, as is | ours, at its best |", "|---|---|---:|---:|"]
    for case, chunks in found["results"].items():
        rows = [(title(case, chunk), peers, peers) for chunk, peers in chunks.items() if chunk == "1"]
        for chunk, peers in chunks.items():
            if chunk != "1" and "1" in chunks:
                rows.append((title(case, chunk) + ", others as shipped", chunks["1"], peers))
                rows.append((title(case, chunk) + ", others with a wrapper", peers, peers))
        for text, others, ours in rows:
            rival, rate = best(others, ours=False)
            name, top = best(ours, ours=True)
            plain = ours.get("manyarms", ours[name])["env_steps_per_second"]
            how = name.partition(", ")[2] or "as is"
            lines.append(f"| {text} | {rival} | {plain / rate:.1f} × | {top / rate:.1f} × ({how}) |")
    return lines


if __name__ == "__main__":
    source = Path(sys.argv[1])
    measured = json.loads(source.read_text())
    source.with_suffix(".md").write_text(markdown(measured))
