"""What a worker process is like: its environment, its threads, its place, its rows, its tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import manyarms
from manyarms import EpisodeId
from manyarms.errors import ActionError, SimulatorError
from manyarms.vector.process import THREAD_VARIABLES


def test_maths_libraries_get_one_thread_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for threads in (1, 3):
        with manyarms.make_vec("standins:Report", 1, threads_per_worker=threads, variables=THREAD_VARIABLES) as envs:
            environment = envs.reset()[1]["environment"]
            assert {
                name: values[0] for name, values in environment.items() if not name.startswith("_")
            } == dict.fromkeys(THREAD_VARIABLES, str(threads))


def test_variables_are_set_before_the_process_starts() -> None:
    env = {"LD_LIBRARY_PATH": "/somewhere", "OMP_NUM_THREADS": "5"}
    with manyarms.make_vec("standins:Report", 1, env=env, variables=list(env)) as envs:
        seen = envs.reset()[1]["environment"]
        assert {name: seen[name][0] for name in env} == env


def test_rows_are_processes_of_their_own_and_can_share_one() -> None:
    for per_worker, processes in ((1, 4), (3, 2), (4, 1)):
        with manyarms.make_vec("standins:Report", 4, rows_per_worker=per_worker) as envs:
            pids = envs.reset()[1]["pid"].tolist()
            assert len(set(pids)) == processes
            assert list(dict.fromkeys(pids)) == envs.worker_pids
            assert os.getpid() not in pids


def test_pinned_workers_take_turns_over_the_cpus() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    with manyarms.make_vec("standins:Report", 3, pin_cpus=True) as envs:
        got = envs.reset()[1]["cpus"].tolist()
        assert got == [[allowed[i % len(allowed)]] for i in range(3)]


def test_workers_import_no_torch_and_none_of_our_dependencies() -> None:
    with manyarms.make_vec("standins:Report", 1) as envs:
        modules = set(envs.reset()[1]["modules"][0])
    assert not {"torch", "gymnasium", "mujoco", "rich", "tyro", "omegaconf", "psutil", "av"} & modules


def test_rows_of_different_simulators_share_one_environment() -> None:
    with manyarms.make_vec(["standins:Walker", "standins:Wide"], 4) as envs:
        assert envs.single_action_space.shape == (5,)
        observations, _ = envs.reset(seed=10)
        assert observations["position"].shape == (4, 4)
        assert observations["position_length"].tolist() == [2, 4, 2, 4]
        assert observations["force_length"].tolist() == [0, 3, 0, 3]
        assert observations["objects_length"].tolist() == [3, 0, 3, 0]
        assert observations in envs.observation_space
        assert not observations["position"][0, 2:].any()
        assert observations["position"][1].tolist() == [11.0] * 4
        actions = np.full((4, 5), 0.5, np.float32)
        assert envs.step(actions)[1][[1, 3]].tolist() == [13.5, 15.5]
        actions[1] = 1.5  # in range for Wide only
        envs.step(actions)
        actions[0, :2] = 1.5
        with pytest.raises(ActionError, match=r"row 0.*range is -1.0 to 1.0"):
            envs.step(actions)
        actions[0] = 0.5
        actions[0, 2:] = 1.5  # padding that Walker never sees
        envs.step(actions)


def test_unnamed_observations_of_different_lengths_get_a_name_and_a_length() -> None:
    with manyarms.make_vec(["gym/CartPole-v1", "gym/MountainCar-v0"], 2) as envs:
        assert envs.action_space == gymnasium.spaces.MultiDiscrete([2, 3])
        observations, _ = envs.reset(seed=0)
        assert observations["observation"].shape == (2, 4)
        assert observations["observation_length"].tolist() == [4, 2]


def test_cameras_inside_a_chunk_are_filmed_and_toggled() -> None:
    with manyarms.make_vec("standins:Walker", 2, render_every=2, max_chunk=8, goal=100.0) as envs:
        envs.reset(seed=0)
        chunk = envs.step_chunk(np.zeros((2, 7, 2), np.float32))
        assert [frames[:, 0, 0, 0].tolist() for frames in chunk.frames["front_rgb"]] == [[2, 4, 6], [2, 4, 6]]
        assert (chunk.observations["front_rgb"][:, 0, 0, 0] == 7).all()
        assert set(envs.get_attr("expected")) == {("front", "wrist")}
        envs.step_chunk(np.zeros((2, 3, 2), np.float32), cameras=["wrist"])
        assert set(envs.get_attr("expected")) == {("wrist",)}


def test_steps_are_filmed_by_their_number_in_the_episode_not_in_the_chunk() -> None:
    with manyarms.make_vec("standins:Walker", 1, render_every=3, max_chunk=8, goal=100.0) as envs:
        envs.reset(seed=0)
        filmed = []
        for _ in range(4):
            chunk = envs.step_chunk(np.zeros((1, 4, 2), np.float32))
            filmed.append(chunk.frames["front_rgb"][0][:, 0, 0, 0].tolist())
        assert filmed == [[3], [6], [9], [15]], "the twelfth ends a chunk and is observed"


def test_an_info_is_told_once_and_not_again_after_a_step_that_has_none() -> None:
    with manyarms.make_vec("standins:Blinking", 2) as envs:
        envs.reset(seed=0)
        told = []
        for _ in range(6):
            infos = envs.step(np.zeros((2, 2), np.float32))[4]
            told.append(infos["blink"].tolist() if "blink" in infos else None)
        assert told == [None, [2, 2], None, [4, 4], None, [6, 6]]
        told = [envs.step_chunk(np.zeros((2, 3, 2), np.float32)).infos.get("blink") for _ in range(3)]
        assert [None if one is None else one.tolist() for one in told] == [None, [12, 12], None]


def test_chunks_of_any_length_say_how_long_they_were() -> None:
    with manyarms.make_vec("standins:Sleeper", 2) as envs:
        envs.begin([0, 1], EpisodeId(seed=0))
        envs.recv(min_rows=2)
        for length in (3, 5, 1, 2, 2):
            envs.send([0, 1], np.zeros((2, length, 1), np.float32))
            assert envs.recv(min_rows=2).num_steps.tolist() == [length, length]


def test_actions_that_a_simulator_keeps_stay_as_they_were() -> None:
    with manyarms.make_vec("standins:Diary", 1) as envs:
        envs.reset(seed=0)
        for first in (1, 4):
            envs.step_chunk(np.arange(first, first + 3, dtype=np.float32).reshape(1, 3, 1))
        envs.step(np.array([[7.0]], np.float32))
        envs.step(np.array([[8.0]], np.float32))
        assert envs.call("kept") == ([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [7.0], [8.0]],)


@pytest.mark.parametrize("name", ["standins:Passing", "standins:PassingHerd", "gym_envs:Passing"])
def test_a_success_is_told_though_later_actions_of_its_chunk_are_none(name: str) -> None:
    with manyarms.make_vec(name, 2) as envs:
        envs.reset(seed=0)
        chunks = [envs.step_chunk(np.zeros((2, 3, 1), np.float32)) for _ in range(3)]
        assert [chunk.success.tolist() for chunk in chunks] == [[False, False], [True, True], [False, False]]
        assert not any(chunk.ended.any() for chunk in chunks)


def test_a_chunk_is_rendered_once() -> None:
    with manyarms.make_vec("standins:SlowCameras", 1, goal=100.0) as envs:
        envs.reset(seed=0)
        before = envs.get_attr("renders")[0]
        envs.step_chunk(np.zeros((1, 16, 2), np.float32))
        assert envs.get_attr("renders")[0] == before + 2
        envs.step_chunk(np.zeros((1, 16, 2), np.float32)[:, :5], cameras=["front"])
        assert envs.get_attr("renders")[0] == before + 3


def test_typed_infos_come_as_arrays_with_masks() -> None:
    with manyarms.make_vec("standins:Walker", 2) as envs:
        _, infos = envs.reset(seed=0)
        assert infos["distance"].dtype == np.float64
        assert "contacts" not in infos
        chunk = envs.step_chunk(np.zeros((2, 3, 2), np.float32))
        assert chunk.infos["contacts"].tolist() == [[3, -3], [3, -3]]
        assert chunk.infos["_contacts"].tolist() == [True, True]


def test_methods_and_attributes_of_a_simulator_can_be_reached() -> None:
    with manyarms.make_vec("standins:Walker", 2) as envs:
        envs.reset(seed=0)
        assert envs.call("double", 4.5) == (9.0, 9.0)
        envs.set_attr("goal", [1.0, 2.0])
        assert envs.get_attr("goal") == (1.0, 2.0)
        with pytest.raises(SimulatorError, match="neither a method nor an attribute 'fly'"):
            envs.call("fly")


def test_rows_of_one_worker_can_be_given_and_give_back_more_than_its_pipes_hold() -> None:
    with manyarms.make_vec("standins:Walker", 2, rows_per_worker=2, cameras=[]) as envs:
        numbers = np.arange(300_000.0)
        for answer in envs.call("double", numbers):
            assert np.array_equal(answer, 2 * numbers)


def test_loaded_states_show_at_once() -> None:
    with manyarms.make_vec("standins:Walker", 1) as envs:
        envs.reset(seed=0)
        saved = envs.save_state()
        before = envs.observations["position"].copy()
        envs.step_chunk(np.ones((1, 9, 2), np.float32))
        envs.load_state(saved)
        assert envs.observations["position"].tolist() == before.tolist()


def test_profile_gives_the_split_users_know(tmp_path: Path) -> None:
    trace = tmp_path / "out" / "trace.json"
    with manyarms.make_vec("standins:Sleeper", 2, naps={"1": 0.02}, trace=trace) as envs:
        envs.reset(seed=0)
        assert envs.profiler is not None
        envs.profiler.clear()
        timing = [envs.step_chunk(np.zeros((2, 4, 1), np.float32)).timing for _ in range(3)][-1]
        assert timing is not None
        assert timing.row == 1, "the slowest worker is the critical path"
        assert timing.sim >= 0.08
        assert timing.env_call >= timing.exec >= timing.sim
        assert timing.ipc == pytest.approx(timing.env_call - timing.exec)
        parts = timing.sim + timing.obs + timing.vid + timing.toggle + timing.other
        assert parts == pytest.approx(timing.exec, abs=1e-6)
        assert timing.cpu < timing.exec, "sleeping costs no processor time"
        summary = envs.profiler.summary()
        assert summary["calls"] == 3
        assert set(summary["mean_ms"]) == {
            *("build", "env_call", "exec", "sim", "obs", "vid", "toggle", "other", "cpu", "ipc")
        }
        assert summary["workers_ms"]["sim"]["p50"] <= summary["workers_ms"]["sim"]["p99"]
        envs.step(np.zeros((2, 1), np.float32))
        assert envs.last_timing is not None
        envs.begin([0], EpisodeId(seed=1))
        assert envs.recv().timing is not None
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"build", "env_call", "exec", "sim", "obs"} <= {event["name"] for event in events}
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {"main", "row 0", "row 1"}


def test_filming_and_toggling_are_timed() -> None:
    with manyarms.make_vec("standins:Walker", 1, render_every=1, profile=True, goal=100.0) as envs:
        envs.reset(seed=0)
        timing = envs.step_chunk(np.zeros((1, 8, 2), np.float32)).timing
        assert timing is not None
        assert timing.vid > 0
        assert timing.toggle > 0


def test_importing_manyarms_is_free() -> None:
    code = "import sys, manyarms; print([m for m in ('numpy', 'gymnasium', 'torch', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_many_rows_raise_the_limit_on_open_files() -> None:
    code = """
import resource, numpy, manyarms
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (70, hard))
with manyarms.make_vec("gym/CartPole-v1", 24) as envs:
    envs.reset(seed=0)
    print(envs.step(numpy.zeros(24, int))[1].sum())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "24.0", done.stderr


def test_cameras_are_chosen_for_the_rows_that_are_sent_and_no_others() -> None:
    with manyarms.make_vec("standins:SlowCameras", 2, goal=100.0) as envs:
        envs.begin([0, 1], EpisodeId(seed=0))
        envs.recv(min_rows=2)
        before = envs.get_attr("renders")
        envs.send([0], np.zeros((1, 1, 2), np.float32), cameras=["front"])
        envs.send([1], np.zeros((1, 1, 2), np.float32), cameras=[])
        envs.recv(min_rows=2)
        assert [now - then for now, then in zip(envs.get_attr("renders"), before, strict=True)] == [1, 0]
        envs.send([1], np.zeros((1, 1, 2), np.float32))
        envs.recv()
        envs.send([0, 1], np.zeros((2, 1, 2), np.float32))
        envs.recv(min_rows=2)
        assert [now - then for now, then in zip(envs.get_attr("renders"), before, strict=True)] == [3, 4]
