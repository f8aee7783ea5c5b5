"""Listing what there is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from manyarms import cli
from manyarms.cli.listing import ListConfig, run
from manyarms.errors import ConfigError, UnknownName
from manyarms.learning.recipes import recipes
from manyarms.policies import registry as policies
from manyarms.simulators import registry as simulators


def test_every_simulator_is_told_with_whether_it_can_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = {row["name"]: row for row in run(ListConfig("simulators")).as_dicts()}
    assert set(simulators.BUILT_IN) <= set(found)
    assert found["tabletop"]["here"] == "yes"
    assert all(row["what"] for row in found.values())
    assert found["libero"]["here"].startswith("no: ")
    (tmp_path / ".venvs" / "libero" / "bin").mkdir(parents=True)
    assert run(ListConfig("simulators", match="libero")).as_dicts()[0]["here"] == "with --python .venvs/libero"


@pytest.mark.parametrize(
    ("simulator", "count", "one"),
    [
        ("tabletop", 10, ("tabletop/open_drawer", "open the bottom drawer")),
        ("rlbench", 106, ("rlbench/take_lid_off_saucepan", "take lid off saucepan")),
        ("behavior", 50, ("behavior/cook_bacon", "Cook the six slices of bacon in the frying pan.")),
        ("libero", 5, ("libero/libero_90", "90 short tasks in many scenes")),
    ],
)
def test_tasks_are_told_without_their_simulators(simulator: str, count: int, one: tuple[str, str]) -> None:
    rows = run(ListConfig("tasks", simulator)).rows
    assert len(rows) == count
    assert one in rows


def test_every_task_of_the_tabletop_that_is_listed_can_be_made() -> None:
    from manyarms.simulators.tabletop.simulator import TabletopSimulator

    for name, _ in run(ListConfig("tasks", "tabletop")).rows:
        TabletopSimulator(name.partition("/")[2], cameras=[]).close()


def test_tasks_can_be_searched() -> None:
    found = [row[0] for row in run(ListConfig("tasks", "gym", match="cartpole-v1")).rows]
    assert "gym/CartPole-v1" in found
    assert all("CartPole-v1" in name for name in found)
    assert len(run(ListConfig("tasks")).rows) > 170


def test_every_policy_is_told_with_what_it_needs() -> None:
    found = {row["name"]: row for row in run(ListConfig("policies")).as_dicts()}
    assert set(policies.BUILT_IN) <= set(found)
    assert found["pi0"]["needs"] == "manyarms[torch,vla]"
    assert found["random"]["needs"] == ""


def test_configs_are_told_with_what_they_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {Path(row["config"]).stem: row for row in run(ListConfig("configs")).as_dicts()}
    assert set(recipes()) <= set(found)
    assert found["reach_target_ppo"]["what"].startswith("PPO from scratch")
    on_bases = found["libero_ppo_pi0"]
    assert (on_bases["algorithm"], on_bases["simulator"], on_bases["policy"]) == ("ppo", "libero/libero_object", "pi0")
    monkeypatch.chdir(tmp_path)
    elsewhere = [Path(row["config"]) for row in run(ListConfig("configs", match="libero_ppo")).as_dicts()]
    assert all(path.is_file() for path in elsewhere)


def test_a_result_reads_like_a_table() -> None:
    text = repr(run(ListConfig("tasks", "tabletop", match="drawer")))
    assert text.splitlines()[0] == "3 tasks"
    assert "  tabletop/open_drawer         open the bottom drawer" in text


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["list", "tasks", "tabletop", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"task": "tabletop/open_drawer", "what": "open the bottom drawer"} in listed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "tasks", "tabeltop"], "did you mean tabletop"),
        (["list", "policies", "tabletop"], "manyarms list tasks tabletop"),
    ],
)
def test_wrong_names_get_the_right_ones(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        cli.main(arguments)
    assert done.value.code == 2
    assert message in capsys.readouterr().err


def test_what_cannot_be_listed_is_refused_in_python_too() -> None:
    with pytest.raises(UnknownName, match="did you mean tasks"):
        ListConfig("task")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="takes no simulator"):
        ListConfig("configs", "gym")


@pytest.mark.parametrize("what", ["configs", "algorithms", "policies"])
def test_lists_are_made_without_torch(what: str) -> None:
    code = f"import sys; from manyarms.cli import run; run(['list', {what!r}]); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if what == "algorithms":
        assert "dapo           DAPO (Yu et al. 2025): GRPO with clip-higher" in done.stdout


def test_plug_ins_are_listed(tmp_path: Path) -> None:
    info = tmp_path / "sandbox-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sandbox\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[manyarms.simulators]\nsandpit = sandpit:Sandpit\nbeach = beach\n\n"
        "[manyarms.policies]\ndigger = sandpit:Digger\n"
    )
    (tmp_path / "beach.py").write_text(
        "from manyarms.simulators.about import About\nabout = About('sand as far as you see', needs=('sea', 'numpy'))\n"
    )
    (tmp_path / "sandpit.py").write_text(
        "class Sandpit:\n    @classmethod\n    def list_tasks(cls):\n        return {'dig': 'dig a hole'}\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from manyarms.cli import run; "
        "[run(['list', *words]) for words in (['simulators'], ['policies'], ['tasks', 'sandpit'])]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("plug-in of sandbox 1.2") == 2
    assert "sand as far as you see" in done.stdout
    assert "no: sea not found" in done.stdout
    assert "sandpit/dig  dig a hole" in done.stdout
