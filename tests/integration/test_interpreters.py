"""Workers in other interpreters, from the source tree and from an installed wheel."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import interpreters
import manyarms
from conftest import away_from_the_tree
from manyarms.errors import UnknownName
from manyarms.testing import CHECKS, Subject

OTHERS = interpreters.available()
ENDS = [version for version in OTHERS if version in (OTHERS[0], OTHERS[-1])]


def test_at_least_two_other_interpreters_are_tested() -> None:
    if len(OTHERS) < 2:
        pytest.skip(f"this machine has only these other Pythons: {OTHERS}")
    assert len(ENDS) == 2


@pytest.mark.parametrize("version", OTHERS)
def test_a_worker_runs_in_another_interpreter_with_its_own_packages(version: str) -> None:
    home = interpreters.environment(version)
    with manyarms.make_vec("standins:Report", 2, python=str(home)) as envs:
        _, infos = envs.reset(seed=0)
        assert set(infos["python"]) == {version}
        assert all(path.startswith(str(home)) for path in infos["executable"])
        own = sysconfig.get_paths()["purelib"]
        assert not any(own in path for path in infos["path"]), "our site-packages must not reach another interpreter"
        heavy = {"gymnasium", "rich", "torch", "mujoco", "psutil"}
        assert not heavy & set(infos["modules"][0]), "a worker imports numpy and its simulator only"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("version", ENDS)
def test_conformance_in_another_interpreter(version: str, check: Any) -> None:
    check(Subject("standins:Walker", {"python": str(interpreters.environment(version))}, steps=6))


@pytest.mark.parametrize("version", ENDS)
def test_lock_step_groups_run_in_another_interpreter(version: str) -> None:
    subject = Subject(
        "standins:Herd", {"python": str(interpreters.environment(version)), "rows_per_worker": 3}, steps=6
    )
    for check in CHECKS:
        check(subject)


@pytest.mark.parametrize("version", ENDS)
def test_gymnasium_in_another_interpreter_equals_ours(version: str) -> None:
    with manyarms.make_vec("gym/CartPole-v1", 2, python=str(interpreters.environment(version))) as envs:
        oracle = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
        assert envs.observation_space == oracle.observation_space
        np.testing.assert_array_equal(envs.reset(seed=1)[0], oracle.reset(seed=1)[0])
        for i in range(40):
            action = np.array([i % 2, (i // 2) % 2])
            ours, theirs = envs.step(action), oracle.step(action)
            np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
            np.testing.assert_array_equal(ours[2], theirs[2])


def test_rows_in_two_interpreters_share_one_environment() -> None:
    rows = [manyarms.SimulatorConfig("standins:Report", python=str(interpreters.environment(v))) for v in ENDS]
    with manyarms.make_vec(rows, 4) as envs:
        _, infos = envs.reset(seed=0)
        assert infos["python"].tolist() == [*ENDS, *ENDS]


def test_fetch_runs_in_an_interpreter_of_its_own_with_the_mujoco_it_wants() -> None:
    with manyarms.make_vec("gym/FetchPickAndPlace-v4", 2, python=str(interpreters.robotics())) as envs:
        observations, _ = envs.reset(seed=0)
        assert {name: values.shape for name, values in observations.items()} == {
            "observation": (2, 25),
            "achieved_goal": (2, 3),
            "desired_goal": (2, 3),
        }
        chunk = envs.step_chunk(np.zeros((2, 60, 4), np.float32))
        assert chunk.num_steps.tolist() == [50, 50]
        assert chunk.truncated.all()
        assert "is_success" in chunk.infos


PLUG_IN = """
from standins import Walker


class PlugIn(Walker):
    pass
"""


@pytest.mark.parametrize("version", ENDS[:1])
def test_a_plug_in_installed_only_in_the_workers_interpreter_is_found(version: str, tmp_path: Path) -> None:
    """An entry point is metadata on the path: a directory with a dist-info is an installation."""
    (tmp_path / "far_plug_in.py").write_text(PLUG_IN)
    info = tmp_path / "far_plug_in-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: far-plug-in\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[manyarms.simulators]\nfarsim = far_plug_in:PlugIn\n")
    where = {"python": str(interpreters.environment(version)), "env": {"PYTHONPATH": str(tmp_path)}}
    with manyarms.make_vec("farsim/far", 1, **where) as envs:
        observations, infos = envs.reset(seed=0)
        assert infos["task"].tolist() == ["far"]
        assert observations["objects_length"].tolist() == [5]
    with pytest.raises(UnknownName, match="did you mean farsim"):
        manyarms.make_vec("farsym/far", 1, **where)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with manyarms installed from a wheel, away from the source tree; dependencies are ours."""
    home = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(home / "dist")]
    subprocess.run([*build, str(interpreters.REPOSITORY)], check=True, capture_output=True)
    (wheel,) = (home / "dist").glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True)
    python = home / "venv/bin/python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)], check=True)
    (site,) = (home / "venv/lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return python


SCRIPT = """
import numpy, sys
import manyarms
assert "site-packages" in manyarms.__file__, manyarms.__file__

def make_env():
    import gymnasium
    return gymnasium.make("CartPole-v1")

if __name__ == "__main__":
    for python in sys.argv[1:]:
        with manyarms.make_vec("gym/CartPole-v1", 2, python=python or None) as envs:
            envs.reset(seed=0)
            chunk = envs.step_chunk(numpy.zeros((2, 30), int))
            print(python, chunk.num_steps.tolist(), chunk.terminated.tolist())
    with manyarms.make_vec(make_env, 2) as envs:
        envs.reset(seed=0)
        print("function", envs.step_chunk(numpy.zeros((2, 30), int)).num_steps.tolist())
"""


@pytest.mark.slow
def test_workers_run_from_an_installed_wheel_in_any_interpreter(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    pythons = ["", *(str(interpreters.environment(version) / "bin/python") for version in ENDS)]
    command = [str(installed), "script.py", *pythons]
    options: Any = {"cwd": tmp_path, "env": away_from_the_tree(), "capture_output": True, "text": True}
    done = subprocess.run(command, timeout=600, check=False, **options)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(pythons) + 1
    assert len({line.partition("[")[2].partition("]")[0] for line in lines}) == 1, "all interpreters agree"


def test_the_wheel_holds_what_a_worker_needs_and_nothing_else(installed: Path) -> None:
    listing = subprocess.run(
        [str(installed), "-m", "zipfile", "-l", str(next((installed.parent.parent.parent / "dist").glob("*.whl")))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "manyarms/workers/main.py" in listing
    assert "tests/" not in listing
