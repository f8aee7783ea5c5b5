"""BEHAVIOR's adapter: on a stand-in of OmniGibson here, and a short run on OmniGibson itself where ISAAC_PATH is set.

On OmniGibson: ``pytest -m real_behavior tests/integration/test_behavior.py``, with BEHAVIOR_PYTHON for its interpreter.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import houses
import interpreters
import manyarms
from manyarms import EpisodeId
from manyarms.errors import ManyarmsError, SimulatorError, StartError, WorkerDied, WorkerTimeout
from manyarms.policies import make_policy
from manyarms.rollout import Runner, RunnerConfig
from manyarms.simulators import registry
from manyarms.simulators.base import SpecError
from manyarms.simulators.behavior import install
from manyarms.simulators.behavior.releases import RELEASES
from manyarms.simulators.behavior.robot import ACTION, Senses, action_field
from manyarms.simulators.behavior.simulator import BehaviorSimulator
from manyarms.simulators.behavior.tasks import CHALLENGE, activities
from manyarms.testing import CHECKS, Subject

pytestmark = pytest.mark.slow

SIGNATURES = json.loads((houses.TESTS / "data/behavior_signatures.json").read_text())

#: Commands of the right gripper at which the stand-in misbehaves (its world.py).
HANG, CRASH, ERROR = 0.125, 0.25, 0.375

#: And the one that cuts up a thing.
SLICE = 0.5

#: One condition, and sixteen.
RADIO, BASKETS = "turning_on_radio", "assembling_gift_baskets"

Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make environments on the stand-in; what is in `faults` and `env` goes to it."""

    def make_envs(
        task: str = RADIO,
        num_envs: int = 1,
        faults: str = "",
        fork: bool = False,
        version: str = "3.7.2",
        env: Any = None,
        **options: Any,
    ) -> Any:
        variables = houses.build(tmp_path, (RADIO, BASKETS), version)
        variables.update(OMNIGIBSON_STANDIN_FAULTS=faults, OMNIGIBSON_STANDIN_FORK="1" if fork else "", **(env or {}))
        settings = {"rows_per_worker": num_envs, "image_size": (24, 16), "launch_pause": 0.0, **options}
        return manyarms.make_vec(f"behavior/{task}", num_envs, env=variables, **settings)

    return make_envs


def notes(root: Path, word: str) -> list[str]:
    """Return what the stand-in has written down under a word."""
    lines = (root / "log").read_text().splitlines() if (root / "log").exists() else []
    return [line.partition(" ")[2] for line in lines if line.split()[0] == word]


def config(root: Path) -> Any:
    return json.loads(notes(root, "config")[-1])


def stay(left: float = 1.0, right: float = 1.0, drive: float = 0.0, arm: float = 0.0) -> np.ndarray:
    """Return an action: the grippers' commands, a speed forwards, an angle of the left arm."""
    action = np.zeros(23, np.float32)
    action[0], action[7], action[14], action[22] = drive, arm, left, right
    return action


def act(envs: Any, *actions: np.ndarray) -> Any:
    """Give every row one action of its own."""
    return envs.step_chunk(np.stack(actions)[:, None])


def forget_standin() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "omnigibson"]:
        del sys.modules[name]


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the stand-in into this process."""
    for name, value in houses.build(tmp_path, (RADIO,)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("EXP_PATH", str(tmp_path / "isaac/apps"))
    monkeypatch.syspath_prepend(str(houses.STANDIN))
    monkeypatch.setattr(sys, "argv", sys.argv[:1])
    handler = signal.getsignal(signal.SIGINT)
    yield importlib.import_module("omnigibson")
    signal.signal(signal.SIGINT, handler)
    gc.enable()
    forget_standin()


# -- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("fork", [False, True], ids=["release", "fork"])
def test_conformance(check: Callable[[Subject], None], rows: int, fork: bool, tmp_path: Path) -> None:
    variables = {**houses.build(tmp_path, (BASKETS,)), "OMNIGIBSON_STANDIN_FORK": "1" if fork else ""}
    options = {"env": variables, "image_size": (24, 16), "rows_per_worker": rows}
    # Where in the world a robot is is rounded more coarsely far away.
    check(Subject(f"behavior/{BASKETS}", options, tolerance=1e-4 if rows > 1 else 0.0, steps=8))


@pytest.fixture(params=["standin", pytest.param("real", marks=[pytest.mark.real_behavior, pytest.mark.timeout(1800)])])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Options with which BEHAVIOR runs here: those of the stand-in, or of OmniGibson itself."""
    if request.param == "standin":
        return {"env": houses.build(tmp_path, (RADIO,))}
    if not os.environ.get("ISAAC_PATH"):
        pytest.skip("ISAAC_PATH is not set: there is no Isaac Sim here")
    return {"python": os.environ.get("BEHAVIOR_PYTHON"), "start_timeout": 1500.0, "reset_timeout": 300.0}


def test_robots_that_are_held_stay_where_they_are_and_see_something(world: dict[str, Any]) -> None:
    with manyarms.make_vec(f"behavior/{RADIO}", 2, rows_per_worker=2, **world) as envs:
        observations, infos = envs.reset(seed=0)
        for camera in ("head", "left_wrist", "right_wrist"):
            assert observations[f"{camera}_rgb"].shape == (2, 224, 224, 3)
            assert observations[f"{camera}_rgb"].std() > 1.0, "nothing was drawn"
        assert infos["descriptions"][0]
        before = observations["state"].copy()
        hold = np.stack([envs.call("hold")[row] for row in range(2)])
        chunk = envs.step_chunk(np.repeat(hold[:, None], 8, axis=1))
        assert chunk.num_steps.tolist() == [8, 8]
        assert np.allclose(chunk.observations["state"][:, 3:21], before[:, 3:21], atol=0.05), "held robots have moved"


def test_robots_that_have_moved_begin_the_next_instance_at_rest(world: dict[str, Any]) -> None:
    with manyarms.make_vec(f"behavior/{RADIO}", 2, rows_per_worker=2, on_failure="raise", **world) as envs:
        observations, infos = envs.reset(seed=0)
        before, first = observations["state"].copy(), infos["instance"].copy()
        moving = np.stack([envs.call("hold")[row] for row in range(2)])
        moving[:, 10] -= 0.5  # an elbow
        moving[:, 14] = -1.0
        chunk = envs.step_chunk(np.repeat(moving[:, None], 30, axis=1))
        assert (np.abs(chunk.observations["state"][:, 10] - before[:, 10]) > 0.2).all(), "nothing has moved"
        for seed in range(1, 20):
            observations, infos = envs.reset(seed=seed)
            assert np.allclose(observations["state"][:, 3:], before[:, 3:], atol=0.05), "robots are not at rest"
            if (infos["instance"] != first).all():
                break
        else:
            pytest.fail("every seed stands for the same instance")


# -- what is seen -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.7.2", "3.9.1"])
def test_images_stack_and_numbers_are_in_their_places(make: Make, tmp_path: Path, version: str) -> None:
    with make(version=version, image_size=224) as envs:
        observations, infos = envs.reset(seed=0)
        assert observations["proprio"].shape == (1, {"3.7.2": 256, "3.9.1": 61}[version])
        assert infos["descriptions"][0] == [CHALLENGE[RADIO]]
        action = np.arange(23, dtype=np.float32) / 100
        action[:3] = 0.5, -1.0, 0.25
        action[[14, 22]] = 1.0, -1.0
        observations = act(envs, action).observations
        head = observations["head_rgb"].transpose(0, 3, 1, 2)
        wrists = np.stack([observations[f"{side}_wrist_rgb"] for side in ("left", "right")], axis=1)
        assert head.shape == (1, 3, 224, 224)
        assert wrists.transpose(0, 1, 4, 2, 3).shape == (1, 2, 3, 224, 224)
        assert not (observations["head_rgb"] == 7).all(axis=(0, 1, 2)).any(), "alpha was taken for a colour"
        assert (wrists[:, 0] != wrists[:, 1]).any()
        # base velocity, torso, left arm, right arm, left gripper, right gripper
        expected = [0.375, -0.75, 0.25, *action[3:7], *action[7:14], *action[15:22], 0.1, 0.0]
        assert np.allclose(observations["state"][0], expected, atol=1e-6)
        robot = config(tmp_path)["robots"][0]
        assert ("model" in robot, "type" in robot) == ((True, False) if version == "3.9.1" else (False, True))
        assert json.loads(notes(tmp_path, "space")[-1]) == [[224, 224, 4]] * 3
        assert json.loads(notes(tmp_path, "apertures")[-1])[0] == 40.0


def test_actions_are_bounded_by_the_joints_and_named_by_groups() -> None:
    assert {name: (part.start, part.stop) for name, part in ACTION.items()} == {
        "base": (0, 3),
        "torso": (3, 7),
        "left_arm": (7, 14),
        "left_gripper": (14, 15),
        "right_arm": (15, 22),
        "right_gripper": (22, 23),
    }
    bounds = action_field()
    assert bounds.shape == (23,)
    assert (bounds.low < bounds.high).all()
    for senses in map(Senses, RELEASES.values()):
        rest = senses.at_rest(np.zeros(senses.size, np.float32))
        assert ((bounds.low <= rest) & (rest <= bounds.high)).all()
        assert rest[[14, 22]].tolist() == [1.0, 1.0], "grippers start open"


def test_only_the_cameras_that_are_wanted_exist(make: Make, tmp_path: Path) -> None:
    with make(cameras=["right_wrist"]) as envs:
        envs.reset(seed=0)
        assert envs.simulator_spec.cameras == ("right_wrist",)
    assert json.loads(notes(tmp_path, "space")[-1]) == [[16, 24, 4]]
    before = len(notes(tmp_path, "render"))
    with make(cameras=[], fork=True) as envs:
        observations, _ = envs.reset(seed=0)
        after_reset = len(notes(tmp_path, "render"))
        act(envs, stay())
        assert set(observations) == {"proprio", "state"}
        assert len(notes(tmp_path, "render")) == after_reset > before
    assert config(tmp_path)["robots"][0]["obs_modalities"] == ["proprio"]


def test_a_fork_renders_and_observes_once_a_chunk_and_a_release_every_step(make: Make, tmp_path: Path) -> None:
    for fork, renders, looks in ((True, 1, 1), (False, 8, 8)):
        with make(fork=fork) as envs:
            envs.reset(seed=0)
            before = len(notes(tmp_path, "render")), len(notes(tmp_path, "observe"))
            envs.step_chunk(np.repeat(stay(arm=0.5)[None, None], 8, axis=1))
            assert len(notes(tmp_path, "render")) - before[0] == renders
            assert len(notes(tmp_path, "observe")) - before[1] == looks
            if fork:
                envs.step_chunk(np.repeat(stay()[None, None], 8, axis=1), cameras=())
                assert len(notes(tmp_path, "render")) - before[0] == 1, "rendered though nobody looks"


# -- goals ------------------------------------------------------------------------------------------------------------


def test_success_is_what_bddl_says_and_partial_success_is_scored(make: Make) -> None:
    with make(BASKETS, max_episode_steps=6) as envs:
        assert len(envs.call("goals")[0]) == 4
        envs.reset(seed=0)
        rewards = []
        for left in (-1.0, 1.0, -1.0, 1.0, -1.0):
            chunk = act(envs, stay(left=left))
            assert "q_score" not in chunk.infos
            rewards.append(float(chunk.rewards[0, 0]))
        assert rewards == [1 / 16, 0.0, 1 / 16, 0.0, 1 / 16]
        chunk = act(envs, stay(left=-1.0, right=-1.0))
        assert chunk.rewards[0, 0] == -1 / 16, "what was undone costs its reward"
        assert (chunk.truncated[0], chunk.success[0]) == (True, False)
        assert chunk.infos["q_score"][0] == 2 / 16
        assert chunk.infos["episode_length"][0] == 6
    with make(RADIO) as envs:
        envs.reset(seed=0)
        chunk = envs.step_chunk(np.stack([stay(), stay(left=-1.0), stay()])[None])
        assert (chunk.num_steps[0], chunk.terminated[0], chunk.success[0]) == (2, True, True)
        assert chunk.rewards[0].tolist() == [0.0, 1.0, 0.0]
        assert chunk.infos["q_score"][0] == 1.0
        assert chunk.infos["episode_length"][0] == 2
        assert chunk.infos["goal_status"]["satisfied"][0] == [0]


def test_what_was_true_at_the_start_scores_nothing(make: Make) -> None:
    """In this activity the laptop's place and the stapler's are part of the goal and partly so at the start."""
    with make("clean_up_your_desk", online_object_sampling=True, scene_model=houses.SCENE, max_episode_steps=1) as envs:
        envs.reset(seed=0)
        assert act(envs, stay()).infos["q_score"][0] == 0.0
    with make("getting_organized_for_work", online_object_sampling=True, scene_model=houses.SCENE) as envs:
        envs.reset(seed=0)
        status = act(envs, stay()).infos["goal_status"]
        assert status["satisfied"][0], "this activity was chosen because a part of its goal holds from the start"


def test_the_score_of_the_newer_release_is_the_same(make: Make) -> None:
    with make(BASKETS, version="3.9.1", max_episode_steps=1) as envs:
        envs.reset(seed=0)
        assert act(envs, stay(left=-1.0)).infos["q_score"][0] == 1 / 16


@pytest.mark.parametrize(("version", "window", "mass"), [("3.7.2", "0.75", "40"), ("3.9.1", "0.0333333", "250")])
def test_evaluations_are_played_by_the_rules_of_the_challenge(
    make: Make, tmp_path: Path, version: str, window: str, mass: str
) -> None:
    """And training by OmniGibson's, as in RLinf."""
    judging = registry.about(f"behavior/{RADIO}").evaluation_options
    with make(num_envs=2, version=version) as envs:
        begin(envs, 1, 2)
        assert set(notes(tmp_path, "rules")) == {"CookingSystemRule MixingToolRule SlicingRule ToggleableMachineRule"}
        assert set(notes(tmp_path, "window")) == {"0.0333333"}
        assert set(notes(tmp_path, "mass")) == {"40"}
    with make(num_envs=2, version=version, **judging) as envs:
        seen = {int(number) for seed in range(8) for number in envs.reset(seed=seed)[1]["instance"]}
        assert seen <= {6, 7, 301, 302, 303}, "instances that are not trained on"
        assert notes(tmp_path, "rules")[-1] == "SlicingRule"
        assert notes(tmp_path, "window")[-1] == window
        assert notes(tmp_path, "mass")[-1] == mass
        assert np.allclose(begin(envs, 1, 1)["state"][:, 7:21], 0.0), "weighing robots moves none"


@pytest.mark.slow
def test_all_tasks_of_the_challenge_have_words_and_can_be_done(make: Make, tmp_path: Path) -> None:
    assert list(CHALLENGE) == SIGNATURES["challenge_tasks"]
    assert set(CHALLENGE) < set(activities())
    assert len(activities()) > 1000
    for activity in list(CHALLENGE)[::10]:
        with make(activity, online_object_sampling=True, scene_model=houses.SCENE, cameras=[], max_chunk=64) as envs:
            assert envs.simulator_spec.tasks[0].descriptions == (CHALLENGE[activity],)
            envs.reset(seed=0)
            chunk = envs.step_chunk(np.stack([stay(left=-1.0), stay()] * 20)[None])
            assert chunk.success[0], activity
            envs.reset(seed=0)


def test_any_activity_goes_by_its_name_and_an_unknown_one_gets_suggestions(make: Make, tmp_path: Path) -> None:
    with make("adding_chemicals_to_pool", online_object_sampling=True, scene_model=houses.SCENE) as envs:
        assert envs.simulator_spec.tasks[0].descriptions == ("adding chemicals to pool",)
        envs.reset(seed=0)
    task = config(tmp_path)["task"]
    assert (task["online_object_sampling"], task["use_presampled_robot_pose"]) == (True, False)
    with pytest.raises(ManyarmsError, match="turning_on_radio"):
        make("turning_on_radios")
    # OmniGibson loads tasks from the instances only, wherever else a scene may be.
    houses.write_instances(tmp_path / "data/behavior-1k-assets/scenes", "picking_up_trash", range(1))
    with pytest.raises(StartError, match=r"no scene in(.|\n)*install_behavior"):
        make("picking_up_trash")


def test_the_words_of_a_policy_can_be_given(make: Make, tmp_path: Path) -> None:
    words = tmp_path / "tasks.jsonl"
    words.write_text(json.dumps({"task_index": 0, "task_name": RADIO, "task": "Turn it on!"}) + "\n")
    with make(descriptions=str(words)) as envs:
        assert envs.reset(seed=0)[1]["descriptions"][0] == ["Turn it on!"]
    with pytest.raises(StartError, match="has no line"):
        make(BASKETS, descriptions=str(words))


# -- time -------------------------------------------------------------------------------------------------------------


def test_the_time_limit_is_not_one_step_late(make: Make, tmp_path: Path) -> None:
    with make(max_episode_steps=5) as envs:
        envs.reset(seed=0)
        chunk = envs.step_chunk(np.repeat(stay()[None, None], 8, axis=1))
        assert (chunk.num_steps[0], chunk.truncated[0], chunk.terminated[0]) == (5, True, False)
        assert chunk.infos["episode_length"][0] == 5
    assert config(tmp_path)["task"]["termination_config"] == {"max_steps": 4}
    with make() as envs:
        assert envs.simulator_spec.horizon == 2000
        assert envs.simulator_spec.control_rate == 30


@pytest.mark.parametrize("fork", [False, True], ids=["release", "fork"])
def test_steps_in_which_a_row_is_held_are_not_counted_as_its_own(make: Make, fork: bool) -> None:
    with make(BASKETS, 2, fork=fork, max_episode_steps=6) as envs:
        start = envs.reset(seed=0)[0]["proprio"][:, 140].copy()
        chunk = np.repeat(stay(drive=1.0)[None, None], 2, axis=0).repeat(5, axis=1)
        envs.send([0, 1], chunk, [5, 1])
        first = envs.recv(min_rows=2)
        assert first.num_steps.tolist() == [5, 1]
        assert first.observations["state"][1, 0] == pytest.approx(0.75), "seen as it was when its own chunk ended"
        assert not first.ended.any()
        envs.send([0, 1], chunk, [1, 5])
        second = envs.recv(min_rows=2)
        assert second.num_steps.tolist() == [1, 5]
        assert second.infos["episode_length"].tolist() == [6, 6]
        moved = second.observations["proprio"][:, 140] - start
        assert np.allclose(moved, 6 * 0.75 / 30, atol=1e-4), "a row drove on while it was held"


# -- groups -----------------------------------------------------------------------------------------------------------


def test_a_release_resets_all_rows_together_and_counts_how_long_they_waited(make: Make) -> None:
    with make(num_envs=2, max_episode_steps=20) as envs:
        assert not envs.simulator_spec.partial_reset
        envs.reset(seed=0)
        chunk = act(envs, stay(left=-1.0), stay())
        assert chunk.terminated.tolist() == [True, False]
        for _ in range(3):
            chunk = act(envs, stay(), stay(drive=0.5))
            assert chunk.num_steps.tolist() == [0, 1]
            assert "q_score" not in chunk.infos, "an episode is scored once"
        chunk = act(envs, stay(), stay(left=-1.0))
        assert chunk.terminated.tolist() == [False, True]
        chunk = act(envs, stay(), stay())
        assert chunk.num_steps.tolist() == [0, 0]
        assert chunk.infos["descriptions"][0], "now both have begun anew"
        assert chunk.infos["held_steps"][0] == 4
        assert chunk.infos["_held_steps"].tolist() == [True, False]
        assert act(envs, stay(), stay()).num_steps.tolist() == [1, 1]


def test_a_fork_resets_one_row_and_its_neighbour_stands_still_meanwhile(make: Make, tmp_path: Path) -> None:
    with make(num_envs=2, fork=True) as envs:
        assert envs.simulator_spec.partial_reset
        envs.reset(seed=0)
        chunk = act(envs, stay(left=-1.0), stay(drive=1.0))
        assert chunk.terminated.tolist() == [True, False]
        place = chunk.observations["proprio"][1, 140:143].copy()
        envs.begin([0], EpisodeId(seed=5))
        assert envs.recv().rows.tolist() == [0]
        assert notes(tmp_path, "reset")[-1] == "[0]"
        assert np.allclose(envs.observations["proprio"][1, 140:143], place), "the neighbour has driven on"
        chunk = act(envs, stay(), stay(drive=1.0))
        assert chunk.num_steps.tolist() == [1, 1]
        moved = chunk.observations["proprio"][1, 140] - place[0]
        assert moved == pytest.approx(0.75 / 30, abs=1e-4)
        act(envs, stay(left=-1.0), stay())
        chunk = act(envs, stay(), stay(drive=1.0))
        assert chunk.num_steps.tolist() == [0, 1]
        assert chunk.observations["state"][1, 0] == pytest.approx(0.75), "seen before the other row was reset"
        chunk = act(envs, stay(), stay(left=-1.0))
        assert chunk.infos["neighbour_resets"][1] == 2
    with make(num_envs=2, fork=True, partial_reset=False) as envs:
        assert not envs.simulator_spec.partial_reset
        envs.reset(seed=0)
    with pytest.raises(StartError, match="cannot reset single scenes"):
        make(num_envs=2, partial_reset=True)


def test_rows_of_a_group_do_not_step_each_other_when_they_are_reset(make: Make, tmp_path: Path) -> None:
    """A reset of OmniGibson's with observations would step every scene that was reset before it once more."""
    with make(num_envs=3) as envs:
        envs.reset(seed=0)
        act(envs, *[stay(drive=1.0)] * 3)
        renders = len(notes(tmp_path, "render"))
        envs.begin(range(3), [EpisodeId(seed=3)] * 3)
        seen = envs.recv(min_rows=3).observations["proprio"]
        assert np.allclose(seen, seen[0], atol=1e-4)
        assert not seen[:, 253:256].any()
        assert len(notes(tmp_path, "render")) - renders == 1 + 3, "one step for all, and what images need to catch up"


def test_every_robot_stands_in_its_own_house(make: Make) -> None:
    with make(num_envs=3, on_failure="raise") as envs:
        envs.begin(range(3), [EpisodeId(seed=0, init_state=number) for number in (2, 4, 4)])
        seen = envs.recv(min_rows=3)
        assert np.allclose(seen.observations["proprio"][:, 140], [3.0, 5.0, 5.0], atol=1e-4)
        assert (seen.observations["head_rgb"][1] == seen.observations["head_rgb"][2]).all(), "things are elsewhere"
        assert (seen.observations["head_rgb"][0] != seen.observations["head_rgb"][1]).any()


@pytest.mark.parametrize("fork", [False, True], ids=["release", "fork"])
def test_robots_never_stand_in_one_place(make: Make, tmp_path: Path, fork: bool) -> None:
    """OmniGibson's own reset would put those of all rows into the first house."""
    with make(num_envs=3, fork=fork) as envs:
        for numbers in ((2, 2, 2), (2, 2, 2), (4, 4, 1)):
            begin(envs, *numbers)
            act(envs, *[stay()] * 3)
    assert not notes(tmp_path, "collision")


@pytest.mark.parametrize(("version", "fork"), [("3.7.2", False), ("3.7.2", True), ("3.9.1", False)])
def test_what_is_cut_up_in_one_house_is_gone_only_there(make: Make, version: str, fork: bool) -> None:
    with make(BASKETS, 3, version=version, fork=fork, on_failure="raise", max_episode_steps=9) as envs:
        fresh = begin(envs, 2, 3, 3)
        for cut in range(3):
            act(envs, *[stay(right=SLICE if row == cut else 1.0) for row in range(3)])
            seen = begin(envs, 2, 3, 3)  # the first time round, instances are those that lie there
            assert all(np.allclose(seen[name], fresh[name], atol=1e-4) for name in fresh)
            act(envs, *[stay(right=SLICE if row == cut else 1.0) for row in range(3)])
            begin(envs, 1, 1, 1)
            seen = begin(envs, 2, 3, 3)
            assert all(np.allclose(seen[name], fresh[name], atol=1e-4) for name in fresh)


@pytest.mark.parametrize("version", ["3.7.2", "3.9.1"])
def test_what_comes_into_being_counts_in_its_own_house_only(make: Make, version: str) -> None:
    """Halves of logs are no things before there are any."""
    options = {"online_object_sampling": True, "scene_model": houses.SCENE, "max_chunk": 64}
    for chopping in range(2):
        with make("chopping_wood", 2, version=version, on_failure="raise", **options) as envs:
            for seed in range(2):
                envs.reset(seed=seed)
                actions = np.repeat(np.stack([stay(left=1.0)] * 24)[None], 2, axis=0)
                actions[chopping, ::2, 14] = -1.0
                chunk = envs.step_chunk(actions)
                assert chunk.success.tolist() == [row == chopping for row in range(2)]
                assert not chunk.rewards[1 - chopping].any()


@pytest.mark.slow
def test_episodes_are_the_same_however_rows_are_grouped_and_reset(make: Make) -> None:
    """Three groups of four, as GRPO plays them: the same instance, four attempts."""
    episodes = [EpisodeId(seed=seed, index=index) for seed in range(3) for index in range(4)]
    found = []
    for num_envs, rows, fork in ((1, 1, False), (4, 2, False), (4, 4, True)):
        with make(BASKETS, num_envs, rows_per_worker=rows, fork=fork, max_episode_steps=20) as envs:
            policy = make_policy("random", envs.simulator_spec)
            played = list(Runner(envs, policy, RunnerConfig(steps_per_call=4)).play(episodes))
        found.append([(episode.length, episode.total_reward, episode.last_info["q_score"]) for episode in played])
        starts = np.stack([episode.observations["proprio"][0] for episode in played]).reshape(3, 4, -1)
        assert np.allclose(starts, starts[:, :1], atol=1e-4), "attempts of a group begin alike"
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) > 2, "attempts differ"


# -- instances --------------------------------------------------------------------------------------------------------


def test_a_seed_stands_for_an_instance_and_a_group_shares_one(make: Make) -> None:
    with make(BASKETS, 4) as envs:
        drawn = set()
        for seed in range(10):
            envs.begin(range(4), [EpisodeId(seed=seed, index=index) for index in range(4)])
            chunk = envs.recv(min_rows=4)
            (instance,) = set(chunk.infos["instance"].tolist())
            drawn.add(instance)
            assert np.allclose(chunk.observations["proprio"], chunk.observations["proprio"][0], atol=1e-4)
            for name in ("head_rgb", "left_wrist_rgb"):
                assert (chunk.observations[name] == chunk.observations[name][0]).all()
        assert drawn <= set(range(6)), "6 and 7 are for evaluation"
        assert len(drawn) > 3


def test_instances_are_chosen_by_split_by_number_or_by_episode(make: Make) -> None:
    with make(instances="eval", on_failure="raise") as envs:
        assert {int(envs.reset(seed=seed)[1]["instance"][0]) for seed in range(8)} == {6, 7}
        envs.begin([0], EpisodeId(seed=0, init_state=3))
        assert envs.recv().infos["instance"][0] == 3
        envs.begin([0], EpisodeId(seed=0, init_state=99))
        with pytest.raises(SimulatorError, match="no instance 99; there are 0 to 7"):
            envs.recv()
    with make(version="3.9.1", instances="eval") as envs:
        assert {int(envs.reset(seed=seed)[1]["instance"][0]) for seed in range(8)} <= {301, 302, 303}
    with make(instances=[5]) as envs:
        assert {int(envs.reset(seed=seed)[1]["instance"][0]) for seed in range(4)} == {5}
    with pytest.raises(StartError, match="no instance 12"):
        make(instances=[5, 12])
    with pytest.raises(StartError, match="choose from train, eval"):
        make(instances="test")


def test_things_rest_where_the_instance_has_them(make: Make, tmp_path: Path) -> None:
    with make(BASKETS, 2) as envs:
        envs.begin([0, 1], [EpisodeId(seed=0, init_state=number) for number in (3, 5)])
        envs.recv(min_rows=2)
    for number, placed in zip((3, 5), map(json.loads, notes(tmp_path, "things")[-2:]), strict=True):
        wanted = {
            name: state["root_link"]["pos"]
            for name, state in houses.instance(BASKETS, number).items()
            if name != "robot_poses" and not name.startswith("agent.")
        }
        # Things jitter when they are put somewhere: for one step, if they are kept still after it.
        assert all(np.allclose(placed[name], wanted[name], atol=2e-3) for name in wanted)
    assert not notes(tmp_path, "restless"), "things must have had the time to come to rest"
    with make(BASKETS) as envs:
        envs.begin([0], EpisodeId(seed=0, init_state=1))
        first = envs.recv().observations["head_rgb"].copy()
        for _ in range(3):
            envs.begin([0], EpisodeId(seed=0, init_state=2))
            envs.recv()
            envs.begin([0], EpisodeId(seed=0, init_state=1))
            assert (envs.recv().observations["head_rgb"] == first).all()


def begin(envs: Any, *numbers: int) -> Any:
    """Begin an episode in every row from an instance."""
    envs.begin(range(len(numbers)), [EpisodeId(seed=0, init_state=number) for number in numbers])
    seen = envs.recv(min_rows=len(numbers))
    return {name: value.copy() for name, value in seen.observations.items()}


@pytest.mark.parametrize("fork", [False, True], ids=["release", "fork"])
@pytest.mark.parametrize("version", ["3.7.2", "3.9.1"])
def test_nothing_of_an_episode_is_left_in_the_next(make: Make, version: str, fork: bool) -> None:
    """Neither joints, nor furniture that was pushed, nor what was cut up, nor where another instance had things."""
    with make(BASKETS, version=version, fork=fork, on_failure="raise") as envs:
        fresh = {number: begin(envs, number) for number in (2, 3)}
        for number, right in ((2, 1.0), (3, SLICE), (3, 1.0), (3, SLICE), (2, SLICE)):
            moved = act(envs, stay(left=-1.0, right=right, drive=1.0, arm=0.7)).observations
            assert moved["state"][0, 7] == pytest.approx(0.7)
            seen = begin(envs, number)
            for name, value in fresh[number].items():
                assert np.allclose(seen[name], value, atol=1e-5), f"{name} differs"
    with make(BASKETS, version=version, fork=fork, max_episode_steps=1) as envs:
        begin(envs, 2)
        assert act(envs, stay(left=-1.0, right=SLICE)).infos["q_score"][0] == 1 / 16
        begin(envs, 3)
        chunk = act(envs, stay())
        assert (chunk.rewards[0, 0], chunk.infos["q_score"][0]) == (0.0, 0.0)


def test_an_instance_without_a_pose_of_the_robot_does_not_take_the_last_ones(make: Make, tmp_path: Path) -> None:
    houses.build(tmp_path, (RADIO, BASKETS))
    folder = next((tmp_path / "data").rglob(f"*_task_{RADIO}_instances"))
    state = houses.instance(RADIO, 3)
    del state["robot_poses"]
    with make(on_failure="raise") as envs:
        (folder / f"{houses.SCENE}_task_{RADIO}_0_3_template-tro_state.json").write_text(json.dumps(state))
        bare = begin(envs, 3)["proprio"][0, 140:143]
        assert begin(envs, 5)["proprio"][0, 140] == 6.0
        assert np.allclose(begin(envs, 3)["proprio"][0, 140:143], bare)


def test_another_task_needs_a_group_of_its_own(make: Make) -> None:
    with make(on_failure="raise") as envs:
        envs.begin([0], EpisodeId(task=BASKETS, seed=0))
        with pytest.raises(SimulatorError, match="needs a group of its own"):
            envs.recv()


# -- starting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["OMNIGIBSON_DATA_PATH", "ISAAC_PATH"])
def test_a_variable_that_is_missing_or_wrong_is_named_with_what_it_should_hold(make: Make, name: str) -> None:
    meaning = {"OMNIGIBSON_DATA_PATH": "folder of BEHAVIOR's datasets", "ISAAC_PATH": "folder of Isaac Sim"}[name]
    with pytest.raises(StartError, match=rf"{name} is not set \(it should hold the {meaning}"):
        make(env={name: ""})
    with pytest.raises(StartError, match=rf"{name} is /nowhere, which is not that(.|\n)*install_behavior"):
        make(env={name: "/nowhere"})


def test_all_missing_variables_are_named_at_once(make: Make) -> None:
    with pytest.raises(StartError, match=r"OMNIGIBSON_DATA_PATH is not set(.|\n)*ISAAC_PATH is not set"):
        make(env={"OMNIGIBSON_DATA_PATH": "", "ISAAC_PATH": ""})
    with pytest.raises(StartError, match="EXP_PATH is /nowhere"):
        make(env={"EXP_PATH": "/nowhere"})


def test_folders_may_be_relative_or_begin_at_home(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OmniGibson and Kit would take them as they are, from wherever they work."""
    monkeypatch.chdir(tmp_path)
    with make(env={"OMNIGIBSON_DATA_PATH": "data", "ISAAC_PATH": "~/isaac", "HOME": str(tmp_path)}) as envs:
        envs.reset(seed=0)
    assert notes(tmp_path, "data")[-1] == str(tmp_path / "data")


def test_the_isaac_sim_of_pip_needs_no_variable(make: Make, tmp_path: Path) -> None:
    lines = [
        f"os.environ[{name!r}] = {str(tmp_path / folder)!r}"
        for name, folder in (("ISAAC_PATH", "isaac"), ("EXP_PATH", "isaac/apps"))
    ]
    (tmp_path / "isaacsim.py").write_text("\n".join(["import os", *lines]))
    path = os.pathsep.join([str(houses.STANDIN), str(tmp_path)])
    with make(env={"ISAAC_PATH": "", "PYTHONPATH": path}) as envs:
        envs.reset(seed=0)


def test_a_missing_omnigibson_is_told_with_where_to_get_it(make: Make) -> None:
    with pytest.raises(StartError, match=r"OmniGibson cannot be imported by(.|\n)*install_behavior"):
        make(env={"PYTHONPATH": ""})


@pytest.mark.parametrize(
    ("installed", "message"),
    [("1.1.1", r"supported are 3\.7\.2 .* and 3\.9\.1(.|\n)*of PyPI is too old"), ("4.0.0", "OmniGibson 4.0.0")],
)
def test_other_versions_are_refused_with_those_that_are_supported(make: Make, installed: str, message: str) -> None:
    with pytest.raises(StartError, match=message):
        make(env={"OMNIGIBSON_STANDIN_VERSION": installed})


def test_an_isaac_sim_of_another_version_is_refused_before_it_is_started(make: Make, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"Isaac Sim 4\.5\.0(.|\n)*made for 5\.1\.0"):
        make(env={"OMNIGIBSON_STANDIN_VERSION": "3.9.1"})
    assert not notes(tmp_path, "launch")


@pytest.mark.parametrize("fault", ["launch_error=2", "scene_error=2"])
def test_a_launch_that_fails_is_tried_three_times(make: Make, tmp_path: Path, fault: str) -> None:
    with make(num_envs=2, faults=fault) as envs:
        envs.reset(seed=0)
        assert act(envs, stay(), stay()).num_steps.tolist() == [1, 1]
    assert len(notes(tmp_path, "launch")) == 1
    word = fault.partition("=")[0]
    with pytest.raises(StartError, match=r"could not be started in 3 attempts: Failed to"):
        make(faults=f"{word}=3")
    with pytest.raises(StartError, match="in 1 attempts"):
        make(faults=f"{word}=1", launch_attempts=1)


def test_a_launch_that_hangs_or_crashes_is_ended_and_told(make: Make) -> None:
    with pytest.raises(ManyarmsError, match="did not start within 2 s"):
        make(faults="launch_hang", start_timeout=2.0)
    with pytest.raises(ManyarmsError, match="SIGABRT"):
        make(faults="launch_crash")


def test_it_has_the_time_to_compile_shaders(make: Make) -> None:
    with make() as envs:
        assert envs.config.start_timeout == 1200.0
    with make(start_timeout=99.0) as envs:
        assert envs.config.start_timeout == 99.0


def test_the_installed_numba_is_loaded_before_kit_brings_its_own(make: Make, tmp_path: Path) -> None:
    for name in ("llvmlite", "numba", "numba/np", "numba/core", "numba/core/runtime"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").touch()
    log = f"open({str(tmp_path / 'log')!r}, 'a').write('numba\\n')\n"
    (tmp_path / "site/numba/np/arrayobj.py").write_text(log)
    (tmp_path / "site/numba/core/runtime/context.py").write_text("raise ImportError('one that does not work')\n")
    path = os.pathsep.join([str(houses.STANDIN), str(houses.TESTS), str(tmp_path / "site")])
    with make(env={"PYTHONPATH": path}) as envs:
        envs.reset(seed=0)
    words = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
    assert words.index("numba") < words.index("launch")


def test_processes_have_caches_of_their_own_and_take_them_up_again(make: Make, tmp_path: Path) -> None:
    for _ in range(2):
        with make(num_envs=3, rows_per_worker=1) as envs:
            envs.reset(seed=0)
            assert sorted(path.name for path in (tmp_path / "appdata").iterdir()) == ["0", "1", "2"]


def test_it_closes_kit(make: Make, tmp_path: Path) -> None:
    with make() as envs:
        envs.reset(seed=0)
        act(envs, stay())
    assert len(notes(tmp_path, "close")) == 1


def test_the_process_stays_as_workers_must_be(make: Make) -> None:
    """Kit takes Ctrl-C and switches the garbage collector off."""
    with make() as envs:
        envs.reset(seed=0)
        os.kill(envs.worker_pids[0], signal.SIGINT)
        assert act(envs, stay()).num_steps[0] == 1


def test_the_garbage_collector_runs_again_and_arguments_are_not_kits(
    standin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--config", "mine.yaml"])
    monkeypatch.setattr(BehaviorSimulator, "_live", False)
    handler = signal.getsignal(signal.SIGINT)
    simulator = BehaviorSimulator(rows=1, task=RADIO, cameras=[])
    assert gc.isenabled()
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(SpecError, match="one Isaac Sim"):
        BehaviorSimulator(rows=1, task=RADIO)
    monkeypatch.setattr(standin.app, "close", lambda: None)
    simulator.close()


def test_it_starts_in_the_main_thread_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in houses.build(tmp_path, (RADIO,)).items():
        monkeypatch.setenv(name, value)
    said: list[str] = []

    def start() -> None:
        with pytest.raises(SpecError) as raised:
            BehaviorSimulator(rows=1, task=RADIO)
        said.append(str(raised.value))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in said[0]


def test_settings_are_made_before_anything_reads_them(make: Make, tmp_path: Path) -> None:
    for version in ("3.7.2", "3.9.1"):
        with make(version=version) as envs:
            envs.reset(seed=0)
    assert notes(tmp_path, "launch") == ["gpu=None headless=True viewer=False"] * 2
    env = config(tmp_path)["env"]
    assert (env["action_frequency"], env["rendering_frequency"], env["physics_frequency"]) == (30, 30, 120)
    assert env["automatic_reset"] is False


# -- GPUs -------------------------------------------------------------------------------------------------------------


def nvidia_smi(folder: Path, *lines: str) -> dict[str, str]:
    """Make a program that says what GPUs there are; return the path that finds it."""
    program = folder / "bin/nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def test_a_gpu_is_chosen_for_each_worker(make: Make, tmp_path: Path) -> None:
    with make(num_envs=2, rows_per_worker=1, egl_device=[0, 1]) as envs:
        envs.reset(seed=0)
    assert sorted(line.split()[0] for line in notes(tmp_path, "launch")) == ["gpu=0", "gpu=1"]
    with make(env={"OMNIGIBSON_GPU_ID": "3"}, egl_device=0) as envs:
        assert "on GPU 3" in envs.reset(seed=0)[1]["warnings"][0][0]
        assert "warnings" not in envs.reset(seed=0)[1], "told once"
    assert notes(tmp_path, "launch")[-1].startswith("gpu=3 ")


def test_old_drivers_and_gpus_without_ray_tracing_are_warned_of(make: Make, tmp_path: Path) -> None:
    path = nvidia_smi(tmp_path, "NVIDIA H100 80GB HBM3, 550.90.07, 9.0", "NVIDIA L40S, 550.90.07, 8.9")
    with make(env=path) as envs:
        warnings = envs.reset(seed=0)[1]["warnings"][0]
        assert "driver 570 or later" in warnings[0]
        assert "no ray-tracing cores" in warnings[1]
    with make(env=path, num_envs=1, egl_device=1) as envs:
        (warning,) = envs.reset(seed=0)[1]["warnings"][0]
        assert "may hang" in warning
    # In a placed run each process has a first worker, and the plan has looked at all of them.
    with make(env={**path, "MANYARMS_PLACED": "1"}, num_envs=1, egl_device=1) as envs:
        assert "warnings" not in envs.reset(seed=0)[1]


@pytest.mark.parametrize(
    ("name", "driver", "capability", "count"),
    [
        ("NVIDIA A100-SXM4-80GB", "535.1", 8.0, 1),
        ("NVIDIA A40", "535.1", 8.6, 0),
        ("NVIDIA H200", "570.86.15", 9.0, 1),
        ("NVIDIA H100 PCIe", "565.57", 9.0, 2),
        ("NVIDIA RTX PRO 6000 Blackwell", "560.1", 12.0, 1),
        ("NVIDIA GeForce RTX 4090", "535.1", 8.9, 0),
        ("Tesla V100-SXM2-32GB", "[N/A]", 7.0, 1),
    ],
)
def test_gpus_are_judged_by_what_they_are(name: str, driver: str, capability: float, count: int) -> None:
    assert len(install.complaints([install.Gpu(name, driver, capability)] * 2)) == count


def test_without_nvidia_smi_there_is_nothing_to_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", nvidia_smi(tmp_path, "NVIDIA T4, 535.1, [N/A]", "garbage")["PATH"])
    assert install.survey_gpus() == [install.Gpu("NVIDIA T4", "535.1", 0.0)]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install.survey_gpus() == []


# -- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "error"), [(HANG, WorkerTimeout), (CRASH, WorkerDied)])
def test_a_hang_and_a_crash_cost_the_episodes_of_their_group(make: Make, command: float, error: type) -> None:
    with make(BASKETS, 4, rows_per_worker=2, step_timeout=1.0) as envs:
        envs.reset(seed=0)
        chunk = act(envs, stay(), stay(right=command), stay(), stay())
        assert chunk.aborted.tolist() == [True, True, False, False]
        assert isinstance(envs.failures[0], error)
        for _ in range(2):
            chunk = act(envs, *[stay()] * 4)
        assert chunk.num_steps.tolist() == [1] * 4


@pytest.mark.parametrize(("rows", "aborted"), [(1, [False, True, False, False]), (2, [True, True, False, False])])
def test_an_error_of_omnigibson_costs_the_episodes_of_its_group(make: Make, rows: int, aborted: list[bool]) -> None:
    with make(BASKETS, 4, rows_per_worker=rows) as envs:
        envs.reset(seed=0)
        chunk = act(envs, stay(), stay(right=ERROR), stay(), stay())
        assert chunk.aborted.tolist() == aborted
        assert "articulation has exploded" in str(envs.failures[0])
        for _ in range(2):
            chunk = act(envs, *[stay()] * 4)
        assert chunk.num_steps.tolist() == [1] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cameras": ["back"]}, "choose from head"),
        ({"grasping_mode": "magic"}, "choose from assisted"),
        ({"image_size": 4}, "width and height"),
        ({"launch_attempts": 0}, "launch_attempts is 0"),
        ({"scene_model": "no_such_house"}, "no_such_house"),
    ],
)
def test_wrong_options_say_what_is_right(make: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(StartError, match=message):
        make(**options)


@pytest.mark.parametrize("version", ["3.8", "3.10"])
def test_it_runs_in_other_pythons(make: Make, tmp_path: Path, version: str) -> None:
    if version not in interpreters.available():
        pytest.skip(f"there is no Python {version} here")
    links = tmp_path / "links"
    links.mkdir()
    for name in ("bddl", "future"):
        origin = importlib.import_module(name).__file__
        assert origin is not None
        (links / name).symlink_to(Path(origin).parent)
    path = os.pathsep.join([str(houses.STANDIN), str(links)])
    with make(num_envs=2, python=str(interpreters.environment(version)), env={"PYTHONPATH": path}) as envs:
        envs.reset(seed=0)
        assert act(envs, stay(), stay(left=-1.0)).success.tolist() == [False, True]


# -- the stand-in itself ----------------------------------------------------------------------------------------------


def written(function: Any) -> list[str]:
    """Write parameters as the list of OmniGibson's signatures does."""
    if isinstance(function, property):
        function = function.fget
    parts = []
    for parameter in inspect.signature(function).parameters.values():
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        parts.append(stars + parameter.name + default)
    return parts


def test_the_stand_in_has_the_signatures_of_omnigibson(standin: Any) -> None:
    checked = set()
    for module_name, members in SIGNATURES["signatures"].items():
        module = importlib.import_module(module_name)
        for name, member in members.items():
            ours = vars(getattr(module, name))
            for method, parameters in member["methods"].items():
                if method in ours:
                    assert written(ours[method]) == parameters, f"{module_name}.{name}.{method}"
                    checked.add(f"{name}.{method}")
            public = {key for key, value in ours.items() if key[0] != "_" and callable(value)}
            inherited = {
                method for each in SIGNATURES["signatures"].values() for c in each.values() for method in c["methods"]
            }
            assert public <= set(member["methods"]) | inherited, f"{name} has methods that OmniGibson lacks"
    used = {
        *("VectorEnvironment.__init__", "VectorEnvironment.step", "VectorEnvironment.reset", "VectorEnvironment.close"),
        *("Environment.__init__", "Environment.load_observation_space", "Environment.get_obs", "Environment.reset"),
        *("Environment.step", "Environment.task", "Environment.scene", "Environment.robots"),
        *("BehaviorTask.__init__", "BehaviorTask.reset", "BaseTask.reset", "BaseTask.step", "BaseTask.success"),
    }
    assert used <= checked, f"the adapter uses what was not checked: {sorted(used - checked)}"


def plain_config(**task: Any) -> dict[str, Any]:
    from manyarms.simulators.behavior.simulator import Options, configuration

    made = configuration(Options(image_size=16), RELEASES["3.7"], RADIO, houses.SCENE, 100)
    made["task"].update(task)
    return made


def test_the_stand_in_has_the_defects_of_omnigibson(standin: Any) -> None:
    made = plain_config(termination_config={"max_steps": 5}, use_presampled_robot_pose=True)
    envs = standin.VectorEnvironment(2, made)
    envs.reset()
    truncated = [envs.step([stay(drive=1.0)] * 2)[3][0] for _ in range(7)]
    assert truncated.index(True) == 5, "a limit of five truncates the sixth step"
    images = envs.envs[0].get_obs()[0]["robot_r1"]
    assert images["robot_r1:zed_link:Camera:0"]["rgb"].cpu().numpy().shape == (16, 16, 4)
    with pytest.raises(TypeError, match="cuda"):
        np.asarray(images["proprio"])

    envs.step([stay(drive=1.0)] * 2)
    before = envs.envs[1].robots[0].position.copy()
    envs.envs[0].reset()
    assert (envs.envs[1].robots[0].position != before).any(), "a reset advances the neighbours"
    envs.envs[1].reset(get_obs=False)
    assert envs.envs[1].robots[0].position[0] == 0.0, "robots are put into the first house"
    with pytest.raises(TypeError):
        envs.step([stay()] * 2, get_obs=False)
    with pytest.raises(AttributeError, match="already been used"):
        standin.gm.HEADLESS = False
    standin.sim.stop()


def test_automatic_resets_of_the_stand_in_return_a_tuple(standin: Any) -> None:
    made = plain_config()
    made["env"]["automatic_reset"] = True
    envs = standin.VectorEnvironment(1, made)
    observations, *_ = envs.step([stay(left=-1.0)])
    assert isinstance(observations[0], tuple)


def test_the_stand_in_needs_its_variables(standin: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ISAAC_PATH")
    with pytest.raises(KeyError, match="ISAAC_PATH"):
        standin.VectorEnvironment(1, plain_config())
    forget_standin()
    monkeypatch.setenv("OMNIGIBSON_DATA_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(AssertionError, match="does not exist"):
        importlib.import_module("omnigibson")


def test_online_sampling_with_stored_poses_is_refused_by_the_stand_in(standin: Any) -> None:
    with pytest.raises(AssertionError, match="presampled robot pose"):
        standin.VectorEnvironment(1, plain_config(online_object_sampling=True, use_presampled_robot_pose=True))


def test_instances_that_do_not_fit_are_told(make: Make, tmp_path: Path) -> None:
    houses.build(tmp_path, (RADIO, BASKETS))
    (tmp_path / "data").rename(tmp_path / "other")
    variables = {"OMNIGIBSON_DATA_PATH": str(tmp_path / "other")}
    folder = next((tmp_path / "other").rglob(f"*_task_{RADIO}_instances"))
    path = folder / f"{houses.SCENE}_task_{RADIO}_0_1_template-tro_state.json"
    path.write_text(json.dumps({**houses.instance(RADIO, 1), "unicorn.n.01_1": {}}))
    shutil.rmtree(tmp_path / "data", ignore_errors=True)
    with make(env=variables, on_failure="raise") as envs:
        envs.begin([0], EpisodeId(seed=0, init_state=1))
        with pytest.raises(SimulatorError, match="unicorn"):
            envs.recv()
