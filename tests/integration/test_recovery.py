"""A worker that fails costs its running episode and nothing else: it is named and replaced, the others never notice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import manyarms
from conftest import environment
from endings import wait_until_gone
from manyarms import EpisodeId
from manyarms.errors import StartError, WorkerDied, WorkerTimeout
from standins import Misbehaving

FAULTS = {
    Misbehaving.RAISE: ("SimulatorError", "the gripper fell off"),
    Misbehaving.WRONG_SHAPE: ("SimulatorError", "the spec says"),
    Misbehaving.EXIT: ("WorkerDied", "exit code 7"),
    Misbehaving.CRASH: ("WorkerDied", "SIGSEGV"),
    Misbehaving.KILL: ("WorkerDied", "SIGKILL"),
    Misbehaving.HANG: ("WorkerTimeout", "it is asleep"),
    Misbehaving.SPIN: ("WorkerTimeout", "it computes without end"),
    Misbehaving.STOP: ("WorkerTimeout", "it is stopped"),
    Misbehaving.WRONG_RESULT: ("SimulatorError", "unpack"),
    Misbehaving.NONSENSE: ("WorkerDied", "cannot be read"),
}


def orders(*values: int) -> np.ndarray:
    return np.array([[value] for value in values], np.float32)


def repeat(times: int, call: Callable[[], Any]) -> None:
    for _ in range(times):
        call()


@pytest.mark.parametrize("order", FAULTS, ids=[f"{kind} {text}" for kind, text in FAULTS.values()])
def test_every_fault_is_named_and_survived(order: int) -> None:
    kind, text = FAULTS[order]
    with manyarms.make_vec("standins:Misbehaving", 3, step_timeout=0.6) as envs:
        envs.begin(range(3), [EpisodeId(seed=10 + i) for i in range(3)])
        envs.recv(min_rows=3)
        envs.send(range(3), orders(0, order, 0)[:, None])
        chunk = envs.recv(min_rows=3)
        assert chunk.aborted.tolist() == [False, True, False]
        assert chunk.ended.tolist() == [False, True, False]
        assert chunk.rewards.tolist() == [[1.0], [0.0], [1.0]]
        assert text in chunk.infos["failure"][1]
        assert "seed 11" in chunk.infos["failure"][1]
        assert [type(error).__name__ for error in envs.failures] == [kind]
        envs.begin([1], EpisodeId(seed=11))
        assert envs.recv().rows.tolist() == [1]
        envs.send(range(3), orders(0, 0, 0)[:, None])
        assert envs.recv(min_rows=3).rewards.tolist() == [[1.0]] * 3


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_gymnasium_users_see_a_truncated_episode_and_go_on(mode: str) -> None:
    with manyarms.make_vec("standins:Misbehaving", 2, autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        _, rewards, terminated, truncated, infos = envs.step(orders(0, Misbehaving.KILL))
        assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == (
            [1.0, 0.0],
            [False, False],
            [False, True],
        )
        assert infos["aborted"].tolist() == [False, True]
        assert "SIGKILL" in infos["failure"][1]
        if mode == "same_step":
            assert infos["final_obs"][1].shape == (3,)
        if mode == "disabled":
            envs.reset(seed=5, options={"reset_mask": truncated})
        if mode == "next_step":
            assert envs.step(orders(0, 0))[1].tolist() == [1.0, 0.0], "the next step begins the new episode"
        assert envs.step(orders(0, 0))[1].tolist() == [1.0, 1.0]


def test_a_worker_that_dies_between_calls_is_told_at_the_next() -> None:
    with manyarms.make_vec("standins:Walker", 3, cameras=[]) as envs:
        envs.begin(range(3), EpisodeId(seed=1))
        envs.recv(min_rows=3)
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        time.sleep(0.1)
        envs.send([0], np.zeros((1, 1, 2), np.float32))
        assert envs.recv().rows.tolist() == [0]
        envs.send([1, 2], np.zeros((2, 1, 2), np.float32))
        chunk = envs.recv(min_rows=2)
        assert chunk.aborted.tolist() == [True, False]


def test_the_episode_after_an_abort_follows_from_the_seed() -> None:
    positions = []
    for _ in range(2):
        with manyarms.make_vec("standins:Walker", 2, cameras=[]) as envs:
            envs.reset(seed=3)
            envs.step(np.zeros((2, 2), np.float32))
            os.kill(envs.worker_pids[0], signal.SIGKILL)
            envs.step(np.zeros((2, 2), np.float32))
            positions.append(envs.step(np.zeros((2, 2), np.float32))[0]["position"].tolist())
    assert positions[0] == positions[1]


def test_every_abort_is_followed_by_another_episode() -> None:
    with manyarms.make_vec("standins:Walker", 2, cameras=[]) as envs:
        envs.reset(seed=3)
        begun = [envs.observations["position"][0].tolist()]
        for _ in range(3):
            os.kill(envs.worker_pids[0], signal.SIGKILL)
            envs.step(np.zeros((2, 2), np.float32))
            begun.append(envs.step(np.zeros((2, 2), np.float32))[0]["position"][0].tolist())
        assert len(envs.failures) == 3
        assert len({position for position, _ in begun}) == 4, "or a seed that kills its worker kills it for ever"


def test_all_rows_of_a_shared_worker_are_aborted_and_no_other() -> None:
    with manyarms.make_vec("standins:Misbehaving", 4, rows_per_worker=2) as envs:
        envs.reset(seed=0)
        *_, truncated, _ = envs.step(orders(0, Misbehaving.EXIT, 0, 0))
        assert truncated.tolist() == [True, True, False, False]
        assert envs.step(orders(0, 0, 0, 0))[1].tolist() == [0.0, 0.0, 1.0, 1.0]
        assert envs.step(orders(0, 0, 0, 0))[1].tolist() == [1.0] * 4


def test_a_lock_step_group_is_replaced_as_one() -> None:
    with manyarms.make_vec("standins:Herd", 4, rows_per_worker=2, longest=50) as envs:
        envs.begin(range(4), [EpisodeId(seed=i) for i in range(4)])
        envs.recv(min_rows=4)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        envs.send(range(4), np.zeros((4, 2, 1), np.float32))
        chunk = envs.recv(min_rows=4)
        assert chunk.aborted.tolist() == [True, True, False, False]
        envs.begin([0, 1], [EpisodeId(seed=0), EpisodeId(seed=1)])
        assert envs.recv(min_rows=2).rows.tolist() == [0, 1]
        envs.send(range(4), np.zeros((4, 2, 1), np.float32))
        assert envs.recv(min_rows=4).num_steps.min() >= 1


def test_a_worker_that_fails_again_and_again_is_given_up_with_the_cause() -> None:
    with manyarms.make_vec("standins:Misbehaving", 2, max_restarts=2) as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerDied, match=r"worker 1 .*failed 3 times in a row and is given up(.|\n)*exit code 7"):
            repeat(10, lambda: envs.step(orders(0, Misbehaving.EXIT)))
        assert len(envs.failures) == 3


@pytest.mark.parametrize("order", [Misbehaving.EXIT, Misbehaving.RAISE])
def test_failures_count_in_a_row_and_an_episode_that_ends_forgives_them(order: int) -> None:
    with manyarms.make_vec("standins:Misbehaving", 1, max_restarts=2, max_episode_steps=3) as envs:

        def play(*actions: int) -> bool:
            """Play an episode; tell whether it was aborted."""
            envs.begin([0], [EpisodeId(seed=0)])
            envs.recv()
            envs.send([0], np.array(actions, np.float32).reshape(1, -1, 1))
            return bool(envs.recv().aborted[0])

        first = envs.worker_pids
        for _ in range(2):
            assert [play(order), play(order), play(0, 0, 0)] == [True, True, False], "two in a row are allowed"
        assert (envs.worker_pids == first) == (order == Misbehaving.RAISE), "whose simulator raised is not replaced"
        assert [play(order), play(order)] == [True, True]
        with pytest.raises(WorkerDied, match=r"failed 3 times in a row and is given up"):
            play(order)


def test_a_reset_that_always_raises_is_given_up() -> None:
    with (
        manyarms.make_vec("standins:Misbehaving", 2, fail_at="reset", max_restarts=1) as envs,
        pytest.raises(WorkerDied, match=r"given up(.|\n)*no scene to reset"),
    ):
        envs.reset(seed=0)


def test_a_simulator_that_cannot_start_again_is_given_up(tmp_path: Path) -> None:
    marker = tmp_path / "gone"
    with manyarms.make_vec("standins:Vanishing", 1, marker=str(marker), max_restarts=1) as envs:
        envs.reset(seed=0)
        marker.touch()
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"given up(.|\n)*the licence server has gone"):
            repeat(5, lambda: envs.step(np.zeros((1, 1), np.float32)))


def test_an_interpreter_that_has_gone_is_given_up(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with manyarms.make_vec("standins:Sleeper", 1, python=str(link), env=env, max_restarts=1) as envs:
        envs.reset(seed=0)
        link.unlink()
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"given up(.|\n)*could not be started"):
            repeat(5, lambda: envs.step(np.zeros((1, 1), np.float32)))


def test_a_worker_that_dies_while_it_starts_again_is_started_once_more_and_not_twice(tmp_path: Path) -> None:
    deaths, starts = tmp_path / "deaths", tmp_path / "starts"
    deaths.write_text("0")
    with manyarms.make_vec("standins:Orphaning", 1, deaths=str(deaths), starts=str(starts)) as envs:
        envs.reset(seed=0)
        deaths.write_text("2")
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        repeat(5, lambda: envs.step(np.zeros((1, 1), np.float32)))
        assert len(starts.read_text().split()) == 4


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_start_that_fails_where_others_succeed_is_tried_again(
    start_method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"tries": str(tmp_path / "tries"), "failures": 2, "start_method": start_method}
    with manyarms.make_vec("standins:Unlucky", 3, **options) as envs:
        envs.reset(seed=0)
        assert (tmp_path / "tries").read_text() == "111"
    assert caplog.text.count("it is started again") == 2
    assert "worker 1" in caplog.text
    assert "XML Error: unknown error in attribute 'quat'" in caplog.text


@pytest.mark.parametrize(
    ("settings", "tries"), [({"max_restarts": 2}, 3), ({"on_failure": "raise"}, 1)], ids=["at last", "at once"]
)
def test_a_start_that_always_fails_is_told_though_others_succeed(
    settings: dict[str, Any], tries: int, tmp_path: Path
) -> None:
    with pytest.raises(StartError, match=r"XML Error(.|\n)*1 of 2 workers failed to start"):
        manyarms.make_vec("standins:Unlucky", 2, tries=str(tmp_path / "tries"), failures=9, **settings)
    assert (tmp_path / "tries").read_text() == "1" * tries


def test_a_row_whose_worker_died_goes_on_from_a_state_that_is_loaded() -> None:
    with manyarms.make_vec("standins:Walker", 2, cameras=[]) as envs:
        envs.begin([0, 1], EpisodeId(seed=1))
        envs.recv(min_rows=2)
        (state,) = envs.save_state([0])
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        while not envs.failures:  # until its end is seen
            envs.send([1], np.zeros((1, 1, 2), np.float32))
            assert envs.recv().rows.tolist() == [1]
        envs.load_state([state], [0])
        envs.send([0], np.zeros((1, 1, 2), np.float32))
        chunk = envs.recv()
        assert (chunk.aborted.tolist(), chunk.num_steps.tolist()) == ([False], [1])


@pytest.mark.parametrize(
    ("threaded", "seconds", "allowed"),
    [(False, 0.15, 0.2), (True, 0.2, 0.6)],  # of one that sleeps, the wait that it is in is not counted yet
    ids=["by itself", "in a thread that it waits for"],
)
def test_a_busy_machine_gets_no_healthy_worker_killed(threaded: bool, seconds: float, allowed: float) -> None:
    """Five spinning processes on the same CPU as two workers whose steps take most of their deadline."""
    cpu = min(os.sched_getaffinity(0))
    burner = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"]
    burners = [subprocess.Popen(burner, start_new_session=True) for _ in range(5)]  # each with a share of its own
    options = {"seconds": seconds, "cpu": cpu, "threaded": threaded}
    try:
        with manyarms.make_vec("standins:Burner", 2, step_timeout=allowed, **options) as envs:
            envs.reset(seed=0)
            for _ in range(2):
                *_, truncated, _ = envs.step(np.zeros((2, 1), np.float32))
                assert not truncated.any()
            assert envs.failures == []
    finally:
        for burning in burners:
            burning.kill()
            burning.wait()


def test_memory_above_the_limit_is_given_back_between_episodes() -> None:
    with manyarms.make_vec("standins:Leaky", 2, worker_memory=120 << 20, leak=2 << 20, max_episode_steps=4) as envs:
        before = envs.worker_pids
        envs.reset(seed=0)
        deadline = time.monotonic() + 300
        while envs.worker_pids == before and time.monotonic() < deadline:
            *_, infos = envs.step(np.zeros((2, 1), np.float32))
            assert "aborted" not in infos, "memory is given back between episodes, not in the middle of one"
            time.sleep(0.05)
        assert envs.worker_pids != before
        assert envs.failures == []


def test_a_worker_that_has_given_its_memory_back_is_left_alone(tmp_path: Path) -> None:
    options = {"worker_memory": 120 << 20, "size": 110 << 20, "marker": str(tmp_path / "grown"), "max_episode_steps": 2}
    with manyarms.make_vec("standins:LargeOnce", 1, **options) as envs:
        before = envs.worker_pids
        envs.reset(seed=0)
        deadline = time.monotonic() + 300
        while envs.worker_pids == before and time.monotonic() < deadline:
            envs.step(np.zeros((1, 1), np.float32))
            time.sleep(0.05)
        after = envs.worker_pids
        assert after != before
        for _ in range(12):
            envs.step(np.zeros((1, 1), np.float32))
            assert envs.worker_pids == after, "four more episodes are played by the same worker"


def test_memory_far_above_the_limit_ends_the_worker_at_once() -> None:
    with manyarms.make_vec("standins:Leaky", 2, worker_memory=100 << 20, leak=200 << 20) as envs:
        envs.reset(seed=0)
        deadline = time.monotonic() + 300
        while not envs.failures and time.monotonic() < deadline:
            envs.step(np.zeros((2, 1), np.float32))
            time.sleep(0.02)
        assert "was ended because it held" in str(envs.failures[0])


def test_workers_are_recycled_after_their_episodes() -> None:
    with manyarms.make_vec("standins:Walker", 2, recycle_after=2, max_episode_steps=3, cameras=[]) as envs:
        envs.begin([0, 1], EpisodeId(seed=0))
        pids = []
        for _ in range(5):
            envs.recv(min_rows=2)
            pids.append(envs.worker_pids)
            envs.send([0, 1], np.zeros((2, 3, 2), np.float32))
            assert envs.recv(min_rows=2).truncated.all()
            envs.begin([0, 1], EpisodeId(seed=0))
        envs.recv(min_rows=2)
        assert len({tuple(p) for p in pids}) == 3
        assert envs.failures == []


SCRIPT = """
    import os, sys, time
    import numpy
    import manyarms
    envs = manyarms.make_vec("standins:Sleeper", 3, naps={"0": 1000.0, "1": 0.0, "2": 0.0})
    envs.begin(range(3), manyarms.EpisodeId(seed=0))
    envs.recv(min_rows=3)
    print(*envs.worker_pids, flush=True)
    envs.send([0], numpy.zeros((1, 1, 1), numpy.float32))
    what = sys.argv[1]
    if what == "fork" and os.fork() == 0:
        time.sleep(5)  # a child that keeps every file of its parent open
        os._exit(0)
    if what == "raise":
        raise RuntimeError("the user's own mistake")
    if what == "exit":
        sys.exit(3)
    if what == "hang":
        envs.close(timeout=60)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("what", "signals"),
    [
        ("sleep", [signal.SIGKILL]),
        ("fork", [signal.SIGKILL]),
        ("sleep", [signal.SIGTERM]),
        ("sleep", [signal.SIGINT]),
        ("hang", [signal.SIGINT]),
        ("raise", []),
        ("exit", []),
    ],
    ids=["kill -9", "kill -9 with a forked child", "SIGTERM", "Ctrl-C", "Ctrl-C while closing", "exception", "exit"],
)
def test_nothing_is_left_however_the_main_process_goes(what: str, signals: list[Any], tmp_path: Path) -> None:
    """One worker is in a step of a thousand seconds: it will not notice by itself."""
    env = environment(TMPDIR=str(tmp_path))
    process: Any = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), what], stdout=subprocess.PIPE, text=True, env=env
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 3
    time.sleep(0.3)
    pids += [
        child.pid for child in psutil.Process(process.pid).children(recursive=True) if what not in ("exit", "raise")
    ]
    for number in signals:
        process.send_signal(number)
    process.wait(timeout=600)
    process.stdout.close()
    wait_until_gone(pids)
    assert list(tmp_path.iterdir()) == [], "temporary files left behind"


def test_a_worker_takes_what_it_started_with_it() -> None:
    with manyarms.make_vec("standins:Parent", 1) as envs:
        child = int(envs.reset(seed=0)[1]["child"][0])
        assert psutil.pid_exists(child)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        envs.step(np.zeros((1, 1), np.float32))
        wait_until_gone([child])


def test_deadlines_are_per_step_of_a_chunk() -> None:
    with manyarms.make_vec("standins:Sleeper", 1, naps={"0": 0.2}, step_timeout=0.5, on_failure="raise") as envs:
        envs.begin([0], EpisodeId(seed=0))
        envs.recv()
        envs.send([0], np.zeros((1, 6, 1), np.float32))
        assert envs.recv().num_steps[0] == 6
    with manyarms.make_vec("standins:Sleeper", 1, naps={"0": 5.0}, step_timeout=0.3, on_failure="raise") as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerTimeout):
            envs.step(np.zeros((1, 1), np.float32))


def test_a_forked_child_does_not_end_its_parents_workers() -> None:
    with manyarms.make_vec("standins:Walker", 2, cameras=[]) as envs:
        envs.reset(seed=0)
        child = os.fork()
        if child == 0:
            envs.close()
            os._exit(0)
        os.waitpid(child, 0)
        envs.step(np.zeros((2, 2), np.float32))
        assert envs.failures == []


def test_simulators_are_closed_when_python_ends(tmp_path: Path) -> None:
    code = f"""
import manyarms
envs = manyarms.make_vec("standins:Closing", 2, path={str(tmp_path)!r})
envs.reset(seed=0)
"""
    env = environment()
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=600)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium, manyarms\n"
        "def make_env():\n    return gymnasium.make('CartPole-v1')\n"
        "envs = manyarms.make_vec(make_env, 2)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert "make_vec was called inside a worker" in done.stderr
    assert "if __name__ == '__main__'" in done.stderr


def test_a_worker_in_deep_sleep_is_replaced_with_all_it_started() -> None:
    children: list[psutil.Process] = []
    with manyarms.make_vec("standins:Stuck", 2, step_timeout=0.5) as envs:
        envs.reset(seed=0)
        stuck = envs.worker_pids[0]

        def look() -> None:
            while not children and not envs.failures:
                with contextlib.suppress(psutil.NoSuchProcess):
                    children.extend(psutil.Process(stuck).children())
                time.sleep(0.005)

        looking = threading.Thread(target=look)
        looking.start()
        _, rewards, _, truncated, infos = envs.step(np.array([[1], [0]], np.float32))
        assert truncated.tolist() == [True, False]
        assert rewards[1] == 1.0
        assert "state D" in infos["failure"][0]
        envs.step(np.zeros((2, 1), np.float32))
        looking.join()
        assert len(children) == 1
        wait_until_gone([stuck, children[0].pid])
