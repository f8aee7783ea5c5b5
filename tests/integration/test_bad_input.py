"""What a user can get wrong gets one clear answer, on the main side, and harms no worker."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import textwrap
import venv
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import manyarms
from manyarms import EpisodeId
from manyarms.errors import (
    ActionError,
    ConfigError,
    ManyarmsError,
    NotEnoughMemory,
    SimulatorError,
    StartError,
    UnknownName,
)
from manyarms.vector import memory
from manyarms.vector.config import SimulatorConfig, VectorConfig
from manyarms.vector.display import DisplayConfig


@pytest.fixture
def pendulum() -> Any:
    with manyarms.make_vec("gym/Pendulum-v1", 3, max_chunk=8) as envs:
        envs.reset(seed=0)
        yield envs


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros((3, 2), np.float32), r"shape \(3, 2\), expected \(3, 1\)"),
        (np.zeros((2, 1), np.float32), r"shape \(2, 1\), expected \(3, 1\)"),
        (np.zeros(3, np.float32), r"shape \(3,\)"),
        (np.array([[0.0], [np.nan], [0.0]]), r"holds nan \(row 1, element \[0\]\)"),
        (np.array([[0.0], [0.0], [-np.inf]]), r"holds -inf \(row 2"),
        (np.array([[0.0], [0.0], [2.5]]), r"holds 2.5 \(row 2.*range is -2.0 to 2.0"),
        (np.array([["a"], ["b"], ["c"]]), "cannot become float32"),
        (np.zeros((3, 1), complex), "complex128, which cannot become float32"),
        ([[0.0], [0.0, 1.0], [0.0]], "no rectangular array"),
        (None, "not numbers"),
    ],
)
def test_bad_actions_are_refused_and_the_rows_go_on(pendulum: Any, action: Any, message: str) -> None:
    with pytest.raises(ActionError, match=message):
        pendulum.step(action)
    with pytest.raises(ActionError):
        pendulum.step_chunk(action)
    good = np.zeros((3, 1))  # float64 is taken for float32: nothing is lost that a policy would miss
    assert pendulum.step(good)[1].shape == (3,)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((3, 0, 1), np.float32), "chunk of 0 actions"),
        (np.zeros((3, 9, 1), np.float32), "takes 1 to 8"),
        (np.zeros((3, 1), np.float32), r"a chunk has \[rows, actions, 1\]"),
        (np.full((3, 4, 1), np.nan), "holds nan"),
    ],
)
def test_bad_chunks_are_refused(pendulum: Any, actions: Any, message: str) -> None:
    with pytest.raises(ActionError, match=message):
        pendulum.step_chunk(actions)


def test_discrete_actions_out_of_range_or_of_another_kind_are_refused() -> None:
    with manyarms.make_vec("gym/CartPole-v1", 2) as envs:
        envs.reset(seed=0)
        with pytest.raises(ActionError, match=r"holds 2 \(row 1\), but the range is 0 to 1"):
            envs.step(np.array([0, 2]))
        with pytest.raises(ActionError, match="float64, which cannot become int64"):
            envs.step(np.array([0.0, 1.0]))
        with pytest.raises(ActionError, match="not numbers"):
            envs.step({"a": 1})
    with manyarms.make_vec("gym_envs:DictAction", 2) as envs:
        envs.reset(seed=0)
        with pytest.raises(ActionError, match="a dict with the parts arm, grip, mode"):
            envs.step(np.zeros((2, 2)))
        with pytest.raises(ActionError, match="a dict with the parts arm, grip, mode"):
            envs.step({"arm": np.zeros((2, 2))})


def test_actions_out_of_range_can_be_clipped_or_passed_on() -> None:
    results = {}
    for mode in ("clip", "ignore"):
        with manyarms.make_vec("standins:Walker", 1, action_bounds=mode, cameras=[]) as envs:
            envs.reset(seed=0)
            results[mode] = envs.step(np.array([[5.0, 0.0]], np.float32))[0]["position"][0, 1]
            with pytest.raises(ActionError, match="nan"):
                envs.step(np.array([[np.nan, 0.0]], np.float32))
    assert results["ignore"] - results["clip"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("simulator", "message"),
    [
        ("gmy/CartPole-v1", "no simulator named 'gmy'\n  why: did you mean gym?"),
        ("gym/CartPol-v1", "gym has no task 'CartPol-v1'(.|\n)*did you mean CartPole-v1"),
        ("gym/CartPole-v9", "gym has no task 'CartPole-v9'(.|\n)*did you mean"),
    ],
)
def test_unknown_names_get_a_suggestion(simulator: str, message: str) -> None:
    with pytest.raises(UnknownName, match=message) as caught:
        manyarms.make_vec(simulator, 4)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("simulator", "options", "message"),
    [
        ("no_such_package:make", {}, "ModuleNotFoundError: No module named 'no_such_package'(.|\n)*pip install"),
        ("standins:NoSuchClass", {}, "standins has no attribute 'NoSuchClass'"),
        ("./no/such/file.py:make", {}, "there is no file"),
        ("standins:Walker", {"colour": 3}, "unexpected keyword argument 'colour'(.|\n)*check the spelling"),
        ("tabletop/open_drawer", {"camera": ["front"]}, "no option 'camera'(.|\n)*did you mean cameras?"),
        (
            "tabletop/open_drawer",
            {"row_per_worker": 2},
            "no option 'row_per_worker'(.|\n)*did you mean rows_per_worker",
        ),
        ("gym/CartPole-v1", {"camera": ["render"]}, "no option 'camera'(.|\n)*did you mean cameras?"),
        ("gym/MountainCar-v0", {"goal_velocty": 1}, "no option 'goal_velocty'(.|\n)*did you mean goal_velocity?"),
        ("standins:Misbehaving", {"fail_at": "start"}, "no licence found(.|\n)*in the same way"),
        ("standins:Misbehaving", {"fail_at": "exit"}, "SystemExit: exit while starting"),
        ("standins:Misbehaving", {"fail_at": "crash"}, "was killed by SIGSEGV while starting"),
        ("gym_envs:TextSpace", {}, "observation space Text is not supported"),
        ("standins:SIZES", {}, "is not a callable object"),
        ("os:getcwd", {}, "neither a simulator nor a Gymnasium environment"),
    ],
)
def test_a_simulator_that_cannot_start_is_explained_once(simulator: str, options: Any, message: str) -> None:
    with pytest.raises(StartError, match=message) as caught:
        manyarms.make_vec(simulator, 3, **options)
    assert str(caught.value).count("could not be built") <= 1


@pytest.mark.parametrize(
    ("simulator", "options", "facts"),
    [
        ("no_such_package:make", {}, ("no_such_package", "")),
        ("tabletop/open_drawer", {"camera": ["front"]}, ("", "camera")),
        ("tabletop/push_button", {"task_options": {"radius": 1}, "cameras": []}, ("", "radius")),
        ("gym/MountainCar-v0", {"goal_velocty": 1}, ("", "goal_velocty")),
        ("standins:Walker", {"colour": 3}, ("", "colour")),
        ("standins:Misbehaving", {"fail_at": "start"}, ("", "")),
    ],
)
def test_a_program_need_not_read_the_words_of_an_error(simulator: str, options: Any, facts: tuple[str, str]) -> None:
    for num_envs in (1, 3):
        with pytest.raises(StartError) as caught:
            manyarms.make_vec(simulator, num_envs, **options)
        assert (caught.value.missing_module, caught.value.option) == facts
        assert not caught.value.missing_part


def test_a_simulator_that_never_starts_is_given_up() -> None:
    with pytest.raises(StartError, match=r"did not start within 8 s(.|\n)*a simulator that prints"):
        manyarms.make_vec("standins:Misbehaving", 1, fail_at="hang", noise=True, start_timeout=8.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 0}, "num_envs is 0"),
        ({"num_envs": -3}, "num_envs is -3"),
        ({"num_envs": 2.0}, "num_envs is 2.0"),
        ({"num_envs": True}, "num_envs is True"),
        ({"max_chunk": 0}, "max_chunk is 0"),
        ({"rows_per_worker": 0}, "rows_per_worker is 0"),
        ({"rows_per_worker": 1000, "num_envs": 1000}, "at most 250"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0"),
        ({"autoreset_mode": "sometimes"}, "autoreset_mode is 'sometimes'"),
        ({"action_bounds": "wrap"}, "action_bounds is 'wrap'"),
        ({"start_timeout": 0}, "start_timeout is 0"),
        ({"start_timeout": None}, "start_timeout is None"),
        ({"start_timeout": float("inf")}, "start_timeout is inf; a worker has at most 1,000,000 seconds"),
        ({"step_timeout": "soon"}, "step_timeout is 'soon'"),
        ({"render_rows": [2]}, r"render_rows is \[2\]"),
        ({"egl_device": "first"}, "egl_device is 'first'"),
        ({"info_bytes": -1}, "info_bytes is -1"),
        ({"env": {"A": 3}}, "environment variables are strings"),
        ({"rename": ["a"]}, r"rename is \['a'\]; it must be a mapping"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        manyarms.make_vec("gym/CartPole-v1", **{"num_envs": 2, **settings})


#: What someone may write for a setting, on the command line or in YAML.
ANYTHING: list[Any] = [None, True, 0, -1, 2**70, 1.5, float("nan"), float("inf"), "", "x", [], [1], [[1]], ["a"], {}]
ANYTHING += [{"a": 1}, (1, "a"), b"x", object()]


@pytest.mark.parametrize("kind", [VectorConfig, SimulatorConfig, DisplayConfig], ids=lambda kind: kind.__name__)
def test_any_value_of_a_setting_is_taken_or_refused_in_words(kind: Any) -> None:
    needed = {VectorConfig: {"num_envs": 2}, SimulatorConfig: {"id": "gym/CartPole-v1"}, DisplayConfig: {}}[kind]
    kind(**needed)
    for field in fields(kind):
        for value in ANYTHING:
            with contextlib.suppress(ConfigError):
                kind(**{**needed, field.name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "CartPol-v1"}, "gym has no task 'CartPol-v1'(.|\n)*did you mean CartPole-v1"),
        ({"num_envs": 0}, "num_envs is 0; it must be at least 1"),
        ({"seconds": 0}, "seconds is 0; it must be a finite number above 0"),
        ({"seconds": float("inf")}, "seconds is inf"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"steps": -1}, "steps is -1; it must be at least 0"),
        ({"train_seconds": -5}, "train_seconds is -5; it must be at least 0"),
        ({"out": __file__}, "test_bad_input.py cannot be made"),
    ],
)
def test_a_demo_that_cannot_be_meant_is_refused_before_it_begins(settings: Any, message: str) -> None:
    with pytest.raises(ManyarmsError, match=message):
        manyarms.demo(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"episodes": "3"}, "evaluate: episodes is '3'; it must be a whole number"),
        ({"episodes": 2.5}, "evaluate: episodes is 2.5; it must be a whole number"),
        ({"max_episode_steps": "9"}, "evaluate: max_episode_steps is '9'; it must be a whole number or None"),
        ({"resume": "yes"}, "evaluate: resume is 'yes'; it must be True or False"),
        ({"policy": 3}, "evaluate: policy is 3; it must be a text"),
    ],
)
def test_arguments_of_another_kind_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        manyarms.evaluate("tabletop/open_drawer", **settings)


def test_numbers_of_numpys_are_taken(tmp_path: Path) -> None:
    settings: Any = {"episodes": np.int64(1), "num_envs": np.int32(1)}
    played = manyarms.evaluate("gym/CartPole-v1", out=tmp_path / "one", **settings)
    assert len(played.results) == 1


def test_what_is_no_name_is_refused_and_harms_no_worker() -> None:
    with manyarms.make_vec("standins:Walker", 2, cameras=[]) as envs:
        envs.reset(seed=0)
        with pytest.raises(ConfigError, match="a task is called by its name, got 5"):
            envs.begin([0], EpisodeId(task=5))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="a task is called by its name, got 5"):
            envs.reset(options={"tasks": [5, "near"]})
        with pytest.raises(ConfigError, match="options of a reset are a dict, got 3"):
            envs.reset(options=3)  # type: ignore[arg-type]
        for call in (envs.call, envs.get_attr):
            with pytest.raises(ConfigError, match="called by its name, got 5"):
                call(5)  # type: ignore[operator]
        envs.reset(options={"tasks": np.array(["near", "far"])})
        assert envs.failures == []


def test_a_function_that_no_other_process_can_find_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be found by another process"):
        manyarms.make_vec(lambda: gymnasium.make("CartPole-v1"), 2)
    with pytest.raises(ConfigError, match="no simulator given"):
        manyarms.make_vec([], 2)
    with pytest.raises(ConfigError, match="2 simulators need as many rows, got num_envs=1"):
        manyarms.make_vec(["gym/CartPole-v1", "gym/MountainCar-v0"])
    with pytest.raises(ConfigError, match="named by a string"):
        manyarms.make_vec("", 2)


def test_options_that_cannot_travel_are_refused_and_paths_become_text(tmp_path: Path) -> None:
    for option in (lambda: 3, object(), {"inner": [{1}]}):
        with pytest.raises(ConfigError, match="cannot travel to a worker"):
            manyarms.make_vec("gym/CartPole-v1", 2, option=option)
    with manyarms.make_vec("standins:Closing", 1, path=tmp_path) as envs:
        assert envs.get_attr("path") == (str(tmp_path),)


def test_more_memory_than_the_machine_has_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(NotEnoughMemory, match=r"shared memory for 2 environments would take .* GiB"):
        manyarms.make_vec("gym/Pendulum-v1", 2, max_chunk=1 << 40)
    with pytest.raises(NotEnoughMemory, match="200000 worker processes would take"):
        manyarms.make_vec("gym/Pendulum-v1", 200_000)


def test_memory_is_the_containers_when_that_is_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = tmp_path / "sys/fs/cgroup/user/job"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/user/job\n")
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1000\n")
    (group.parent / "memory.max").write_text(str(300 << 20))
    (group.parent / "memory.current").write_text(str(100 << 20))
    (group.parent / "memory.stat").write_text(f"anon 5\ninactive_file {50 << 20}\n")
    assert memory.available_bytes(tmp_path) == 250 << 20
    monkeypatch.setattr(memory, "available_bytes", lambda: 250 << 20)
    with pytest.raises(NotEnoughMemory, match=r"20 worker processes would take 480.0 MiB, but only 250.0 MiB"):
        manyarms.make_vec("gym/Pendulum-v1", 20)


def test_memory_limits_of_version_1_control_groups_count(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/memory/job"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu:/other\n4:memory:/job\n")
    (group / "memory.limit_in_bytes").write_text(str(200 << 20))
    (group / "memory.usage_in_bytes").write_text(str(80 << 20))
    assert memory.available_bytes(tmp_path) == 120 << 20


@pytest.mark.parametrize(
    ("simulator", "action", "message"),
    [
        (
            "gym_envs:BadObservation",
            np.array([0, 0]),
            r"observation is \(1,\) float32, but the spec says \(3,\) float32",
        ),
        ("standins:Misbehaving", np.array([[0.0], [2.0]]), r"observation is \(2,\) float32, but the spec says \(3,\)"),
    ],
)
def test_an_observation_that_does_not_match_its_spec_is_an_error(simulator: str, action: Any, message: str) -> None:
    with manyarms.make_vec(simulator, 2, on_failure="raise") as envs:
        envs.reset(seed=0)
        with pytest.raises(SimulatorError, match=message):
            envs.step(action)
        envs.reset(seed=0)


def fake_interpreter(path: Path, code: str) -> str:
    path.write_text(f"#!{sys.executable}\n" + textwrap.dedent(code))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_an_interpreter_that_is_missing_or_cannot_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no Python interpreter at '/no/such/python'"):
        manyarms.make_vec("gym/CartPole-v1", 2, python="/no/such/python")
    plain = tmp_path / "python"
    plain.write_text("hello")
    with pytest.raises(ConfigError, match="cannot be executed"):
        manyarms.make_vec("gym/CartPole-v1", 2, python=str(plain))
    plain.chmod(0o755)
    with pytest.raises(ManyarmsError, match="could not be started"):
        manyarms.make_vec("gym/CartPole-v1", 2, python=str(plain))


def test_an_interpreter_without_numpy_is_told_how_to_get_it(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    with pytest.raises(StartError, match=r"has no numpy(.|\n)*bin/python -m pip install numpy"):
        manyarms.make_vec("gym/CartPole-v1", 2, python=str(tmp_path / "bare"))


def test_a_worker_of_another_protocol_version_is_refused(tmp_path: Path) -> None:
    other = fake_interpreter(
        tmp_path / "python",
        """
        import socket, sys
        from manyarms.workers import wire
        sock = socket.socket(fileno=int(sys.argv[4]))
        sock.sendall(wire.frame({"kind": "hello", "protocol": 999, "python": "3.11", "numpy": "2"}))
        sock.recv(1)
        """,
    )
    with pytest.raises(StartError, match=r"speaks protocol 999, this manyarms speaks \d"):
        manyarms.make_vec("gym/CartPole-v1", 2, python=other)


def test_something_that_is_not_python_is_explained(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho this is no python >&2; exit 3\n")
    other.chmod(0o755)
    with pytest.raises(StartError, match=r"ended with exit code 3 while starting(.|\n)*this is no python"):
        manyarms.make_vec("gym/CartPole-v1", 2, python=str(other))


def test_rows_that_cannot_share_an_environment_are_refused() -> None:
    with pytest.raises(ConfigError, match="of different kinds"):
        manyarms.make_vec(["gym/CartPole-v1", "gym/Pendulum-v1"], 2)


def test_a_failed_start_leaves_nothing_open() -> None:
    counts = []
    for _ in range(4):
        with pytest.raises(UnknownName):
            manyarms.make_vec("gmy/CartPole-v1", 2)
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] <= counts[0], "the keeper of the first stays, everything else must be closed"
