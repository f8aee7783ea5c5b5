"""What cannot start is said before anything is started."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import houses
import interpreters
from conftest import REPOSITORY
from manyarms.cli.train import TrainCommand, TrainPlan
from manyarms.cli.train import run as train_command
from manyarms.errors import ConfigError, StartError, UnknownName
from manyarms.learning.foresight import lacks
from manyarms.learning.settings import load
from manyarms.placement import training
from manyarms.placement.topology import Node
from manyarms.vector import SimulatorConfig
from manyarms.vector.foresight import foresee

CONFIGS = REPOSITORY / "examples/embodiment/config"
RADIO = "turning_on_radio"


class Started(Exception):
    """Ray would have been started."""


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a machine without BEHAVIOR, on which starting Ray is noticed."""

    def start(*_: Any) -> Any:
        raise Started

    monkeypatch.setattr(training, "RayCluster", start)
    for name in ("ISAAC_PATH", "OMNIGIBSON_DATA_PATH", "EXP_PATH", "BEHAVIOR_PYTHON", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def behavior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what the document's command for BEHAVIOR is given here."""
    monkeypatch.chdir(tmp_path)
    return [f"actor.model.model_path={tmp_path}"]


def test_missing_variables_are_told_before_ray_is_started(behavior: list[str], tmp_path: Path) -> None:
    config = load(str(CONFIGS / "behavior_ppo_openvlaoft.yaml"), behavior)
    with pytest.raises(StartError, match=r"ISAAC_PATH is not set \(it should hold") as raised:
        training.train(config)
    for text in ("OMNIGIBSON_DATA_PATH is not set", "OmniGibson is not installed", "manyarms doctor behavior"):
        assert text in str(raised.value)
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_on_a_dry_run_they_are_warnings(behavior: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """People plan runs on laptops."""
    command = TrainCommand(str(CONFIGS / "behavior_ppo_openvlaoft.yaml"), tuple(behavior), dry_run=True)
    assert isinstance(train_command(command), TrainPlan)
    assert "this would fail here: ISAAC_PATH is not set" in capsys.readouterr().err


def test_with_other_machines_they_are_warnings(behavior: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What they have is not known here."""
    words = [*behavior, "cluster.address=10.0.0.1:6379"]
    with pytest.raises(Started):
        training.train(load(str(CONFIGS / "behavior_ppo_openvlaoft.yaml"), words))
    assert "ISAAC_PATH is not set" in capsys.readouterr().err


def test_what_a_plan_warns_of_is_told_by_runs_too(
    tmp_path: Path, behavior: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers themselves cannot see which GPUs the others have."""

    class Ray:
        nodes = (SimpleNamespace(node=Node(8, 64)),)

        def __enter__(self) -> Ray:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def reserve(self, plan: Any) -> None:
            raise Started

    monkeypatch.setattr(training, "RayCluster", lambda _: Ray())
    words = [
        *behavior,
        "cluster.address=10.0.0.1:6379",
        "cluster.component_placement={env: 4-7, rollout: 0-3, actor: 0-3}",
    ]
    with pytest.raises(Started):
        training.train(load(str(CONFIGS / "behavior_ppo_openvlaoft.yaml"), words))
    assert "env begins at GPU 4" in capsys.readouterr().err


def test_nothing_is_missing_where_it_is_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in houses.build(tmp_path, (RADIO,)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(houses.STANDIN))
    words = [f"actor.model.model_path={tmp_path}"]
    assert lacks(load(str(CONFIGS / "behavior_ppo_openvlaoft.yaml"), words).config) == []
    missing = "there is no folder /nowhere"
    words = ["actor.model.model_path=/nowhere"]
    assert missing in lacks(load(str(CONFIGS / "behavior_ppo_openvlaoft.yaml"), words).config)[0]


def test_another_interpreter_is_asked_itself(tmp_path: Path, behavior: list[str]) -> None:
    """The one that the installer makes sets the variables."""
    launcher = tmp_path / "behavior-python"
    exports = [f"export {name}={value}" for name, value in houses.build(tmp_path, (RADIO,)).items()]
    launcher.write_text("\n".join(["#!/bin/sh", *exports, "echo welcome", f'exec {sys.executable} "$@"']))
    launcher.chmod(0o755)
    asked = SimulatorConfig(f"behavior/{RADIO}", python=str(launcher))
    assert foresee(asked) == []
    with pytest.raises(UnknownName, match="turning_on_radio"):
        foresee(SimulatorConfig("behavior/turning_on_radoi", python=str(launcher)))
    launcher.write_text("#!/bin/sh\necho no such thing >&2\nexit 3\n")
    assert "no such thing" in foresee(asked)[0]
    words = [*behavior, "env.train.python=/nowhere/python"]
    assert "/nowhere/python" in lacks(load(str(CONFIGS / "behavior_ppo_openvlaoft.yaml"), words).config)[0]


@pytest.mark.parametrize(
    ("simulator", "meant"),
    [
        ("tabletop/reach_targt", "reach_target"),
        ("rlbench/open_drawr", "open_drawer"),
        ("behavior/turning_on_radoi", "turning_on_radio"),
        ("tabeltop/reach_target", "tabletop"),
    ],
)
def test_a_name_that_is_spelt_wrong_is_an_error_of_dry_runs_too(
    simulator: str, meant: str, behavior: list[str]
) -> None:
    words = ("actor.model.options.fields=[]", f"env.train.simulator={simulator}")
    with pytest.raises(UnknownName, match=meant):
        train_command(TrainCommand("reach_target_ppo", words, dry_run=True))
    with pytest.raises(UnknownName, match=meant):
        training.train(load("reach_target_ppo", words))


@pytest.mark.slow
def test_libero_is_asked_where_it_lives() -> None:
    python = str(interpreters.libero() / "bin/python")
    assert foresee(SimulatorConfig("libero/libero_object/0", python=python)) == []
    with pytest.raises(UnknownName, match="libero_object"):
        foresee(SimulatorConfig("libero/libero_objekt", python=python))
    assert "LIBERO is not installed" in foresee(SimulatorConfig("libero/libero_object/0"))[0]


@pytest.mark.parametrize("config", ["behavior_ppo_openvlaoft", "libero_ppo_pi0"])
def test_a_checkpoint_that_is_not_named_is_an_error_of_dry_runs_too(config: str) -> None:
    with pytest.raises(ConfigError, match=r"leaves actor\.model\.model_path open"):
        train_command(TrainCommand(str(CONFIGS / f"{config}.yaml"), dry_run=True))
    words = ("actor.model.model_path=null",)
    with pytest.raises(ConfigError, match=r"actor\.model\.model_path=/path"):
        train_command(TrainCommand(str(CONFIGS / f"{config}.yaml"), words, dry_run=True))


def test_simulators_without_a_name_are_not_imported_to_be_asked() -> None:
    assert foresee(SimulatorConfig("no.such.module:Simulator")) == []
