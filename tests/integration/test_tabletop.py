"""The embedded simulator: every task keeps the contract, can be solved, and is the same in any process."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import interpreters
import manyarms
from manyarms.errors import StartError, UnknownName, WorkerError
from manyarms.simulators.base import SpecError
from manyarms.simulators.choices import snake_case
from manyarms.simulators.tabletop import panda
from manyarms.simulators.tabletop.kinematics import HIGH, LOW, Kinematics
from manyarms.simulators.tabletop.planning import Planner
from manyarms.simulators.tabletop.scene import WORKSPACE_HIGH, WORKSPACE_LOW
from manyarms.simulators.tabletop.simulator import TabletopSimulator
from manyarms.simulators.tabletop.task import DOWN, discover
from manyarms.simulators.tabletop.worlds import BatchOfOne
from manyarms.testing import CHECKS, Subject, check_simulator, conformance

TASKS = sorted(discover())
MODES = ("ik", "planning", "delta_ee", "joint_position", "joint_velocity")


def solve(simulator: TabletopSimulator, seed: int, most: int) -> bool:
    """Have the expert play an episode."""
    simulator.reset(None, seed, None)
    return any(simulator.step(simulator.expert_action()).success for _ in range(most))


def test_there_are_ten_tasks_with_words_and_variations() -> None:
    assert len(TASKS) >= 10
    for task in discover().values():
        texts = task().descriptions(0)
        assert len(set(texts)) >= 3
        assert all("{" not in text for text in texts)


#: What could hold for one task and not for another.
OF_TASKS = (
    conformance.check_observations_match_the_spaces,
    conformance.check_same_seed_gives_the_same_episode,
    conformance.check_a_chunk_equals_its_steps,
    conformance.check_saved_states_replay,
)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_tasks_keep_the_contract(task: str) -> None:
    options = {"cameras": ["front", "wrist"], "image_size": (24, 16), "arm_mode": "delta_ee"}
    for check in CHECKS if task == "open_drawer" else OF_TASKS:
        check(Subject(f"tabletop/{task}", options, steps=6))


@pytest.mark.parametrize("mode", MODES)
def test_action_modes_keep_the_contract(mode: str) -> None:
    check_simulator("tabletop/push_button", cameras=[], arm_mode=mode, steps=4)


@pytest.mark.parametrize("task", TASKS)
def test_experts_solve_their_task(task: str) -> None:
    simulator = TabletopSimulator(task, cameras=())
    assert sum(solve(simulator, seed, 40) for seed in range(1000, 1010)) >= 9


@pytest.mark.parametrize("mode", MODES)
def test_experts_act_in_every_mode(mode: str) -> None:
    simulator = TabletopSimulator("pick_up_cup", cameras=(), arm_mode=mode)
    assert all(solve(simulator, seed, 150) for seed in range(3))


def test_names_work_in_both_spellings() -> None:
    assert snake_case("OpenDrawer") == snake_case("open_drawer") == "open_drawer"
    assert TabletopSimulator("OpenDrawer", cameras=()).spec.tasks[0].name == "open_drawer"
    with pytest.raises(UnknownName, match="did you mean open_drawer"):
        manyarms.make_vec("tabletop/open_draw", 1)


def test_a_task_from_elsewhere_plays_beside_ours_and_what_is_no_task_is_refused() -> None:
    elsewhere = "manyarms.simulators.tabletop.tasks.push_button:PushButton"
    simulator = TabletopSimulator(tasks=[elsewhere, "reach_target"], cameras=())
    assert [task.name for task in simulator.spec.tasks] == ["push_button", "reach_target"]
    for name in ("push_button", elsewhere):
        simulator.reset(name, 0, None)
        assert any("button" in text for text in simulator.info()["descriptions"])
    with pytest.raises(SpecError, match="base:Spec is not a TabletopTask"):
        TabletopSimulator("manyarms.simulators.base:Spec", cameras=())


def test_observations_are_named_and_shaped_as_in_rlbench() -> None:
    options: dict[str, Any] = {"cameras": ["front", "overhead"], "image_size": (40, 30), "depth": True, "mask": True}
    with manyarms.make_vec("tabletop/stack_blocks", 1, **options) as envs:
        obs, infos = envs.reset(seed=0)
        shapes = {name: value.shape[1:] for name, value in obs.items()}
        assert shapes["front_rgb"] == (30, 40, 3)
        assert shapes["overhead_depth"] == shapes["overhead_mask"] == (30, 40)
        assert shapes["gripper_pose"] == (7,)
        assert shapes["gripper_matrix"] == (4, 4)
        assert shapes["gripper_open"] == ()
        assert obs["front_rgb"].std() > 10
        assert 0 < obs["overhead_depth"].min() < obs["overhead_depth"].max() <= 1
        assert len(np.unique(obs["overhead_mask"])) > 4
        assert np.allclose(np.linalg.norm(obs["gripper_pose"][0, 3:]), 1, atol=1e-5)
        assert "stack" in infos["descriptions"][0][0]


def test_a_pose_out_of_reach_is_told_and_moves_nothing() -> None:
    simulator = TabletopSimulator("reach_target", cameras=())
    simulator.reset(None, 0, None)
    before = simulator._world.joints.copy()
    for action, why in (
        ([0.7, 0.6, 1.7, 0, 1, 0, 0, 0], "cannot be reached"),
        ([1.2, 0, 1, 0, 1, 0, 0, 0], "outside the workspace"),
        ([0.3, 0, 1, 0, 0.5, 0, 0, 0], "has length 0.500, not 1"),
    ):
        result = simulator.step(np.array(action, np.float32))
        assert why in simulator.info()["invalid_action"]
        assert result.reward == 0.0
    assert np.allclose(simulator._world.joints, before, atol=1e-2)
    assert simulator._worlds.openness()[0] > 0.9, "nor does the gripper close"


def test_planning_goes_around_what_stands_in_the_way() -> None:
    """From one side of the cabinet to the other, low: the straight way leads through it."""
    left, right = [0.3, 0.33, 0.9, 0, 1, 0, 0, 1], [0.3, -0.33, 0.9, 0, 1, 0, 0, 1]
    moved = {}
    for mode in ("ik", "planning"):
        simulator = TabletopSimulator("open_drawer", cameras=(), arm_mode=mode)
        simulator.reset(None, 3, None)
        world = simulator._world
        world.mount("cabinet", (0.3, 0.0, 0.752))
        world.forward()
        simulator.step(np.array(left, np.float32))
        assert "invalid_action" not in simulator.info()
        simulator.step(np.array(right, np.float32))
        moved[mode] = np.linalg.norm(world.tip_pose()[0] - right[:3])
    assert moved["planning"] < 0.02 < moved["ik"]


REPLAY = """
import sys, numpy as np
from manyarms.simulators.tabletop.simulator import TabletopSimulator
saved = np.load(sys.argv[1], allow_pickle=True).item()
simulator = TabletopSimulator(saved["task"], cameras=(), arm_mode="delta_ee")
for start in ("seed", "state"):
    if start == "seed":
        simulator.reset(None, saved["seed"], None)
        actions = saved["actions"]
    else:
        simulator.load_state(saved["state"])
        actions = saved["actions"][saved["at"] :]
    for action in actions:
        simulator.step(action)
    print(simulator._world.save().tobytes().hex())
"""


@pytest.mark.parametrize("task", ["stack_blocks", "sweep_to_dustpan"])
def test_replays_are_bit_identical_in_another_process(task: str, tmp_path: Any) -> None:
    simulator = TabletopSimulator(task, cameras=(), arm_mode="delta_ee")
    simulator.reset(None, 5, None)
    actions, state = [], None
    for i in range(60):
        if i == 30:
            state = simulator.save_state()
        actions.append(simulator.expert_action())
        simulator.step(actions[-1])
    end = simulator._world.save().tobytes().hex()
    saved: Any = {"task": task, "seed": 5, "actions": actions, "state": state, "at": 30}
    np.save(tmp_path / "saved.npy", saved, allow_pickle=True)
    done = subprocess.run(
        [sys.executable, "-c", REPLAY, str(tmp_path / "saved.npy")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [end, end]


@pytest.mark.parametrize(("axis", "sign"), itertools.product(range(3), (-1.0, 1.0)))
def test_small_moves_of_the_hand_end_at_the_edge_of_the_workspace(axis: int, sign: float) -> None:
    simulator = TabletopSimulator("reach_target", cameras=(), arm_mode="delta_ee")
    simulator.reset(None, 0, None)
    action = np.zeros(7, np.float32)
    action[axis] = sign
    for _ in range(50):
        simulator.step(action)
    position = simulator._world.tip_pose()[0]
    assert (position >= np.array(WORKSPACE_LOW) - 0.01).all()
    assert (position <= np.array(WORKSPACE_HIGH) + 0.01).all()


def test_a_state_saved_while_the_hand_holds_something_goes_on_bit_for_bit() -> None:
    """The solver begins at its last solution: without that, the same contacts come out a little different."""
    simulator = TabletopSimulator("pick_up_cup", cameras=(), arm_mode="delta_ee")
    simulator.reset(None, 3, None)
    while not simulator._world.grasped("cup"):
        simulator.step(simulator.expert_action())
    state, ends = simulator.save_state(), []
    lift = np.array([0.1, -0.1, 0.2, 0, 0, 0.2, -1.0], np.float32)
    for seed in (None, 4):
        if seed is not None:
            simulator.reset(None, seed, None)
            simulator.step(lift)
            simulator.load_state(state)
        steps = []
        for _ in range(10):
            simulator.step(lift)
            steps.append(simulator._world.save().tobytes())
        ends.append(steps)
    assert ends[0] == ends[1]


def test_what_a_hand_holds_presses_its_fingers_apart() -> None:
    simulator = TabletopSimulator("pick_up_cup", cameras=())
    simulator.reset(None, 3, None)
    out = {name: np.zeros(field.shape, field.dtype) for name, field in simulator.spec.layout().items()}
    simulator.observe(out, ())
    assert not out["gripper_touch_forces"].any(), "nothing touches them yet"
    while not simulator._world.grasped("cup"):
        simulator.step(simulator.expert_action())
    simulator.observe(out, ())
    left, right = (simulator._world.position(f"panda_{side}_finger") for side in ("left", "right"))
    outwards = (left - right) / np.linalg.norm(left - right)
    forces = out["gripper_touch_forces"].reshape(2, 3)
    assert forces[0] @ outwards > 1.0
    assert forces[1] @ outwards < -1.0


def test_cameras_without_graphics_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartError, match="apt-get install libosmesa6"):
        manyarms.make_vec("tabletop/reach_target", 2, cameras=["front"], env={**os.environ, "MUJOCO_GL": "disable"})
    with manyarms.make_vec("tabletop/reach_target", 2, cameras=[], env={"MUJOCO_GL": "disable"}) as envs:
        envs.reset(seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cameras": ["side"]}, "camera is 'side': choose from front"),
        ({"arm_mode": "torque"}, "arm_mode is 'torque': choose from ik"),
        ({"image_size": (4, 4)}, "image_size"),
        ({"variation": 99}, "variations 0 to"),
        ({"colour": "red"}, "check the spelling"),
    ],
)
def test_wrong_options_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StartError, match=message):
        manyarms.make_vec("tabletop/push_button", 1, **options)


def test_a_row_plays_several_tasks_and_says_which_it_cannot() -> None:
    with manyarms.make_vec(
        "tabletop", 2, tasks=["ReachTarget", "stack_blocks"], cameras=["front"], image_size=16
    ) as envs:
        assert envs.row_tasks == [("reach_target", "stack_blocks")] * 2
        obs, infos = envs.reset(seed=1, options={"tasks": ["stack_blocks", "reach_target"]})
        lengths = obs["task_low_dim_state_length"].tolist()
        assert lengths[0] > lengths[1] > 0
        assert not obs["task_low_dim_state"][1, lengths[1] :].any()
        assert "stack" in infos["descriptions"][0][0]
        alone = TabletopSimulator("reach_target", cameras=("front",), image_size=16)
        alone.reset(None, 2, None)
        out = {name: np.zeros(field.shape, field.dtype) for name, field in alone.spec.layout().items()}
        alone.observe(out, ("front",))
        assert out["front_rgb"].tobytes() == obs["front_rgb"][1].tobytes(), "as if it had never played another"
        alone.close()
        with pytest.raises(WorkerError, match="needs a row of its own"):
            envs.reset(options={"tasks": ["open_drawer", "open_drawer"]})


def test_each_task_keeps_its_own_clock() -> None:
    known = discover()
    simulator = TabletopSimulator(tasks=["reach_target", "stack_blocks"], cameras=(), arm_mode="joint_velocity")
    assert simulator.spec.horizon == known["stack_blocks"].horizon > known["reach_target"].horizon
    for name in ("reach_target", "stack_blocks"):
        simulator.reset(name, 0, None)
        steps = 1
        while not simulator.step(np.zeros(8, np.float32)).truncated:
            steps += 1
        assert steps == known[name].horizon


def test_qualities_differ_and_are_what_was_asked_for() -> None:
    frames = {}
    for quality in ("fast", "good", "full"):
        simulator = TabletopSimulator("reach_target", cameras=("front",), image_size=64, render_quality=quality)
        simulator.reset(None, 0, None)
        frames[quality] = simulator.render("front").astype(int)
        simulator.close()
    assert np.abs(frames["fast"] - frames["good"]).mean() > 1.0, "shadows are seen"
    assert np.abs(frames["full"] - frames["good"]).mean() < np.abs(frames["fast"] - frames["good"]).mean()


def test_it_runs_with_another_mujoco_in_another_interpreter() -> None:
    with manyarms.make_vec(
        "tabletop/push_button",
        1,
        python=str(interpreters.robotics()),
        cameras=[],
        arm_mode="joint_position",
        expert=True,
    ) as envs:
        obs, _ = envs.reset(seed=3)
        for _ in range(120):
            obs, _, terminated, _, _ = envs.step(obs["expert_action"])
            if terminated[0]:
                return
    pytest.fail("the expert did not solve it")


@pytest.mark.parametrize("seed", range(3))
def test_planned_paths_touch_nothing(seed: int) -> None:
    """Every way point of a path, and what lies between, is free of contacts that were not there at its beginning."""
    simulator = TabletopSimulator("open_drawer", cameras=(), arm_mode="planning")
    simulator.reset(None, seed, None)
    world = simulator._world
    planner = Planner(world)
    planner.rng = np.random.default_rng(seed)
    start = world.joints
    goals, solved = Kinematics(BatchOfOne(world)).solve(np.array([[0.2, 0.42, 0.82]]), DOWN[None], start[None])
    assert solved.all()
    path = planner.plan(start, goals[0])
    assert path is not None
    np.testing.assert_allclose(path[-1], goals[0])
    before = planner._contacts(start)
    points = [start, *path]
    for first, second in itertools.pairwise(points):
        for share in np.linspace(0, 1, 40):
            assert not planner._contacts(first + share * (second - first)) - before


def test_the_same_seed_plans_the_same_paths_again() -> None:
    """The straight way to the tap is blocked: how it is gone around is drawn."""
    episodes = []
    for _ in range(2):
        simulator = TabletopSimulator("turn_tap", cameras=(), arm_mode="planning")
        simulator.reset(None, 0, None)
        out = {name: np.zeros(field.shape, field.dtype) for name, field in simulator.spec.layout().items()}
        moments = []
        for _ in range(6):
            simulator.step(simulator.expert_action())
            simulator.observe(out, ())
            moments.append(out["joint_positions"].tolist())
        episodes.append(moments)
    assert episodes[0] == episodes[1]


def test_inverse_kinematics_reach_what_they_say() -> None:
    world = TabletopSimulator("reach_target", cameras=())._world
    kinematics = Kinematics(BatchOfOne(world))
    home = np.array([panda.HOME])
    rng = np.random.default_rng(0)
    solved = 0
    for _ in range(30):
        wanted = rng.uniform([0.1, -0.35, 0.8], [0.5, 0.35, 1.2])
        joints, found = kinematics.solve(wanted[None], DOWN[None], home)
        if not found[0]:
            continue
        solved += 1
        assert (joints >= LOW).all()
        assert (joints <= HIGH).all()
        world.data.qpos[world.arm_qpos] = joints[0]
        world.forward()
        position, rotation = world.tip_pose()
        assert np.linalg.norm(position - wanted) < 2e-3
        assert np.abs(rotation - DOWN).max() < 1e-2
    assert solved >= 24, "most of the space over the table can be reached from above"
    assert not kinematics.solve(np.array([[2.0, 0.0, 1.0]]), DOWN[None], home)[1].any(), "out of reach"


@pytest.mark.parametrize("task", TASKS)
def test_shaped_rewards_add_up_to_the_progress_made(task: str) -> None:
    simulator = TabletopSimulator(task, cameras=(), shaped_rewards=True)
    simulator.reset(None, 7, None)
    first = simulator._task.progress(simulator._worlds)[0]
    earned, solved = 0.0, False
    for _ in range(40):
        reward, solved, *_ = simulator.step(simulator.expert_action())
        earned += reward
        if solved:
            break
    assert solved
    last = simulator._task.progress(simulator._worlds)[0]
    assert 0.0 <= first < last <= 1.0 + 1e-6, "the expert's way leads up"
    assert earned == pytest.approx(1.0 + last - first)


def test_waiting_earns_nothing() -> None:
    simulator = TabletopSimulator("reach_target", cameras=(), shaped_rewards=True, arm_mode="joint_velocity")
    simulator.reset(None, 0, None)
    still = np.append(np.zeros(7), 1.0).astype(np.float32)
    assert abs(sum(simulator.step(still).reward for _ in range(20))) < 0.01


def test_a_task_can_be_made_easier_and_an_option_that_no_task_has_is_an_error() -> None:
    wide = TabletopSimulator(tasks=["reach_target", "push_button"], cameras=(), task_options={"radius": 2.0})
    wide.reset("reach_target", 0, None)
    assert wide.step(np.zeros(wide.spec.actions[""].shape)).success
    with pytest.raises(SpecError, match="push_button has no option 'radius'"):
        TabletopSimulator("push_button", cameras=(), task_options={"radius": 2.0})
