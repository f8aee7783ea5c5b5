"""RLBench's adapter: on a stand-in here, and the same on RLBench itself where COPPELIASIM_ROOT is set.

On RLBench: ``pytest -m real_rlbench tests/integration/test_rlbench.py``, with RLBENCH_PYTHON for another interpreter.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interpreters
import manyarms
from manyarms import EpisodeId
from manyarms.errors import ActionError, ManyarmsError, SimulatorError, StartError, WorkerDied, WorkerTimeout
from manyarms.simulators import graphics
from manyarms.simulators.choices import snake_case
from manyarms.simulators.rlbench import install
from manyarms.simulators.rlbench.options import MODES, ROBOTS, with_unit_quaternion
from manyarms.testing import CHECKS, Subject
from manyarms.vector.display import DisplayConfig, Displays
from manyarms.vector.egl import egl_failure

TESTS = Path(__file__).resolve().parent.parent
STANDIN = TESTS / "rlbench_standin"

#: Gripper commands at which the stand-in misbehaves (its world.py).
HANG, CRASH, VREP_ERROR = 0.125, 0.25, 0.375

DOWN = (0.0, 0.0, 0.0, 1.0)

Make = Callable[..., Any]


def standin_options(root: Path, **env: str) -> dict[str, Any]:
    """Return where workers find the stand-in, and what RLBench would need to be set."""
    path = os.pathsep.join([str(STANDIN), str(TESTS)])
    variables = {"PYTHONPATH": path, "COPPELIASIM_ROOT": str(root), "DISPLAY": ":99", "QT_QPA_PLATFORM": ""}
    return {"env": {**variables, "RLBENCH_STANDIN_LOG": str(root / "log"), **env}}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make environments on the stand-in; what is in `faults` and `env` goes to it."""

    def make_envs(
        task: str = "reach_target", num_envs: int = 1, faults: str = "", env: Any = None, **options: Any
    ) -> Any:
        found = standin_options(tmp_path, RLBENCH_STANDIN_FAULTS=faults, **(env or {}))
        return manyarms.make_vec(f"rlbench/{task}", num_envs, **{"image_size": (24, 16), **found, **options})

    return make_envs


@pytest.fixture(params=["standin", pytest.param("real", marks=[pytest.mark.real_rlbench])])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Options with which RLBench runs here: those of the stand-in, or of RLBench itself."""
    if request.param == "standin":
        yield standin_options(tmp_path)
        return
    if not os.environ.get("COPPELIASIM_ROOT"):
        pytest.skip("COPPELIASIM_ROOT is not set: there is no CoppeliaSim here")
    python = os.environ.get("RLBENCH_PYTHON")
    yield {"display": "xvfb", **({"python": python} if python else {})}


def is_real(world: dict[str, Any]) -> bool:
    return "env" not in world


def notes(root: Path, word: str) -> list[str]:
    """Return what the stand-in has written down under a word."""
    lines = (root / "log").read_text().splitlines() if (root / "log").exists() else []
    return [line for line in lines if line.split()[0] == word]


def pose_of(envs: Any, row: int = 0) -> np.ndarray:
    return np.array(envs.observations["gripper_pose"][row], np.float32)


def toward(pose: np.ndarray, dx: float = 0.0, grip: float = 1.0) -> np.ndarray:
    """Return an action for a pose near this one."""
    action = np.append(pose, grip).astype(np.float32)
    action[0] += dx
    return action


# -- on both ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conformance(world: dict[str, Any], check: Callable[[Subject], None]) -> None:
    real = is_real(world)
    options = {**world, "arm_mode": "joint_velocity", "image_size": (48, 32), "cameras": ["front"]}
    # Re-seeding a CoppeliaSim that has been used drifts by 1e-3 in the joints, and images follow: states only.
    if real and check.__name__ != "check_cameras_render_only_when_asked":
        options["cameras"] = []
    # What a drift of 1e-3 does to forces and velocities has no bound.
    loose = ("joint_forces", "joint_velocities", "gripper_touch_forces") if real else ()
    check(Subject("rlbench/reach_target", options, tolerance=2e-2 if real else 0.0, steps=6, ignore=loose))


def test_images_are_height_by_width_and_everything_is_in_its_place(world: dict[str, Any]) -> None:
    options = {"cameras": ["front", "wrist"], "image_size": (64, 48), "depth": True, "mask": True, "point_cloud": True}
    with manyarms.make_vec("rlbench/ReachTarget", 1, **world, **options) as envs:
        observations, infos = envs.reset(seed=0)
        for camera in ("front", "wrist"):
            assert observations[f"{camera}_rgb"].shape == (1, 48, 64, 3)
            assert observations[f"{camera}_rgb"].any(), "nothing was drawn"
            assert observations[f"{camera}_depth"].shape == (1, 48, 64)
            assert observations[f"{camera}_mask"].shape == (1, 48, 64)
            assert observations[f"{camera}_point_cloud"].shape == (1, 48, 64, 3)
        assert observations["joint_positions"].shape == (1, 7)
        assert observations["gripper_matrix"].shape == (1, 4, 4)
        assert observations["gripper_touch_forces"].shape == (1, 6)
        assert observations["task_low_dim_state"].shape == (1, 3)
        assert np.linalg.norm(observations["gripper_pose"][0, 3:]) == pytest.approx(1.0, abs=1e-4)
        assert infos["descriptions"][0]
        assert 0 <= infos["variation"][0] < envs.call("variation_count")[0]


def test_an_ik_failure_is_a_step_that_did_nothing_and_is_reported(world: dict[str, Any]) -> None:
    with manyarms.make_vec("rlbench/reach_target", 1, **world, cameras=[], arm_mode="ik") as envs:
        envs.reset(seed=0)
        pids = envs.worker_pids
        pose = pose_of(envs)
        far = toward(pose, dx=1.5)
        chunk = envs.step_chunk(np.stack([far, toward(pose), far, toward(pose)])[None])
        assert chunk.num_steps[0] == 4
        assert not chunk.aborted[0]
        assert chunk.rewards[0, 0] == 0.0
        assert "IK" in chunk.infos["invalid_action"][0]
        assert chunk.infos["invalid_actions"][0] == 2
        assert envs.worker_pids == pids
        assert np.allclose(pose_of(envs)[:3], pose[:3], atol=0.02)


def test_refused_actions_are_counted_from_the_beginning_of_the_episode(world: dict[str, Any]) -> None:
    with manyarms.make_vec("rlbench/reach_target", 1, **world, cameras=[], arm_mode="ik") as envs:
        counted = []
        for refused in (2, 1):
            _, infos = envs.reset(seed=0)
            assert "invalid_actions" not in infos
            far = toward(pose_of(envs), dx=1.5)
            counted.append(int(envs.step_chunk(np.stack([far] * refused)[None]).infos["invalid_actions"][0]))
        assert counted == [2, 1]


def test_a_pose_is_reached_and_planning_refuses_what_is_outside(world: dict[str, Any]) -> None:
    with manyarms.make_vec("rlbench/reach_target", 1, **world, cameras=[], arm_mode="planning") as envs:
        envs.reset(seed=0)
        pose = pose_of(envs)
        goal = pose.copy()
        goal[2] -= 0.1
        envs.step_chunk(toward(goal)[None, None])
        assert np.allclose(pose_of(envs)[:3], goal[:3], atol=0.02)
        chunk = envs.step_chunk(toward(pose, dx=1.7)[None, None])
        assert "outside of workspace" in chunk.infos["invalid_action"][0]


def test_not_a_number_is_refused_on_both_sides(world: dict[str, Any]) -> None:
    with manyarms.make_vec("rlbench/reach_target", 1, **world, cameras=[], step_timeout=60.0) as envs:
        envs.reset(seed=0)
        good = toward(pose_of(envs))
        bad = good.copy()
        bad[2] = np.nan
        with pytest.raises(ActionError, match="nan"):
            envs.step_chunk(bad[None, None])
        assert envs.call("step", bad)[0][0] == 0.0  # past the main side, straight to the adapter
        assert envs.call("info")[0]["invalid_action"] == "the action is not finite"
        assert envs.step_chunk(good[None, None]).num_steps[0] == 1


def test_live_demonstrations_reach_the_target(world: dict[str, Any]) -> None:
    with manyarms.make_vec("rlbench/reach_target", 1, **world, cameras=["front"], image_size=(32, 24)) as envs:
        envs.reset(seed=0)
        demos = envs.call("demos", 2, seed=3, cameras=["front"])[0]
        assert len(demos) == 2
        for demo in demos:
            seen = demo["observations"]
            assert seen["front_rgb"].shape[1:] == (24, 32, 3)
            assert len(demo["joint_position_actions"]) == len(seen["joint_positions"]) - 1
            assert np.linalg.norm(seen["gripper_pose"][-1, :3] - seen["task_low_dim_state"][-1]) < 0.1
        envs.reset(seed=0)
        assert envs.step_chunk(toward(pose_of(envs))[None, None]).num_steps[0] == 1


# -- choices ----------------------------------------------------------------------------------------------------------


def test_tasks_go_by_either_name_and_an_unknown_one_gets_suggestions(make: Make) -> None:
    with make("OpenDrawer", cameras=[]) as envs:
        assert [task.name for task in envs.simulator_spec.tasks] == ["open_drawer"]
        assert envs.simulator_spec.tasks[0].descriptions[0] == "open drawer"
    with pytest.raises(ManyarmsError, match="open_drawer"):
        make("open_drawr", cameras=[])


def test_all_106_tasks_run_in_one_row(make: Make) -> None:
    from rlbench_standin.rlbench.tasks import NAMES  # the module only: nothing is launched

    assert len(NAMES) == 106
    with make("", cameras=[], tasks=NAMES, arm_mode="joint_velocity") as envs:
        assert [task.name for task in envs.simulator_spec.tasks] == NAMES
        for name in ("open_drawer", "reach_target", "setup_chess"):
            envs.begin([0], EpisodeId(task=name, seed=1))
            chunk = envs.recv()
            assert chunk.infos["descriptions"][0][0] == name.replace("_", " ")
            length = chunk.observations["task_low_dim_state_length"][0]
            assert not chunk.observations["task_low_dim_state"][0, length:].any()


def test_names_turn_both_ways() -> None:
    from rlbench_standin.rlbench.tasks import NAMES

    for name in NAMES:
        assert snake_case("".join(word[0].upper() + word[1:] for word in name.split("_"))) == name
        assert snake_case(name) == name


def test_a_variation_is_chosen_by_option_by_episode_or_by_seed(make: Make) -> None:
    with make(cameras=[]) as envs:
        seen = set()
        for seed in range(8):
            envs.begin([0], EpisodeId(seed=seed))
            seen.add(int(envs.recv().infos["variation"][0]))
        assert len(seen) > 2
        envs.begin([0], EpisodeId(seed=0, init_state=5))
        assert envs.recv().infos["variation"][0] == 5
    with make(cameras=[], variation=7) as envs:
        assert envs.reset(seed=0)[1]["variation"][0] == 7
    with make(cameras=[], variation=18, on_failure="raise") as envs, pytest.raises(SimulatorError, match="0 to 17"):
        envs.reset(seed=0)


@pytest.mark.parametrize("mode", list(MODES))
def test_every_arm_mode_moves_the_arm(world: dict[str, Any], mode: str) -> None:
    with manyarms.make_vec("rlbench/reach_target", 1, **world, cameras=[], arm_mode=mode) as envs:
        observations, _ = envs.reset(seed=0)
        before = observations["joint_positions"][0].copy()
        pose = pose_of(envs)
        numbers = [0.05] * 7
        if MODES[mode].pose:  # two centimetres down
            pose[:3] += (0.0, 0.0, -0.02)
            numbers = [0.0, 0.0, -0.02, *DOWN] if mode.startswith("delta") else pose.tolist()
        chunk = envs.step_chunk(np.array([[[*numbers, 0.0]]], np.float32))
        assert "invalid_action" not in chunk.infos
        assert (chunk.observations["joint_positions"][0] != before).any()
        assert chunk.observations["gripper_open"][0] == 0.0


@pytest.mark.parametrize("robot", list(ROBOTS))
def test_every_robot_has_its_joints(world: dict[str, Any], robot: str) -> None:
    options = {"cameras": [], "robot": robot, "arm_mode": "joint_velocity"}
    with manyarms.make_vec("rlbench/reach_target", 1, **world, **options) as envs:
        assert envs.reset(seed=0)[0]["joint_positions"].shape == (1, ROBOTS[robot])
        assert envs.single_action_space.shape == (ROBOTS[robot] + 1,)
        moved = envs.step_chunk(np.full((1, 2, ROBOTS[robot] + 1), 0.3, np.float32))
        assert moved.num_steps[0] == 2


def test_rows_change_tasks_and_a_variation_is_the_one_asked_for(world: dict[str, Any]) -> None:
    options = {"cameras": [], "tasks": ["reach_target", "open_drawer"], "arm_mode": "joint_velocity"}
    with manyarms.make_vec("rlbench/", 1, **world, **options) as envs:
        for task, variation in (("open_drawer", 0), ("reach_target", 5), ("open_drawer", 1)):
            envs.begin([0], EpisodeId(task=task, seed=1, init_state=variation))
            chunk = envs.recv()
            assert chunk.infos["variation"][0] == variation
            assert task.split("_")[1] in chunk.infos["descriptions"][0][0]
            envs.send([0], np.full((1, 2, 8), 0.1, np.float32))
            assert envs.recv().num_steps[0] == 2


def test_filmed_steps_bring_pictures_and_those_between_none(world: dict[str, Any]) -> None:
    options = {"cameras": ["front"], "image_size": (48, 32), "arm_mode": "joint_velocity", "max_chunk": 8}
    with manyarms.make_vec("rlbench/reach_target", 1, **world, **options, render_every=4, profile=True) as envs:
        envs.reset(seed=0)
        chunk = envs.step_chunk(np.full((1, 8, 8), 0.5, np.float32))
        (frames,) = chunk.frames["front_rgb"]
        assert len(frames) == 1, "the fourth step; the eighth is the observation"
        assert frames[0].any()
        assert not np.array_equal(frames[0], chunk.observations["front_rgb"][0]), "the arm has moved on since"
        assert chunk.timing is not None
        assert chunk.timing.toggle > 0.0


def test_a_quaternion_is_forgiven_its_rounding_and_no_more(make: Make) -> None:
    rounded = with_unit_quaternion(np.array([0.0, 0, 0, 0.3, 0.4, 0.5, 0.709, 1.0]))
    assert np.linalg.norm(rounded[3:7]) == pytest.approx(1.0)
    with make(cameras=[]) as envs:
        envs.reset(seed=0)
        action = toward(pose_of(envs))
        action[3:7] *= 0.5
        assert "quaternion" in envs.step_chunk(action[None, None]).infos["invalid_action"][0]


def test_shaped_rewards_tell_success_too_and_are_refused_where_there_are_none(make: Make) -> None:
    with make(cameras=[], arm_mode="planning", shaped_rewards=True) as envs:
        observations, _ = envs.reset(seed=0)
        target = observations["task_low_dim_state"][0]
        action = np.array([*target, *DOWN, 1.0], np.float32)
        chunk = envs.step_chunk(action[None, None])
        assert chunk.rewards[0, 0] == pytest.approx(0.0, abs=1e-3)
        assert chunk.terminated[0]
        assert chunk.success[0]
    with pytest.raises(StartError, match="no shaped rewards for open_drawer"):
        make("open_drawer", cameras=[], shaped_rewards=True)


def test_success_ends_an_episode_and_time_truncates_it(make: Make) -> None:
    with make(cameras=[], arm_mode="planning") as envs:
        assert envs.simulator_spec.horizon == 200
        observations, _ = envs.reset(seed=0)
        action = np.array([*observations["task_low_dim_state"][0], *DOWN, 1.0], np.float32)
        chunk = envs.step_chunk(np.stack([action] * 3)[None])
        assert (chunk.num_steps[0], chunk.terminated[0], chunk.success[0]) == (1, True, True)
        assert chunk.rewards[0].tolist() == [1.0, 0.0, 0.0]
    with make(cameras=[], max_episode_steps=2) as envs:
        envs.reset(seed=0)
        chunk = envs.step_chunk(np.stack([toward(pose_of(envs))] * 3)[None])
        assert (chunk.num_steps[0], chunk.truncated[0]) == (2, True)


# -- rendering --------------------------------------------------------------------------------------------------------


def test_a_chunk_renders_once_and_only_what_is_looked_at(make: Make, tmp_path: Path) -> None:
    with make(cameras=["front", "wrist"]) as envs:
        envs.reset(seed=0)
        chunk = np.stack([toward(pose_of(envs))] * 16)[None]
        before = notes(tmp_path, "render")
        envs.step_chunk(chunk)
        assert notes(tmp_path, "render")[len(before) :] == ["render wrist rgb", "render front rgb"]
        before = notes(tmp_path, "render")
        envs.step_chunk(chunk, cameras=["wrist"])
        assert notes(tmp_path, "render")[len(before) :] == ["render wrist rgb"]
        before = notes(tmp_path, "render")
        envs.step_chunk(chunk, cameras=())
        assert notes(tmp_path, "render") == before


def test_without_cameras_there_is_no_rendering_and_no_display(make: Make, tmp_path: Path) -> None:
    with make(cameras=[], env={"DISPLAY": ""}) as envs:
        envs.reset(seed=0)
        envs.step_chunk(np.stack([toward(pose_of(envs))] * 4)[None])
    assert not notes(tmp_path, "render")
    assert not notes(tmp_path, "camera")


def test_cameras_without_a_display_are_explained(make: Make) -> None:
    with pytest.raises(StartError, match=r"need an X display(.|\n)*xvfb"):
        make(env={"DISPLAY": ""})


def test_it_runs_as_fast_as_it_can_with_the_renderer_that_fits(make: Make, tmp_path: Path) -> None:
    with make(cameras=["front"], image_size=(64, 32), env={"LIBGL_ALWAYS_SOFTWARE": "1"}):
        pass
    assert notes(tmp_path, "camera") == ["camera front OPENGL 64x32"]
    assert notes(tmp_path, "bool") == ["bool 25 False"]
    assert notes(tmp_path, "int") == ["int 26 0"]
    with make(cameras=["wrist"], renderer="opengl3", idle_fps=4):
        pass
    assert notes(tmp_path, "camera")[-1] == "camera wrist OPENGL3 24x16"
    assert notes(tmp_path, "int")[-1] == "int 26 4"


# -- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "error"), [(HANG, WorkerTimeout), (CRASH, WorkerDied), (VREP_ERROR, SimulatorError)]
)
def test_a_hang_a_crash_and_a_refused_call_cost_one_episode(make: Make, command: float, error: type) -> None:
    with make(num_envs=2, cameras=[], step_timeout=1.0) as envs:
        envs.reset(seed=0)
        actions = np.stack([toward(pose_of(envs, row), grip=grip) for row, grip in enumerate((1.0, command))])
        chunk = envs.step_chunk(actions[:, None])
        assert chunk.aborted.tolist() == [False, True]
        assert isinstance(envs.failures[0], error)
        for _ in range(3):
            actions = np.stack([toward(pose_of(envs, row)) for row in range(2)])
            chunk = envs.step_chunk(actions[:, None])
        assert chunk.num_steps.tolist() == [1, 1]


def test_a_task_that_cannot_be_placed_gives_way_to_the_next_layout(make: Make) -> None:
    with make(cameras=[], faults="unplaceable=2") as envs:
        assert envs.reset(seed=0)[1]["reset_attempts"][0] == 3


def test_a_task_that_cannot_be_placed_at_first_gets_other_random_numbers(make: Make) -> None:
    with make(cameras=[], faults="unplaceable_first=2") as envs:
        assert envs.reset(seed=0)[1]["variation"].shape == (1,)
    with pytest.raises(StartError, match="Could not place the task reach_target"):
        make(cameras=[], faults="unplaceable_first=9")


def test_being_refused_earns_what_the_arm_s_place_is_worth(make: Make) -> None:
    with make(cameras=[], arm_mode="ik", shaped_rewards=True) as envs:
        observations, _ = envs.reset(seed=0)
        pose, target = pose_of(envs), observations["task_low_dim_state"][0]
        chunk = envs.step_chunk(np.stack([toward(pose, dx=1.5), toward(pose)])[None])
        assert "IK" in chunk.infos["invalid_action"][0]
        assert chunk.rewards[0].tolist() == pytest.approx([-np.linalg.norm(pose[:3] - target)] * 2, abs=1e-5)


@pytest.mark.parametrize("mode", ["planning", "delta_planning"])
def test_planning_to_where_the_arm_is_does_not_hang(make: Make, mode: str) -> None:
    with make(cameras=[], arm_mode=mode, step_timeout=20.0) as envs:
        envs.reset(seed=0)
        here = toward(pose_of(envs)) if mode == "planning" else np.array([0.0, 0, 0, *DOWN, 1.0], np.float32)
        chunk = envs.step_chunk(np.stack([here] * 3)[None])
        assert chunk.num_steps[0] == 3
        assert not chunk.aborted[0]


def test_demonstrations_that_fail_leave_the_arm_in_its_mode(make: Make) -> None:
    with make(cameras=[], arm_mode="joint_velocity", faults="no_demos", on_failure="raise") as envs:
        before = envs.reset(seed=0)[0]["joint_positions"].copy()
        with pytest.raises(SimulatorError, match="Could not collect demos"):
            envs.call("demos", 1)
        chunk = envs.step_chunk(np.full((1, 1, 8), 0.5, np.float32))
        assert not np.allclose(chunk.observations["joint_positions"], before)


def test_a_camera_that_is_not_in_the_scene_is_refused_before_coppeliasim_is_asked(make: Make) -> None:
    with make(cameras=["front"], on_failure="raise") as envs:
        envs.reset(seed=0)
        for method, arguments in (("render", ("overhead",)), ("demos", (1, None, None, ["overhead"]))):
            with pytest.raises(SimulatorError, match="no camera named overhead: this RLBench was started with front"):
                envs.call(method, *arguments)
        assert envs.call("render", "front")[0].shape == (16, 24, 3)


def test_a_worker_whose_simulator_stays_broken_ends_itself(make: Make) -> None:
    message = r"exit code 70(.|\n)*cannot go on with reach_target: CoppeliaSim refused"
    with (
        make(cameras=[], faults="vrep_reset=5", on_failure="raise") as envs,
        pytest.raises(WorkerDied, match=message),
    ):
        envs.reset(seed=0)


def test_one_refused_call_at_a_reset_is_mended_by_another(make: Make) -> None:
    with make(cameras=[], faults="vrep_reset=1") as envs:
        assert envs.reset(seed=0)[1]["reset_attempts"][0] == 2


def test_a_coppeliasim_that_was_mended_places_tasks_as_patiently_as_ever(make: Make) -> None:
    with make(cameras=[], faults="vrep_reset=1,unplaceable_at=4") as envs:
        assert envs.reset(seed=0)[1]["reset_attempts"][0] == 2, "the first call was refused"
        pids = envs.worker_pids
        assert envs.reset(seed=1)[1]["reset_attempts"][0] == 2, "the first layout could not be placed"
        assert (envs.worker_pids, envs.failures) == (pids, [])


def test_a_missing_handle_is_answered_with_the_version(make: Make) -> None:
    with pytest.raises(StartError, match=r"Handle Panda does not exist(.|\n)*4\.1\.0(.|\n)*install PyRep again"):
        make(cameras=[], faults="handles")


def test_a_launch_that_hangs_is_ended(make: Make) -> None:
    with pytest.raises(ManyarmsError, match="worker 0"):
        make(cameras=[], faults="launch_hang", start_timeout=2.0)


def test_what_is_missing_is_named_with_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"COPPELIASIM_ROOT is not set(.|\n)*install_coppeliasim.sh"):
        manyarms.make_vec("rlbench/reach_target", 1, cameras=[], env={"COPPELIASIM_ROOT": ""})
    with pytest.raises(StartError, match=r"RLBench cannot be imported(.|\n)*reinstall_rlbench.sh"):
        manyarms.make_vec("rlbench/reach_target", 1, cameras=[], env={"COPPELIASIM_ROOT": str(tmp_path)})
    with pytest.raises(StartError, match="there is no folder"):
        manyarms.make_vec("rlbench/reach_target", 1, cameras=[], env={"COPPELIASIM_ROOT": str(tmp_path / "no")})


def test_two_rows_a_worker_are_refused(make: Make) -> None:
    with pytest.raises(StartError, match="one CoppeliaSim"):
        make(num_envs=2, cameras=[], rows_per_worker=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arm_mode": "telepathy"}, "choose from ik, planning"),
        ({"cameras": ["back"]}, "choose from left_shoulder"),
        ({"robot": "r2d2"}, "choose from panda"),
        ({"image_size": (0, 10)}, "width and height"),
    ],
)
def test_wrong_options_say_what_is_right(make: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(StartError, match=message):
        make(**options)


def test_the_arm_does_not_move_for_an_action_of_the_wrong_length(make: Make) -> None:
    with make(cameras=[], arm_mode="joint_velocity", on_failure="raise") as envs:
        envs.reset(seed=0)
        with pytest.raises(SimulatorError, match="has 8 numbers"):
            envs.call("step", np.ones(9))
        envs.step_chunk(np.zeros((1, 1, 8), np.float32))
        assert not envs.observations["joint_positions"].any()


def test_workers_have_homes_of_their_own_and_leave_none(make: Make, tmp_path: Path) -> None:
    with make(num_envs=2, cameras=[], env={"TMPDIR": str(tmp_path)}) as envs:
        envs.reset(seed=0)
        assert len(list(tmp_path.glob("manyarms-rlbench-*"))) == 2
        os.kill(envs.worker_pids[1], 15)  # ignored, as CoppeliaSim's Python does
        assert envs.step_chunk(np.stack([toward(pose_of(envs, r))[None] for r in range(2)])).num_steps.all()
    assert not list(tmp_path.glob("*manyarms-rlbench-*"))


def test_the_home_of_a_killed_worker_is_swept_up_by_the_next(make: Make, tmp_path: Path) -> None:
    with make(cameras=[], env={"TMPDIR": str(tmp_path)}) as envs:
        (home,) = tmp_path.glob("manyarms-rlbench-*")
        os.kill(envs.worker_pids[0], 9)
    assert home.exists()
    with make(cameras=[], env={"TMPDIR": str(tmp_path)}):
        assert not home.exists()


@pytest.mark.skipif("3.8" not in interpreters.available(), reason="there is no Python 3.8 here")
def test_it_runs_in_python_3_8(make: Make) -> None:
    with make(cameras=["front"], python=str(interpreters.environment("3.8"))) as envs:
        envs.reset(seed=0)
        assert envs.step_chunk(toward(pose_of(envs))[None, None]).num_steps[0] == 1


# -- the stand-in itself ----------------------------------------------------------------------------------------------


def written(function: Any) -> list[str]:
    """Write parameters as the list of RLBench's signatures does."""
    names = {"_MAX_DEMO_ATTEMPTS": 10}
    parts = []
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        if default is inspect.Parameter.empty:
            parts.append(parameter.name)
            continue
        shown = repr(default)
        if type(default).__name__ in ("ObservationConfig", "Identity"):
            shown = type(default).__name__ + "()"
        elif hasattr(default, "name"):
            shown = f"{type(default).__name__}.{default.name}"
        elif parameter.name == "max_attempts" and default == names["_MAX_DEMO_ATTEMPTS"]:
            shown = "_MAX_DEMO_ATTEMPTS"
        parts.append(f"{parameter.name}={shown}")
    return parts


def test_the_stand_in_has_the_signatures_of_rlbench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STANDIN))
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    known = json.loads((TESTS / "data" / "rlbench_signatures.json").read_text())
    checked = []
    for module_name, members in known.items():
        module = importlib.import_module(module_name)
        for name, member in members.items():
            ours = getattr(module, name, None)
            if ours is None:
                continue  # the adapter does not touch it
            if "function" in member:
                assert written(ours) == member["function"], f"{module_name}.{name}"
                checked.append(name)
            for method, parameters in member.get("methods", {}).items():
                if method in vars(ours):
                    assert written(getattr(ours, method)) == parameters, f"{module_name}.{name}.{method}"
                    checked.append(f"{name}.{method}")
            public = {key for key, value in vars(ours).items() if inspect.isfunction(value) and key[0] != "_"}
            assert public <= set(member.get("methods", public)), f"{module_name}.{name} has methods that RLBench lacks"
    used = {
        *("Environment.__init__", "Environment.launch", "Environment.shutdown", "Environment.get_task"),
        *("TaskEnvironment.reset", "TaskEnvironment.step", "TaskEnvironment.get_observation"),
        *("TaskEnvironment.get_demos", "TaskEnvironment.sample_variation", "TaskEnvironment.set_variation"),
        *("TaskEnvironment.variation_count", "CameraConfig.__init__", "CameraConfig.set_all"),
        *("ObservationConfig.__init__", "ObservationConfig.set_all", "name_to_task_class", "ActionMode.__init__"),
        *("JointPosition.__init__", "Discrete.__init__", "Observation.__init__"),
    }
    assert used <= set(checked), f"the adapter uses what was not checked: {sorted(used - set(checked))}"
    for name in [name for name in sys.modules if name.split(".")[0] in ("rlbench", "pyrep")]:
        monkeypatch.delitem(sys.modules, name)


def test_a_lost_display_costs_one_episode_and_is_replaced(tmp_path: Path) -> None:
    options = standin_options(tmp_path)
    del options["env"]["DISPLAY"], options["env"]["QT_QPA_PLATFORM"]
    with manyarms.make_vec("rlbench/reach_target", 2, display="xvfb", image_size=(24, 16), **options) as envs:
        displays = envs._supervisor._displays
        assert displays is not None
        envs.reset(seed=0)
        lost, kept = (server.pid for server in displays.servers)
        hold = np.stack([toward(pose_of(envs, row)) for row in range(2)])[:, None]
        os.kill(lost, signal.SIGKILL)
        chunk = envs.step_chunk(hold)
        while not envs.failures:  # until the connection is seen to have broken
            chunk = envs.step_chunk(hold)
        assert chunk.aborted.tolist() == [True, False]
        assert "X11 connection broke" in str(envs.failures[0])
        chunk = envs.step_chunk(hold)
        assert not chunk.aborted.any()
        assert envs.step_chunk(hold).num_steps.tolist() == [1, 1]
        assert chunk.observations["front_rgb"].any()
        pids = [server.pid for server in displays.servers]
        assert len(pids) == 2
        assert kept in pids
        assert lost not in pids


def test_switching_cameras_for_filmed_steps_is_counted_as_toggle(make: Make, tmp_path: Path) -> None:
    with make(profile=True, render_every=4, max_chunk=16) as envs:
        envs.reset(seed=0)
        drawn = len(notes(tmp_path, "render"))
        chunk = envs.step_chunk(np.repeat(toward(pose_of(envs))[None, None], 16, axis=1))
        assert len(chunk.frames["front_rgb"][0]) == 3
        assert chunk.timing is not None
        assert chunk.timing.toggle > 0.0
        # Four looks through two cameras: what nobody sees is not drawn.
        assert len(notes(tmp_path, "render")) - drawn == 8


def test_an_xvfb_is_no_gpu_whatever_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "has_gpu", lambda: True)
    monkeypatch.delenv("LIBGL_ALWAYS_SOFTWARE", raising=False)
    monkeypatch.setenv("MANYARMS_DISPLAY", "xvfb")
    assert not install.draws_on_a_gpu()
    monkeypatch.setenv("MANYARMS_DISPLAY", "external")
    monkeypatch.setattr(install, "renderer", lambda: "NVIDIA H200/PCIe/SSE2")
    assert install.draws_on_a_gpu()
    monkeypatch.setattr(install, "renderer", lambda: "")
    assert not install.draws_on_a_gpu(), "no GLX: nothing is known to be fast"


@pytest.mark.skipif(shutil.which("Xvfb") is None, reason="there is no Xvfb here")
def test_an_xvfb_that_someone_else_runs_is_told_by_what_draws_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the document: RLBENCH_PER_PROCESS_XVFB=0 xvfb-run -a python …, on a machine with a GPU."""
    monkeypatch.setattr(install, "has_gpu", lambda: True)
    monkeypatch.delenv("LIBGL_ALWAYS_SOFTWARE", raising=False)
    with Displays(DisplayConfig("xvfb"), 1, rank=0) as displays:
        for name, value in displays.variables(0).items():
            if name in ("DISPLAY", "XAUTHORITY") and value is not None:
                monkeypatch.setenv(name, value)
        monkeypatch.setenv("MANYARMS_DISPLAY", "external")
        assert graphics.is_software(install.renderer())
        assert not install.draws_on_a_gpu()


# -- without an X server ----------------------------------------------------------------------------------------------


def drawn_by_egl(root: Path, cameras: list[str], **env: str) -> Any:
    """Make an environment that is to draw by EGL, as from a shell without a display."""
    reason = egl_failure()
    if reason:
        pytest.skip(f"EGL does not work here: {reason}")
    options = standin_options(root, **env)
    del options["env"]["DISPLAY"], options["env"]["QT_QPA_PLATFORM"]
    return manyarms.make_vec("rlbench/reach_target", 1, display="egl", cameras=cameras, image_size=(24, 16), **options)


def test_egl_is_taken_with_the_platform_of_qt_that_draws(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with drawn_by_egl(tmp_path, ["front"], RLBENCH_STANDIN_DRAWS="minimalegl") as envs:
        assert envs.reset(seed=0)[0]["front_rgb"].any()
        assert envs._supervisor._displays.backend == "egl"
    assert "EGL" not in caplog.text


def test_where_coppeliasim_cannot_draw_by_egl_that_is_said_and_xvfb_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with drawn_by_egl(tmp_path, ["front"]) as envs:
        assert envs.reset(seed=0)[0]["front_rgb"].any()
        assert envs._supervisor._displays.backend == "xvfb"
    assert "with Qt's offscreen it crashed with SIGABRT; with Qt's eglfs it" in caplog.text


def test_egl_without_cameras_is_qt_offscreen(tmp_path: Path) -> None:
    with drawn_by_egl(tmp_path, []) as envs:
        displays = envs._supervisor._displays
        assert displays.backend == "egl"
        assert displays.variables(0)["QT_QPA_PLATFORM"] == "offscreen"
