"""What tests of placed runs share: processes to find and to kill, at a moment of a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from manyarms.learning.loop import TrainResult
from manyarms.learning.settings import load
from manyarms.learning.training import train as train_in_this_process
from manyarms.placement.playing import Playing
from manyarms.placement.training import train
from training import in_folder, written

# Ray makes its workers 15 nicer than itself: beside other tests on a busy machine they would hardly ever run.
os.environ.setdefault("RAY_worker_niceness", "0")

PLACED = "cluster.component_placement."
SHARED = (f"{PLACED}env,rollout,actor=0-1",)
ONE_LEARNER = (f"{PLACED}env=0", f"{PLACED}rollout=1-2", f"{PLACED}actor=3")
AHEAD = ("algorithm.max_staleness=2", "runner.val_check_interval=0")
SMALL_STORE = 100_000_000


def run(tmp_path: Path, *words: str, name: str = "walk", resume: bool = False) -> TrainResult:
    return train(load(written(tmp_path), [*in_folder(tmp_path, name), *words]), resume=resume)


_undisturbed: dict[tuple[str, ...], Path] = {}


def undisturbed(factory: pytest.TempPathFactory, *words: str) -> Path:
    """Return the folder of a run that nothing happens to, made once for all that are compared with it."""
    if words not in _undisturbed:
        folder = factory.mktemp("undisturbed")
        placed = any(word.startswith(PLACED) for word in words)
        settings = load(written(folder), [*in_folder(folder), *words])
        _undisturbed[words] = (train if placed else train_in_this_process)(settings).folder
    return _undisturbed[words]


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


def all_gone(name: str, seconds: float = 120.0) -> bool:
    """Wait until no process of a name is left."""
    deadline = time.monotonic() + seconds
    while processes(name):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


class Disturbed:
    """Does something once, while an update's episodes are being played: in the driver, which waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, deeds: Mapping[int, Callable[[], object]]) -> None:
        """Hook in; `deeds` are by the number of updates made before."""
        self._left = dict(deeds)
        allow = Playing.allow

        def allowed(playing: Playing, version: int, weights: Sequence[Any]) -> None:
            allow(playing, version, weights)
            deed = self._left.pop(version, None)
            if deed is not None:
                deed()

        monkeypatch.setattr(Playing, "allow", allowed)

    @property
    def done(self) -> bool:
        return not self._left
