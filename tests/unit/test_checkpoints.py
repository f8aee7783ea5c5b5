"""Checkpoints: what is not as it was written, or was never one of ours, is refused in words."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from manyarms import cli
from manyarms.algorithms.ppo import PPO
from manyarms.errors import ConfigError
from manyarms.learning.checkpoint import CheckpointPolicy, Recipe, load, load_policy, save
from manyarms.learning.course import Course, TrainerConfig
from manyarms.learning.learner import Learner
from manyarms.learning.settings import load as load_settings
from manyarms.learning.training import train
from manyarms.policies.registry import make_policy
from standins import Walker
from training import in_folder, written

SPEC = Walker(cameras=()).spec
OPTIONS = {"chunk": 2, "hidden": 8, "fields": ["position"], "value_head": True}


def course(iteration: int = 0) -> Course:
    """Return training that has taken a step of its optimiser."""
    policy: Any = make_policy("mlp", SPEC, OPTIONS)
    learner = Learner(policy, PPO())
    for parameter in learner.policy.parameters():
        parameter.grad = torch.ones_like(parameter)
    learner.optimizer.step()
    found = Course(learner, ["near"], TrainerConfig(9, 2))
    found.iteration = iteration
    return found


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The last of three checkpoints."""
    return [save(tmp_path, course(step), Recipe("mlp", OPTIONS)) for step in (0, 4, 8)][-1]


def flip(file: Path, byte: int = -3) -> None:
    """Change one bit."""
    data = bytearray(file.read_bytes())
    data[byte] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "trainer.json", "SHA256SUMS"])
def test_a_flipped_bit_is_found_and_the_checkpoint_before_is_named(name: str, saved: Path) -> None:
    flip(saved / name, 5 if name == "SHA256SUMS" else -3)
    with pytest.raises(ConfigError) as caught:
        load(saved, course())
    assert caught.value.what == f"{saved} is corrupted"
    assert caught.value.do == f"use the checkpoint before it: {saved.with_name('global_step_4')}"


def test_a_checkpoint_before_that_is_corrupted_too_is_not_named(saved: Path) -> None:
    for step in (8, 4):
        flip(saved.with_name(f"global_step_{step}") / "optimizer.safetensors")
    with pytest.raises(ConfigError, match=r"global_step_0$"):
        load(saved, course())
    flip(saved.with_name("global_step_0") / "model.safetensors")
    with pytest.raises(ConfigError, match="begin anew"):
        load(saved, course())


def test_a_flipped_bit_in_the_weights_is_no_policy_to_evaluate(saved: Path) -> None:
    flip(saved / "model.safetensors")
    with pytest.raises(ConfigError, match=r"is corrupted[\s\S]*model.safetensors is not as it was written"):
        CheckpointPolicy(saved)(SPEC)


def test_a_checkpoint_of_an_earlier_version_without_digests_is_loaded(saved: Path) -> None:
    (saved / "SHA256SUMS").unlink()
    facts = json.loads((saved / "trainer.json").read_text())
    (saved / "trainer.json").write_text(json.dumps({**facts, "config": {"runner": {"max_steps": 3}}}))
    found = course()
    load(saved, found)
    assert found.iteration == 8


def test_digests_can_be_checked_by_hand(saved: Path) -> None:
    assert subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=saved, check=False).returncode == 0


@pytest.mark.parametrize("kind", ["a pipe that nobody writes to", "a device that never ends", "a folder"])
@pytest.mark.parametrize("digested", [True, False])
@pytest.mark.parametrize("name", ["policy.json", "model.safetensors", "optimizer.safetensors", "trainer.json"])
def test_what_is_no_file_is_not_read(name: str, digested: bool, kind: str, saved: Path) -> None:
    _put(kind, saved / name)
    if not digested:
        (saved / "SHA256SUMS").unlink()
    with pytest.raises(ConfigError, match=r"no checkpoint|it is no file"):
        CheckpointPolicy(saved)(SPEC) if name == "policy.json" else load(saved, course())
    if name == "model.safetensors":
        with pytest.raises(ConfigError, match="it is no file"):
            CheckpointPolicy(saved)(SPEC)


@pytest.mark.parametrize("kind", ["a pipe that nobody writes to", "a device that never ends"])
def test_digests_that_are_no_file_are_not_read(kind: str, saved: Path) -> None:
    _put(kind, saved / "SHA256SUMS")
    with pytest.raises(ConfigError, match="it is no file"):
        load(saved, course())


def _put(kind: str, file: Path) -> None:
    """Put something in the place of a file."""
    file.unlink()
    if kind == "a folder":
        file.mkdir()
    elif "pipe" in kind:
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")


def test_the_weights_are_the_same_whatever_was_checked(saved: Path) -> None:
    made: Any = make_policy("mlp", SPEC, OPTIONS)
    policy = made.policy
    load_policy(saved, policy)
    assert all(
        torch.equal(policy.state_dict()[name], tensor)
        for name, tensor in load_file(saved / "model.safetensors").items()
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"optimizer": 3}, "no list of groups"),
        ({"optimizer": [3, 4]}, "no list of groups"),
        ({"optimizer": []}, "has 0 groups"),
        ({"optimizer": [{}, {}, {}]}, "has 3 groups"),
        ({"optimizer": [{"lr": "fast"}, {}]}, "lr of its optimiser is 'fast'"),
        ({"optimizer": [{"lr": float("nan")}, {}]}, "lr of its optimiser is nan"),
        ({"optimizer": [{"params": [99]}, {}]}, "params of its optimiser"),
        ({"optimizer": [{"betas": [0.9]}, {}]}, "betas"),
        ({"optimizer": [{"strange": 1}, {}]}, "strange"),
        ({"optimizer_steps": "many"}, "optimizer_steps is 'many'"),
        ({"optimizer_steps": -1}, "optimizer_steps is -1"),
        ({"iteration": 1.5}, "iteration is 1.5"),
        ({"iteration": True}, "iteration is True"),
        ({"iteration": 10**30}, "iteration is 1000"),
        ({"position": None}, "position is None"),
        ({"env_steps": [1]}, "env_steps is"),
        ({"env_steps": "\ud800"}, "cannot be written"),
        (None, "lacks iteration"),
        ([1], "no mapping"),
    ],
)  # fmt: skip
def test_a_position_that_is_none_is_refused_in_words(change: Any, says: str, saved: Path) -> None:
    (saved / "SHA256SUMS").unlink()
    facts = json.loads((saved / "trainer.json").read_text())
    facts = {**facts, **change} if isinstance(change, dict) else change or {}
    (saved / "trainer.json").write_text(json.dumps(facts))
    with pytest.raises(ConfigError, match="is no checkpoint") as caught:
        load(saved, course())
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("99/exp_avg", [2]),
        ("x/exp_avg", [2]),
        ("-1/exp_avg", [2]),
        ("0/exp_avg", [7, 7]),
        ("0/strange", [2]),
        ("0", [2]),
    ],
)
def test_tensors_of_no_optimiser_are_refused_in_words(name: str, shape: list[int], saved: Path) -> None:
    (saved / "SHA256SUMS").unlink()
    tensors = load_file(saved / "optimizer.safetensors")
    save_file({**tensors, name: torch.zeros(shape)}, saved / "optimizer.safetensors")
    with pytest.raises(ConfigError, match=r"is no checkpoint[\s\S]*optimizer.safetensors"):
        load(saved, course())
    tensors.pop("0/exp_avg")
    save_file(tensors, saved / "optimizer.safetensors")
    with pytest.raises(ConfigError, match="lacks tensors"):
        load(saved, course())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"options": {**OPTIONS, "hidden": 10**12}}, "hidden is 1000000000000; it must be from 1 to 8192"),
        ({"options": {**OPTIONS, "hidden": "wide"}}, "cannot have hidden 'wide'"),
        ({"options": {**OPTIONS, "layers": 10**6}}, "layers is 1000000"),
        ({"options": {**OPTIONS, "log_std": float("nan")}}, "cannot have log_std nan"),
        ({"options": {**OPTIONS, "log_std": 1e300}}, "log_std is 1e+300; it must be from -20 to 20"),
        ({"options": {**OPTIONS, "spec": 1}}, "has no option 'spec'"),
        ({"options": {**OPTIONS, "device": "gpu"}}, "device is 'gpu'"),
        ({"options": {**OPTIONS, "seed": -1}}, "seed is -1"),
        ({"options": {**OPTIONS, "fields": [3]}}, "cannot have fields"),
        ({"options": [1]}, "options is no mapping"),
        ({"needs": 3}, "needs is no mapping"),
        ({"model_type": 3}, "model_type is no name"),
        ({"model_type": None}, "model_type is no name"),
        ({"strange": 1}, "has strange"),
        ([], "no mapping"),
    ],
)  # fmt: skip
def test_a_policy_that_is_none_is_refused_in_words(change: Any, says: str, saved: Path) -> None:
    facts = json.loads((saved / "policy.json").read_text())
    (saved / "policy.json").write_text(json.dumps({**facts, **change} if isinstance(change, dict) else change))
    with pytest.raises(ConfigError) as caught:
        CheckpointPolicy(saved)(SPEC)
    assert says in str(caught.value)


def test_a_run_whose_newest_checkpoint_is_corrupted_goes_on_from_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*in_folder(tmp_path), "runner.max_steps=2", "runner.save_interval=1", "runner.val_check_interval=0"]
    command = ["train", written(tmp_path), *words, "--resume"]
    assert cli.run(command) == 0
    checkpoints = tmp_path / "walk" / "checkpoints"
    wanted = (checkpoints / "global_step_2" / "model.safetensors").read_bytes()
    flip(checkpoints / "global_step_2" / "model.safetensors")
    capsys.readouterr()
    assert cli.run(command) == 2
    assert f"use the checkpoint before it: {checkpoints / 'global_step_1'}" in capsys.readouterr().err
    assert cli.run([*command, f"runner.resume_dir={checkpoints / 'global_step_1'}"]) == 0
    assert (checkpoints / "global_step_2" / "model.safetensors").read_bytes() == wanted


def test_nothing_that_a_run_writes_holds_what_came_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "hunter2-a-secret"
    monkeypatch.setenv("MANYARMS_SECRET", secret)
    monkeypatch.setenv("MANYARMS_RUNS", str(tmp_path))
    words = ["runner.logger.log_path=${oc.env:MANYARMS_RUNS}", "runner.logger.experiment_name=walk"]
    words += [
        "env.train.options.env={TOKEN: '${oc.env:MANYARMS_SECRET}'}",
        "runner.logger.logger_backends=[tensorboard]",
    ]
    words += ["runner.max_steps=1"]
    result = train(load_settings(written(tmp_path), words))
    files = [path for path in (tmp_path / "walk").rglob("*") if path.is_file()]
    assert {"config.yaml", "policy.json", "report.html"} <= {path.name for path in files}
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    said = capsys.readouterr()
    assert secret not in said.out + said.err
    checkpoint = str(result.folder / "checkpoints" / "global_step_1")
    command = ["eval", "standins:Walker", "--policy", checkpoint, "--trust-code"]
    command += ["--episodes", "2", "--out", str(tmp_path / "judged")]
    assert cli.run(command) == 2, "nothing is left out in silence"
    assert "training took it from an environment variable" in capsys.readouterr().err
    assert cli.run([*command, "--options", "env={TOKEN: other}"]) == 0
    shutil.rmtree(tmp_path / "judged")
