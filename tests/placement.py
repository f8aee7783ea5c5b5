"""What tests of placed runs share: processes to find and to kill, at a moment of a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from manyarms.learning.loop import TrainResult
from manyarms.learning.settings import load
from manyarms.placement.training import train
from manyarms.policies.base import Observations
from manyarms.policies.heads import Evaluation
from manyarms.policies.small import MlpPolicy
from training import in_folder, lines, written

PLACED = "cluster.component_placement."
SMALL_STORE = 100_000_000


def run(tmp_path: Path, *words: str, name: str = "walk", resume: bool = False) -> TrainResult:
    return train(load(written(tmp_path), [*in_folder(tmp_path, name), *words]), resume=resume)


def processes(name: str) -> list[psutil.Process]:
    """Return those below us with a name, oldest first."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if name in " ".join(child.cmdline()):
                found.append(child)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return sorted(found, key=lambda process: process.pid)


def kill(name: str, which: int = 0) -> psutil.Process:
    victim = processes(name)[which]
    victim.kill()
    return victim


def all_gone(name: str, seconds: float = 30.0) -> bool:
    """Wait until no process of a name is left."""
    deadline = time.monotonic() + seconds
    while processes(name):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


class Slow(MlpPolicy):
    """Takes its time to learn: what is played ahead then waits for it."""

    def evaluate(self, observations: Observations, chosen: Any) -> Evaluation:
        if torch.is_grad_enabled():
            time.sleep(0.05)
        return super().evaluate(observations, chosen)


class Disturbed(threading.Thread):
    """Does something once a run has come so far."""

    def __init__(self, folder: Path, updates: int, deed: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._folder, self._updates, self._deed = folder, updates, deed
        self.done = False
        self.start()

    def run(self) -> None:
        # Without a deadline of its own: the test has one, and a busy machine takes minutes to start a placed run.
        while len(lines(self._folder)) <= self._updates:
            time.sleep(0.01)
        self._deed()
        self.done = True
