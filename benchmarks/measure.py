"""One peer in a process of its own: ``measure.py <peer> <workload> <environments> <chunk> <seconds> <start method>``.

Says when it is up, then measures once for every line it is sent, and waits in between.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any

import numpy as np
import psutil
from peers import PEERS, Peer


def measure(peer: Peer, seconds: float) -> dict[str, float]:
    """Step for `seconds`, after as long a warm-up: memory that lay idle may have been taken away meanwhile."""
    warm = time.perf_counter()
    while time.perf_counter() - warm < seconds:
        peer.step()
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    latencies: list[float] = []
    spent = cpu_seconds(processes)
    began = now = time.perf_counter()
    while now - began < seconds:
        peer.step()
        then, now = now, time.perf_counter()
        latencies.append(now - then)
    spent = cpu_seconds(processes) - spent
    steps = len(latencies) * peer.num_envs * peer.chunk
    workers = processes[1:] or processes
    return {
        "env_steps_per_second": steps / (now - began),
        "cpu_us_per_env_step": spent / steps * 1e6,
        "p50_ms": float(np.percentile(latencies, 50)) * 1e3,
        "p99_ms": float(np.percentile(latencies, 99)) * 1e3,
        "worker_mb": float(np.mean([memory(process) for process in workers])) / 1e6,
    }


def cpu_seconds(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # Ray ends helpers it does not need
            total += sum(process.cpu_times()[:2])
    return total


def memory(process: psutil.Process) -> float:
    """Return a process's share of the memory it uses."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return getattr(process.memory_full_info(), "pss", 0) or process.memory_info().rss
    return 0.0


def say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def main() -> None:
    name, workload, num_envs, chunk, seconds, start_method = sys.argv[1:]
    began = time.perf_counter()
    peer = PEERS[name](workload, int(num_envs), int(chunk), start_method)
    peer.start()
    say({"start_seconds": time.perf_counter() - began})
    for _ in sys.stdin:
        say(measure(peer, float(seconds)))
    peer.close()


if __name__ == "__main__":
    main()
