"""What earlier versions wrote is read as ever: checkpoints, runs, evaluations, recordings, datasets, configs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from pyarrow import parquet
from safetensors.numpy import load_file

import manyarms
import today
from manyarms import cli
from manyarms.learning.settings import load
from manyarms.learning.training import train
from manyarms.policies.statistics import load_lerobot_stats
from manyarms.reporting.lerobot import write_dataset
from manyarms.reporting.recording import Recording
from manyarms.reporting.report import write_report
from manyarms.reporting.watched import WatchedRun

CONFIGS = sorted(path.name for path in (today.DATA / "configs").glob("*.yaml"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a copy of what was written, with the models that it names beside it."""
    copy = tmp_path / "today"
    shutil.copytree(today.DATA, copy)
    monkeypatch.chdir(copy)
    return copy


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    timed = ("seconds", "session_seconds")
    return {k: v for k, v in line.items() if not k.startswith(("time/", "throughput/")) and k not in timed}


def assert_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """What is said may grow; what was said stays, to what another CPU makes of the last bits."""
    assert expected.keys() <= found.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=2e-3, abs=2e-4), key


@pytest.mark.slow
@pytest.mark.parametrize("name", today.RUNS)
def test_a_run_goes_on_from_its_folder_to_where_it_went_before(name: str, folder: Path) -> None:
    today.models(folder)
    expected = folder / "expected" / name
    result = train(load(f"runs/{name}/config.yaml"), resume=True)
    assert result.updates == today.UPDATES
    written = load_file(result.folder / "checkpoints" / f"global_step_{today.UPDATES}" / "model.safetensors")
    weights = load_file(expected / "model.safetensors")
    assert written.keys() == weights.keys()
    for key, weight in weights.items():
        np.testing.assert_allclose(written[key], weight, rtol=1e-3, atol=2e-5, err_msg=key)
    for found, wanted in zip(lines(result.folder / "metrics.jsonl"), lines(expected / "metrics.jsonl"), strict=True):
        assert_alike(without_times(found), without_times(wanted))
    assert lines(result.folder / "evaluations.jsonl") == lines(expected / "evaluations.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("name", today.RUNS)
def test_a_checkpoint_is_evaluated_to_the_number_that_its_training_noted(name: str, folder: Path) -> None:
    today.models(folder)
    policy = f"runs/{name}/checkpoints/global_step_{today.KEPT}"
    found = manyarms.evaluate("tabletop/reach_target", policy=policy, episodes=2, seed=1_000_000, out=Path("again"))
    noted = lines(folder / "runs" / name / "metrics.jsonl")[today.KEPT]
    assert np.mean([r.total_reward for r in found.results]) == pytest.approx(noted["eval/return"], rel=1e-4, abs=1e-6)
    assert np.mean([r.length for r in found.results]) == noted["eval/episode_len"]


def test_an_evaluation_that_was_cut_short_is_finished_to_the_same_results(folder: Path) -> None:
    log = folder / "evaluation" / "episodes-0.jsonl"
    whole = lines(log)
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:2]))
    config = json.loads((folder / "evaluation" / "config.json").read_text())
    words = ["eval", config["simulator"], "--policy", config["policy"], "--episodes", str(config["episodes"])]
    assert cli.run([*words, "--out", "evaluation", "--resume"]) == 0
    assert len(lines(log)) == len(whole) == 4
    for found, wanted in zip(lines(log), whole, strict=True):
        assert_alike(found, wanted)


@pytest.mark.parametrize("name", today.RUNS)
def test_a_run_is_reported_and_watched(name: str, folder: Path) -> None:
    run = folder / "runs" / name
    page = write_report(run).read_text()
    assert f"<title>{name}: training report</title>" in page
    assert page.count("<svg") > 1, "success, and what it learnt"
    state = WatchedRun(run).state()
    assert (state["kind"], state["phase"], state["done"]) == ("training", "finished", today.UPDATES)
    assert state["judged"] == max(line["step"] for line in lines(run / "evaluations.jsonl"))


def test_an_evaluation_is_watched(folder: Path) -> None:
    state = WatchedRun(folder / "evaluation").state()
    assert (state["kind"], state["phase"], state["done"], state["policy"]) == (
        *("evaluation", "finished", 4),
        f"runs/mlp_ppo/checkpoints/global_step_{today.KEPT}",
    )


def test_statistics_of_a_dataset_are_read(folder: Path) -> None:
    found = load_lerobot_stats(folder / "dataset")
    known = json.loads((folder / "dataset" / "meta" / "stats.json").read_text())
    mean, std = found["action"].need("mean", "std")
    assert (mean.tolist(), std.tolist()) == (known["action"]["mean"], known["action"]["std"])


def test_a_recording_is_replayed_bit_for_bit() -> None:
    assert manyarms.replay(Path("recording")).same


def test_a_dataset_is_written_as_before(folder: Path) -> None:
    write_dataset(folder / "anew", Recording("recording_seen"))
    before, after = folder / "dataset", folder / "anew"
    assert json.loads((after / "meta/info.json").read_text()) == json.loads((before / "meta/info.json").read_text())
    for file in ("data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet", "meta/tasks.parquet"):
        found, wanted = parquet.read_table(after / file), parquet.read_table(before / file)
        assert found.schema.equals(wanted.schema), file
        assert found.equals(wanted), file


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_a_run_has_kept_means_what_it_meant(name: str) -> None:
    before = OmegaConf.to_container(OmegaConf.load(f"configs/{name}"))
    after = OmegaConf.to_container(OmegaConf.create(load(f"configs/{name}").text))
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert _within(before, after) == before


def _within(known: Any, found: Any) -> Any:
    """Return of a config what an earlier one has; new settings do not count."""
    if not (isinstance(known, dict) and isinstance(found, dict)):
        return found
    return {key: _within(known[key], found[key]) for key in known if key in found}
