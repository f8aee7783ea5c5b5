"""LIBERO, for real, in its own interpreter; its assets are stand-ins of our own (tests/libero_assets.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

import interpreters
import libero_reference
import manyarms
from manyarms import EpisodeId
from manyarms.errors import SimulatorError, StartError, UnknownName
from manyarms.learning.settings import load
from manyarms.simulators import registry
from manyarms.simulators.base import SpecError
from manyarms.simulators.libero.expert import Expert
from manyarms.simulators.libero.tasks import CAPS, Suites
from manyarms.testing import CHECKS, Subject
from manyarms.vector import memory

SCRIPT = interpreters.REPOSITORY / "scripts/install_libero.sh"

SOUP = "pick_up_the_alphabet_soup_and_place_it_in_the_basket"
DRESSING = "pick_up_the_salad_dressing_and_place_it_in_the_basket"

Make = Callable[..., Any]

pytestmark = [pytest.mark.slow]


@pytest.fixture(autouse=True)
def _nothing_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIBERO_ASSET_PATH", "LIBERO_CONFIG_PATH", "MUJOCO_EGL_DEVICE_ID", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def python() -> str:
    return str(interpreters.libero())


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    """What both sides of a comparison must share: how frames are rendered."""
    return {"MUJOCO_GL": "osmesa"}


@pytest.fixture
def make(python: str, variables: dict[str, str]) -> Make:
    """Make environments of LIBERO, without cameras unless told."""

    def make_envs(task: str = "libero/object/0", num_envs: int = 1, env: Any = None, **options: Any) -> Any:
        found = {"python": python, "env": {**variables, **(env or {})}, "cameras": [], "image_size": 32}
        return manyarms.make_vec(task, num_envs, **{**found, **options})

    return make_envs


@pytest.fixture(scope="module")
def suites(python: str) -> Suites:
    """LIBERO's suites as they are installed; read without importing LIBERO."""
    (root,) = Path(python).glob("lib/python3*/site-packages/libero/libero")
    return Suites(str(root))


def episode(envs: Any, row: int = 0, **identity: Any) -> Any:
    """Begin an episode in one row."""
    envs.begin([row], EpisodeId(**identity))
    return envs.recv()


def physics_of(envs: Any, row: int = 0) -> np.ndarray:
    """Return time, positions and velocities, as LIBERO's `get_sim_state` does."""
    return envs.save_state()[row]["state"]["physics"]


def random_actions(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (count, 7)).astype(np.float32)


# -- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conformance(python: str, variables: dict[str, str], check: Callable[[Subject], None]) -> None:
    options = {"python": python, "env": variables, "tasks": ["0", "2"], "image_size": 32, "settle_steps": 3}
    check(Subject("libero/object", options, steps=6))


def test_two_rows_of_a_process_see_what_rows_of_their_own_would(make: Make) -> None:
    images = {}
    for rows in (1, 2):
        with make(num_envs=2, rows_per_worker=rows, cameras=["agentview", "wrist"], settle_steps=2) as envs:
            envs.reset(seed=5)
            chunk = envs.step_chunk(np.stack([random_actions(3, row) for row in range(2)]))
            images[rows] = {name: values.copy() for name, values in chunk.observations.items()}
    for name, values in images[1].items():
        np.testing.assert_array_equal(values, images[2][name], err_msg=name)
    assert (images[1]["robot0_eye_in_hand_image"][0] != images[1]["robot0_eye_in_hand_image"][1]).any()


# -- against LIBERO itself --------------------------------------------------------------------------------------------


def reference(python: str, folder: Path, jobs: list[dict[str, Any]]) -> list[dict[str, np.ndarray]]:
    """Play jobs in LIBERO itself, one process."""
    packed = {f"{name}_{i}": value for i, job in enumerate(jobs) for name, value in job.items()}
    np.savez(folder / "jobs.npz", **packed)
    command = [f"{python}/bin/python", libero_reference.__file__, str(folder / "jobs.npz"), str(folder / "out.npz")]
    env = {**os.environ, "MUJOCO_GL": "osmesa", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "out.npz") as out:
        values = {name: out[name] for name in out.files}
    return [
        {name.rpartition("_")[0]: value for name, value in values.items() if name.endswith(f"_{i}")}
        for i in range(len(jobs))
    ]


def compare(ours: list[dict[str, np.ndarray]], theirs: dict[str, np.ndarray]) -> None:
    """Expect every moment of an episode to be the same: physics to the bit, observations to the bit of float32."""
    assert len(ours) == len(theirs["states"])
    for i, moment in enumerate(ours):
        for name, value in moment.items():
            np.testing.assert_array_equal(
                value, theirs[name][i].astype(value.dtype), err_msg=f"{name} after {i} actions"
            )


def test_whole_episodes_equal_bare_libero_bit_for_bit(make: Make, python: str, suites: Suites, tmp_path: Path) -> None:
    """Expert episodes, so that things are grasped, carried and dropped; all in one worker, one after the other."""
    starts = [(0, 4, 11), (2, 7, 30), (0, 8, 3)]
    tasks = suites.find("object")
    played, jobs = [], []
    with make("libero/object", tasks=["0", "2"], expert=True) as envs:
        for number, seed, index in starts:
            moments, actions = [], []
            chunk = episode(envs, task=tasks[number].name, seed=seed, init_state=index)
            while True:
                physics = physics_of(envs)
                seen = {name: chunk.observations[name][0].copy() for name in libero_reference.OBSERVED}
                size = tasks[number].init_states().shape[1]
                done = {} if not moments else {"rewards": chunk.rewards[0, 0], "dones": chunk.terminated[0]}
                moments.append({"states": physics[:size], **seen, **done})
                if chunk.ended[0]:
                    break
                actions.append(chunk.observations["expert_action"][0].copy())
                envs.send([0], actions[-1][None, None])
                chunk = envs.recv()
            played.append(moments)
            start = np.array([seed, index])
            jobs.append({"task": tasks[number].bddl_file, "start": start, "size": 0, "actions": np.array(actions)})
    for ours, theirs in zip(played, reference(python, tmp_path, jobs), strict=True):
        compare(ours, theirs)
        assert theirs["dones"][-1], "the expert has solved it in LIBERO too"
        assert theirs["rewards"][-1] == 1.0
        assert not theirs["dones"][:-1].any()


def test_faithful_images_equal_bare_libero_to_the_pixel_and_fast_ones_are_close(
    make: Make, python: str, suites: Suites, tmp_path: Path
) -> None:
    actions = random_actions(3)
    job = {"task": suites.find("object/2")[0].bddl_file, "start": np.array([1, 6]), "size": 48, "actions": actions}
    both = {"cameras": ["agentview", "wrist"], "image_size": 48}
    seen: dict[str, list[dict[str, np.ndarray]]] = {}
    variants = {"bare": (True, False), "fast": (False, False), "turned": (False, True)}
    for name, (faithful, rotate) in variants.items():
        with make("libero/object/2", faithful=faithful, rotate=rotate, **both) as envs:
            chunk = episode(envs, seed=1, init_state=6)
            seen[name] = [{image: chunk.observations[image][0].copy() for image in libero_reference.IMAGES}]
            for action in actions:
                envs.send([0], action[None, None])
                chunk = envs.recv()
                seen[name].append({image: chunk.observations[image][0].copy() for image in libero_reference.IMAGES})
    (theirs,) = reference(python, tmp_path, [job])
    compare(seen["bare"], theirs)
    for bare, turned, fast in zip(seen["bare"], seen["turned"], seen["fast"], strict=True):
        for image, pixels in bare.items():
            np.testing.assert_array_equal(turned[image], np.rot90(fast[image], 2))
            assert (fast[image] != pixels).any(), "fast rendering must leave something out"
            difference = np.abs(fast[image].astype(int) - pixels)
            assert np.median(difference) < 40
            assert np.corrcoef(fast[image].ravel(), pixels.ravel())[0, 1] > 0.8


def test_turned_images_have_the_robot_at_the_top_and_the_floor_in_front(make: Make) -> None:
    """As people look at them: LIBERO's camera stands opposite the arm, which comes from above into the picture."""
    with make(cameras=["agentview"], image_size=64) as envs:
        envs.reset(seed=0)
        image = envs.observations["agentview_image"][0].astype(int)
        # The arm is white and the floor is grey: the row with most variety is in the upper half.
        variety = np.abs(np.diff(image.sum(2), axis=1)).sum(1)
        assert variety[:32].sum() > variety[32:].sum()


def test_our_own_steps_were_found_exact_and_the_slow_ones_agree(make: Make) -> None:
    actions = random_actions(6)[None]
    with make("libero_probe:Probe", settle_steps=1) as envs:
        assert envs.call("is_exact") == (True,)
        ends = []
        for slow in (False, True):
            episode(envs, seed=0, init_state=0)
            if slow:
                envs.call("take_slow_steps")
            envs.step_chunk(actions)
            ends.append((physics_of(envs), envs.observations["state"].copy()))
        np.testing.assert_array_equal(ends[0][0], ends[1][0])
        np.testing.assert_array_equal(ends[0][1], ends[1][1])


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_the_scripted_expert_solves_the_suite_and_can_be_recorded(
    python: str, variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from manyarms.cli.record import RecordConfig, run

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config = RecordConfig(
        "libero/libero_object",
        policy="expert",
        episodes=1,
        num_envs=2,
        python=python,
        options={"cameras": []},
        out=tmp_path / "demonstrations",
    )
    recording = run(config)
    assert len(recording) == 10
    solved = [episode.id.task for episode in recording if episode.success]
    assert len(solved) >= 8, solved
    assert len(set(solved)) == len(solved)


def test_every_suite_has_its_tasks_caps_words_and_fifty_initial_states(suites: Suites) -> None:
    assert CAPS == {
        "libero_spatial": 220,
        "libero_object": 280,
        "libero_goal": 300,
        "libero_10": 520,
        "libero_90": 400,
    }
    for suite in CAPS:
        tasks = suites.find(suite)
        assert len(tasks) == (90 if suite == "libero_90" else 10)
        assert tasks == suites.find(suite.removeprefix("libero_"))
        for task in tasks[:10]:
            assert Path(task.bddl_file).is_file()
            assert task.init_states().shape[0] == 50
    assert suites.find("object/0")[0].language == "pick up the alphabet soup and place it in the basket"
    assert suites.find("10/2")[0].language == "turn on the stove and put the moka pot on it"
    assert suites.find("KITCHEN_SCENE10_close_the_top_drawer_of_the_cabinet")[0].language == (
        "close the top drawer of the cabinet"
    )


def test_tasks_go_by_index_by_name_and_by_either_name_of_their_suite(make: Make, suites: Suites) -> None:
    for text in ("libero_object/0", "object/0", f"object/{SOUP}", SOUP):
        assert [task.name for task in suites.find(text)] == [SOUP]
    with make("libero", tasks=["object/2", SOUP]) as envs:
        assert [task.name for task in envs.simulator_spec.tasks] == [DRESSING, SOUP]
        assert envs.simulator_spec.tasks[1].descriptions == ("pick up the alphabet soup and place it in the basket",)
        for text in (SOUP, "object/0", "libero_object/0"):
            infos = episode(envs, task=text, seed=0).infos
            assert infos["task"][0] == SOUP
            assert infos["suite"][0] == "libero_object"
            assert infos["descriptions"][0] == ["pick up the alphabet soup and place it in the basket"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("libero/libero_objet/0", r"did you mean libero_object"),
        ("libero/object/pick_up_the_alphabet_soup", "did you mean pick_up_the_alphabet_soup_and_place_it_in_the"),
        ("libero/object/10", "libero_object has tasks 0 to 9"),
        ("libero", "suites are libero_spatial"),
    ],
)
def test_wrong_names_get_suggestions(make: Make, name: str, message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        make(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cameras": ["front"]}, "choose from agentview, wrist"),
        ({"image_size": 4}, "width and height"),
        ({"layout": "random"}, "choose from fixed, sampled"),
        ({"settle_steps": -1}, "at least 0"),
        ({"colour": "red"}, "there is no option 'colour'"),
    ],
)
def test_wrong_options_say_what_is_right(make: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(StartError, match=message):
        make(**options)


# -- episodes ---------------------------------------------------------------------------------------------------------


def test_an_initial_state_is_chosen_by_number_by_value_or_by_seed(make: Make, suites: Suites) -> None:
    states = suites.find("object/0")[0].init_states()
    with make(settle_steps=0, on_failure="raise") as envs:
        for number in (0, 49):
            chunk = episode(envs, seed=0, init_state=number)
            assert chunk.infos["init_state"][0] == number
            np.testing.assert_array_equal(physics_of(envs)[: states.shape[1]], states[number])
        episode(envs, seed=0, init_state=states[7])
        np.testing.assert_array_equal(physics_of(envs)[: states.shape[1]], states[7])
        drawn = [int(episode(envs, seed=seed).infos["init_state"][0]) for seed in (*range(6), 0)]
        assert drawn[0] == drawn[-1]
        drawn += [int(episode(envs, seed=seed).infos["init_state"][0]) for seed in range(6, 260)]
        assert set(drawn) == set(range(50)), "each of them, the first and the last too"
        with pytest.raises(SimulatorError, match="initial states 0 to 49"):
            episode(envs, seed=0, init_state=50)
        with pytest.raises(SimulatorError, match=r"has 110 numbers \(time, positions, velocities\)"):
            episode(envs, seed=0, init_state=np.zeros(3))


def test_a_sampled_layout_follows_the_seed(make: Make) -> None:
    with make(layout="sampled", settle_steps=0) as envs:
        layouts = []
        for seed in (1, 2, 1):
            infos = episode(envs, seed=seed).infos
            assert "init_state" not in infos
            layouts.append(physics_of(envs))
        np.testing.assert_array_equal(layouts[0], layouts[2])
        assert (layouts[0] != layouts[1]).any()


def test_an_episode_can_begin_at_a_saved_state_and_sees_what_was_seen(make: Make) -> None:
    with make(num_envs=2, settle_steps=2, cameras=["wrist"]) as envs:
        envs.reset(seed=3)
        before = envs.step_chunk(random_actions(6)[None].repeat(2, 0)).observations
        saved = envs.save_state()[0]
        envs.begin([1], EpisodeId(seed=9, init_state=saved))
        after = envs.recv().observations
        for name, values in before.items():
            np.testing.assert_array_equal(values[0], after[name][0], err_msg=name)
        onward = random_actions(4, seed=1)[None].repeat(2, 0)
        envs.step_chunk(onward)
        np.testing.assert_array_equal(physics_of(envs, 0), physics_of(envs, 1))
        assert envs.save_state()[1]["steps"] == 4


def test_things_have_settled_when_an_episode_begins(make: Make) -> None:
    speeds = []
    for steps in (0, 10):
        with make(settle_steps=steps) as envs:
            episode(envs, seed=0, init_state=0)
            speeds.append(np.abs(physics_of(envs)[60:110]).max())
    assert speeds[1] < 0.05
    assert speeds[1] != speeds[0]


def test_an_episode_is_cut_off_at_the_cap_of_its_suite_or_where_we_say(make: Make) -> None:
    with make() as envs:
        assert envs.simulator_spec.horizon == 280
        assert envs.simulator_spec.control_rate == 20.0
    with make(max_episode_steps=3) as envs:
        envs.reset(seed=0)
        chunk = envs.step_chunk(random_actions(5)[None])
        assert (chunk.num_steps[0], chunk.truncated[0], chunk.terminated[0]) == (3, True, False)


def test_robosuites_own_horizon_of_1000_steps_is_never_met(make: Make) -> None:
    with make(max_episode_steps=1100, max_chunk=1100) as envs:
        envs.reset(seed=0)
        chunk = envs.step_chunk(np.tile(np.array([0, 0, 0, 0, 0, 0, -1], np.float32), (1, 1005, 1)))
        assert chunk.num_steps[0] == 1005
        assert not chunk.ended[0]


def test_the_state_that_policies_read_is_position_axis_angle_and_gripper(make: Make) -> None:
    with make() as envs:
        seen, _ = envs.reset(seed=0)
        x, y, z, w = seen["robot0_eef_quat"][0].astype(float)
        angle = 2 * np.arccos(w)
        axis = np.array([x, y, z]) / np.sqrt(1 - w * w)
        expected = np.concatenate([seen["robot0_eef_pos"][0], axis * angle, seen["robot0_gripper_qpos"][0]])
        np.testing.assert_allclose(seen["state"][0], expected, atol=1e-5)
        assert seen["object-state"].shape == (1, 98)  # seven things


def test_nothing_is_rendered_inside_a_chunk_and_only_what_is_looked_at(make: Make) -> None:
    with make("libero_probe:Probe", cameras=["agentview", "wrist"], image_size=(48, 32)) as envs:
        assert envs.reset(seed=0)[0]["agentview_image"].shape == (1, 32, 48, 3)
        for cameras, looks in (((), 0), (("wrist",), 1), (("agentview", "wrist"), 2)):
            before = envs.call("looks")[0]
            envs.step_chunk(random_actions(8)[None], cameras=cameras)
            assert envs.call("looks")[0] - before == looks


# -- processes --------------------------------------------------------------------------------------------------------


def test_environments_are_processes_with_states_of_their_own_that_share_the_model(make: Make) -> None:
    with make(num_envs=3, cameras=["agentview"]) as envs:
        envs.reset(seed=0)
        assert len(set(envs.worker_pids)) == 3
        states = [physics_of(envs, row) for row in range(3)]
        for i in range(3):
            assert (states[i] != states[i - 1]).any()
        # Forked after the model was built, before there was a graphics context: a fork after it hangs.
        for pid in envs.worker_pids:
            memory = psutil.Process(pid).memory_full_info()
            assert memory.uss < 0.6 * memory.rss


def test_a_task_that_comes_again_finds_its_model_and_others_give_way(make: Make) -> None:
    for kept, names in ((1, [SOUP]), (2, [DRESSING, SOUP])):
        with make("libero_probe:Probe", tasks=["object/0", "object/2"], keep_tasks=kept, settle_steps=1) as envs:
            ends = []
            for task in (SOUP, DRESSING, SOUP):
                episode(envs, task=task, seed=2, init_state=1)
                envs.step_chunk(random_actions(3)[None])
                ends.append(physics_of(envs))
            assert envs.call("kept_tasks") == (names,)
            np.testing.assert_array_equal(ends[0], ends[2])
            assert (ends[0] != ends[1]).any()


def test_a_worker_reads_no_torch_calls_no_hub_and_keeps_no_files_in_memory(make: Make) -> None:
    with make("libero_probe:Probe") as envs:
        modules = set(envs.call("modules")[0])
        assert not {"torch", "huggingface_hub", "libero.libero.benchmark"} & modules
        assert envs.call("variables")[0]["HF_HUB_OFFLINE"] == "1"
        assert envs.call("cached_bytes") == (0,)


def test_the_gpu_that_renders_need_not_be_one_of_cuda(make: Make) -> None:
    """robosuite refuses to be imported then."""
    gpus = {"CUDA_VISIBLE_DEVICES": "0", "MUJOCO_EGL_DEVICE_ID": "3"}
    with make("libero_probe:Probe", env=gpus) as envs:
        assert envs.call("variables")[0]["MUJOCO_EGL_DEVICE_ID"] == "3"
    # As in a process that has rendered through OSMesa itself.
    other = {"MUJOCO_GL": "egl", "CUDA_VISIBLE_DEVICES": "2,3", "PYOPENGL_PLATFORM": "osmesa"}
    with make("libero_probe:Probe", env=other) as envs:
        assert envs.call("variables")[0]["MUJOCO_EGL_DEVICE_ID"] == "2"


@pytest.mark.parametrize(
    ("kind", "message"), [("overlap", "could not be laid out in 50 attempts"), ("bug", "KeyError")]
)
def test_a_reset_that_fails_says_so_instead_of_trying_for_ever(make: Make, kind: str, message: str) -> None:
    with make("libero_probe:Probe", on_failure="raise") as envs:
        envs.reset(seed=0)
        envs.call("break_layout", kind)
        with pytest.raises(SimulatorError, match=message):
            envs.reset(seed=0)


# -- what is missing --------------------------------------------------------------------------------------------------


def test_what_is_missing_is_named_with_what_to_do(make: Make, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"no assets(.|\n)*LIBERO_ASSET_PATH"):
        make(env={"LIBERO_ASSET_PATH": str(tmp_path)})
    with pytest.raises(StartError, match=r"no config(.|\n)*asks questions(.|\n)*install_libero\.sh"):
        make(env={"LIBERO_CONFIG_PATH": str(tmp_path)})
    with pytest.raises(StartError, match=r"the assets of LIBERO lack something that pick_up_the_black_bowl"):
        make("libero/spatial/0")
    with pytest.raises(StartError, match=r"LIBERO is not installed(.|\n)*install_libero\.sh"):
        make(python=sys.executable)


def test_the_expert_says_what_it_cannot_do(suites: Suites) -> None:
    """The stand-ins are of tasks that it can do: only what it looks at first is needed here."""
    scene: Any = SimpleNamespace(goal=[["on", "bowl_1", "plate_1"]], task=suites.find("goal/0")[0])
    with pytest.raises(SpecError, match="only fills baskets"):
        Expert(scene)


def run_script(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), *arguments]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)


def test_the_script_says_what_it_would_do_and_does_nothing(tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    (assets / "scenes").mkdir(parents=True)
    done = run_script("--dry-run", str(tmp_path / "env"), str(assets), PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    for part in ("-m venv", "mujoco==3.3.7", "--no-deps", "hf-libero==0.1.4", "config.yaml", f"-> {assets}"):
        assert part in done.stdout
    assert not (tmp_path / "env").exists()


def test_the_script_runs_again_without_doing_anything(python: str) -> None:
    before = sorted(path.stat().st_mtime_ns for path in Path(python, "libero").iterdir())
    assert run_script(python).returncode == 0
    assert before == sorted(path.stat().st_mtime_ns for path in Path(python, "libero").iterdir())


@pytest.mark.parametrize(
    ("arguments", "env", "message"),
    [
        ((), {}, "usage:"),
        (("--fast", "x"), {}, "there is no option --fast"),
        (("x", "/"), {}, "has no folder scenes"),
        (("--dry-run", "x"), {"PYTHON": "/bin/false"}, "is not a Python from 3.10"),
    ],
)
def test_the_script_refuses_what_it_cannot_do(
    arguments: tuple[str, ...], env: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_script(*arguments, **env)
    assert done.returncode != 0
    assert message in done.stderr


def test_how_many_workers_fit_is_said_before_they_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 5 << 30)
    needed = ("libero/object", registry.about("libero/object").worker_bytes or 0)
    memory.say_how_many_fit([needed] * 4)
    assert "about 2 fit" in caplog.text
    caplog.clear()
    memory.say_how_many_fit([needed] * 2)
    assert not caplog.text


def test_evaluation_renders_as_libero_does_unless_told_otherwise(tmp_path: Path) -> None:
    settings = "env: {train: {simulator: libero/libero_object/0, options: {faithful: false, image_size: 64}}}\n"
    (tmp_path / "run.yaml").write_text(settings)
    config = load(str(tmp_path / "run.yaml")).config
    assert config.train.options == {"faithful": False, "image_size": 64}
    assert config.eval.options == {"faithful": True, "image_size": 64}
    config = load(str(tmp_path / "run.yaml"), ["env.eval.options.faithful=false"]).config
    assert not config.eval.options["faithful"]


@pytest.mark.soak
def test_the_benchmark_runs(tmp_path: Path, python: str) -> None:
    command = [sys.executable, str(interpreters.REPOSITORY / "benchmarks/libero.py"), "--out", str(tmp_path)]
    quick = ["--num-envs", "1", "--rounds", "1", "--chunks", "1", "--image-size", "24", "--chunk", "4"]
    env = {**os.environ, "LIBERO_PYTHON": f"{python}/bin/python", "MUJOCO_GL": "osmesa"}
    done = subprocess.run([*command, *quick], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert "hand-over" in (tmp_path / "libero.md").read_text()
