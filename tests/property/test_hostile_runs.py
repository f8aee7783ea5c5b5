"""Folders of runs that somebody else has written: whatever is in their files, the page and the report come out."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import watched
from manyarms.errors import ConfigError, ManyarmsError
from manyarms.learning.settings import load
from manyarms.learning.training import train
from manyarms.reporting.report import write_report
from manyarms.reporting.site import Site
from manyarms.reporting.trackers import open_trackers
from manyarms.reporting.watched import WatchedRun
from training import in_folder, written

SCRIPT = "<script>alert(1)</script>"
VALUES: list[Any] = [
    *(None, True, -1, 0, 10**30, 10**400, 1.5, 1e308, float("nan"), float("inf"), -float("inf"), "", "nan", SCRIPT),
    *([], [SCRIPT], [[1]], [None, 1, "x"], {}, {"a": {}}, {SCRIPT: SCRIPT}, {"step": SCRIPT}),
]
CONFIGS = [
    *(
        SCRIPT,
        "runner: [1]",
        "runner: {max_steps: .nan, max_seconds: .inf}",
        "runner: {max_epochs: x, max_steps: 1e999}",
    ),
    *("a: &a [*a]", "runner: 2001-99-99", "[" * 5000, "runner: {max_seconds: -.inf}", "\0"),
]


def spoilt(value: Any, chance: random.Random) -> Any:
    """Return a document with other things in some of its places."""
    if chance.random() < 0.2:
        return chance.choice(VALUES)
    if isinstance(value, Mapping):
        return {name: spoilt(part, chance) for name, part in value.items()}
    return [spoilt(part, chance) for part in value] if isinstance(value, list) else value


def spoil(path: Path, chance: random.Random) -> None:
    if chance.random() < 0.08:
        path.write_text("[" * 100_000)
    elif path.suffix == ".yaml":
        path.write_text(chance.choice(CONFIGS))
    elif path.suffix == ".json":
        path.write_text(json.dumps(spoilt(json.loads(path.read_text()), chance)))
    elif path.suffix == ".jsonl":
        documents = map(json.loads, path.read_text().splitlines())
        path.write_text("".join(json.dumps(spoilt(each, chance)) + "\n" for each in documents))


def evaluation(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"simulator": "tabletop", "tasks": "a, b", "episodes": 3}))
    lines = [{"position": i, "task": "ab"[i % 2], "success": i < 3, "length": 10} for i in range(4)]
    watched.write_lines(folder / "episodes-0.jsonl", lines)
    return folder


def test_files_that_never_end_or_never_begin_are_none(tmp_path: Path) -> None:
    runs = [watched.training(tmp_path / "runs" / name) for name in ("pipes", "endless")]
    for run in runs:
        watched.write_live(run, watched.rows(4))
    for path in [path for run in runs for path in run.rglob("*.*") if path.suffix in (".yaml", ".json", ".jsonl")]:
        if path.name == "metrics.jsonl" and path.parent.name == "pipes":
            continue  # or it were no run
        path.unlink()
        if path.is_relative_to(runs[0]):
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
    assert WatchedRun(runs[0]).state()["done"] == 5
    json.dumps([WatchedRun(run).state() for run in runs], allow_nan=False)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two updates."""
    folder = tmp_path_factory.mktemp("begun")
    train(load(written(folder), [*in_folder(folder), "runner.max_steps=2", "runner.save_interval=1"]))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_on_record_of_a_run_it_goes_on_or_is_refused_in_words(
    seed: int, begun: Path, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    shutil.copytree(begun / "walk", tmp_path / "walk")
    for path in sorted((tmp_path / "walk").rglob("*")):
        if path.is_file() and "checkpoints" not in path.parts and chance.random() < 0.5:
            spoil(path, chance)
    words = [*in_folder(tmp_path), "runner.max_steps=3", "runner.save_interval=1"]
    with suppress(ManyarmsError):
        assert train(load(written(tmp_path), words), resume=True).updates == 3


@pytest.mark.parametrize("value", [None, "soon", [], {}, [1.0], True, 1e400, 10**400])
def test_a_run_goes_on_whatever_its_clock_says(value: Any, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "seconds": value}) + "\n")
    with open_trackers(tmp_path, backends=(), from_step=1) as trackers:
        trackers.log({"env/return": 1.0}, 2)
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 <= line["seconds"] < 1e9


@pytest.mark.parametrize("seed", range(40))
def test_no_run_of_others_breaks_its_page_or_the_list_of_runs(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    training = watched.training(tmp_path / "runs" / "trained")
    watched.write_live(training, watched.rows(4))
    judged = evaluation(tmp_path / "runs" / "judged")
    for path in sorted((tmp_path / "runs").rglob("*")):
        if path.is_file():
            spoil(path, chance)
    for folder in (training, judged):
        json.dumps(WatchedRun(folder).state(), allow_nan=False)
    with suppress(ConfigError):  # nothing may be left of it
        json.dumps(Site(tmp_path / "runs")._list(), allow_nan=False)
    with suppress(ConfigError):
        page = write_report(training).read_text()
        assert page.count("<script>") == 1, "only ours"
