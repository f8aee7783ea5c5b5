"""A training run small enough for tests, and what to compare of two."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from conftest import environment

CONFIG = """
runner:
  max_steps: 6
  val_check_interval: 3
  save_interval: 2
  logger: {logger_backends: []}
algorithm: {gamma: 0.95, update_epoch: 2, episodes_per_step: 8}
env:
  train:
    simulator: standins:Walker
    total_num_envs: 4
    rows_per_worker: 2
    max_episode_steps: 16
    options: {goal: 1.2, cameras: []}
  eval: {episodes: 5}
rollout: {batch_size: 4}
actor:
  global_batch_size: 16
  model: {num_action_chunks: 2, options: {hidden: 32, fields: [position]}}
  optim: {lr: 3.0e-3, schedule: linear}
"""


def written(tmp_path: Path, text: str = CONFIG) -> str:
    """Write a config; return its path."""
    path = tmp_path / "walk.yaml"
    path.write_text(text)
    return str(path)


def in_folder(tmp_path: Path, name: str = "walk") -> list[str]:
    """Return the words that send a run to a folder."""
    return [f"runner.logger.log_path={tmp_path}", f"runner.logger.experiment_name={name}"]


def started(arguments: Sequence[str], ranks: int = 1, restarts: int = 0) -> subprocess.Popen[str]:
    """Start `manyarms train`, under torchrun if there are several ranks."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    launcher += [f"--max-restarts={restarts}", "--monitor-interval=0.1"]
    command = [sys.executable, *(launcher if ranks > 1 else []), "-m", "manyarms", "train", *arguments]
    return subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str], seconds: float = 600) -> str:
    """Wait for its end; return what it said."""
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        said, _ = process.communicate()
        pytest.fail(f"it did not end: {said[-2000:]}")
    return said


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return what a run has logged so far; a line that is being written does not count."""
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool], seconds: float = 600) -> None:
    """Wait until something is so, as long as the process lives."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            pytest.fail(f"it ended too early: {process.communicate()[0][-2000:]}")
        if time.monotonic() > deadline:
            process.kill()
            pytest.fail("it did not come so far")
        time.sleep(0.02)


def curve(folder: Path) -> list[dict[str, float]]:
    """Return all metrics that do not depend on how fast the machine is."""
    timed = (
        "time/",
        "seconds",
        "session_seconds",
        "throughput/env_steps_per_s",
        "throughput/rollout",
        "throughput/overlap",
    )
    return [{name: value for name, value in line.items() if not name.startswith(timed)} for line in lines(folder)]


def weights(folder: Path, step: int = 6) -> dict[str, np.ndarray]:
    return load_file(folder / "checkpoints" / f"global_step_{step}" / "model.safetensors")


def assert_same_run(found: Path, wanted: Path) -> None:
    """Compare metrics, evaluations and weights bit for bit."""
    assert curve(found) == curve(wanted)
    assert (found / "evaluations.jsonl").read_text() == (wanted / "evaluations.jsonl").read_text()
    ours, theirs = weights(found), weights(wanted)
    assert ours.keys() == theirs.keys()
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)
