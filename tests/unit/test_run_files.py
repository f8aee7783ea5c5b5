"""The files of a run: what is written is read again, what others wrote too, and nothing of it is lost."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import REPOSITORY
from manyarms.reporting.results import EpisodeResult, ResultFolder, wilson
from manyarms.reporting.runs import (
    LiveFile,
    LiveRow,
    LiveSheet,
    MetricsLine,
    RunFacts,
    Score,
    StopReason,
    add_evaluation,
    read_evaluations,
    read_metrics,
)

TODAY = REPOSITORY / "tests" / "data" / "today"
RUNS = sorted(path.parent for path in TODAY.glob("runs/*/run.json"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_nothing_of_a_run_of_an_earlier_version_is_lost(run: Path, tmp_path: Path) -> None:
    written = json.loads((run / "run.json").read_text())
    facts = RunFacts.read(run)
    facts.write(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text()) == written | {"status": "completed"}
    for line in read_metrics(run):
        assert json.loads(MetricsLine.of(line).text()) == line
    (tmp_path / "evaluations.jsonl").write_bytes((run / "evaluations.jsonl").read_bytes())
    evaluations = read_evaluations(run)
    for step, scores in evaluations.items():
        add_evaluation(tmp_path, step, scores)
    before, after = (
        {line["step"]: line for line in map(json.loads, (folder / "evaluations.jsonl").read_text().splitlines())}
        for folder in (run, tmp_path)
    )
    assert before == after


def test_an_evaluation_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    for path in (TODAY / "evaluation").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    written = [json.loads(line) for line in (tmp_path / "episodes-0.jsonl").read_text().splitlines()]
    with ResultFolder(tmp_path, config, resume=True) as folder:
        assert [vars(result) for result in folder.load().values()] == written


def test_what_other_versions_write_is_kept_where_a_run_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"policy": "mlp", "from_step": 0, "colour": ["blue"], "tasks": "a"}))
    replace(RunFacts.read(tmp_path), resuming=True).write(tmp_path)
    known = {"policy": "mlp", "tasks": [], "from_step": 0, "resuming": True, "colour": ["blue"]}
    assert json.loads((tmp_path / "run.json").read_text()) == known


@pytest.mark.parametrize("reason", StopReason)
def test_a_run_is_read_as_it_was_written(reason: StopReason, tmp_path: Path) -> None:
    facts = RunFacts(version="1", policy="mlp", tasks=("a", "b"), from_step=3, status=reason, finished_because="so")
    facts.write(tmp_path)
    assert RunFacts.read(tmp_path) == facts


def test_a_metric_that_is_not_finite_is_null_and_comes_back_as_none(tmp_path: Path) -> None:
    line = MetricsLine(3, {"seconds": 1.5, "actor/loss": math.inf, "env/return": 2.0})
    (tmp_path / "metrics.jsonl").write_text(line.text())
    (found,) = read_metrics(tmp_path)
    assert found == {"step": 3, "seconds": 1.5, "actor/loss": None, "env/return": 2.0}
    assert math.isnan(MetricsLine.of(found).values["actor/loss"])


def test_an_evaluation_takes_the_place_of_an_earlier_one_of_its_step(tmp_path: Path) -> None:
    for won in (1, 4):
        add_evaluation(tmp_path, 5, {"a": Score(won, 5, wilson(won, 5), 12.0)})
    add_evaluation(tmp_path, 10, {"a": Score(5, 5, wilson(5, 5), 12.0)})
    assert [(step, scores["a"].successes) for step, scores in read_evaluations(tmp_path).items()] == [(5, 4), (10, 5)]


def test_a_live_file_is_read_as_it_was_written() -> None:
    row = LiveRow(0, 1, 4000, "reach", "stepping", 7, 12, 2, 0, None, 0)
    file = LiveFile("rank-0", 1, "here", "tabletop", 2.0, 1.0, False, [row], LiveSheet("rank-0.jpg", 1, 96, 96, "3.0"))
    assert LiveFile.of("rank-0", json.loads(file.text())) == file


def test_an_episode_of_the_wrong_kind_is_read_as_far_as_it_goes() -> None:
    found = EpisodeResult.read({"position": 3, "task": 5, "success": "yes", "length": -1, "total_reward": None})
    assert found == EpisodeResult(3, None, None, False, 0.0, 0, "")
