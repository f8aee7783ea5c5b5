"""Who runs where, how long a step may take, and what is cleaned up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endings import eventually
from manyarms.errors import ConfigError
from manyarms.vector import patience
from manyarms.vector.config import SimulatorConfig, VectorConfig
from manyarms.vector.keeper import Keeper, clean_up, end_all, file_identity, main_of, mark_of
from manyarms.vector.process import explain_exit, worker_environment
from manyarms.vector.topology import cpu_plan, numa_nodes, parse_cpu_list

NODES = [list(range(8)), list(range(8, 16))]


def test_pinned_workers_take_turns_over_the_nodes() -> None:
    assert cpu_plan(4, True, range(16), NODES) == [[0], [8], [1], [9]]
    assert cpu_plan(3, True, [4, 5], []) == [[4], [5], [4]]


def test_big_machines_keep_a_worker_on_its_node_and_small_ones_leave_it_be() -> None:
    assert cpu_plan(3, None, range(16), NODES) == [NODES[0], NODES[1], NODES[0]]
    assert cpu_plan(3, None, range(8), [list(range(4)), list(range(4, 8))]) == [[], [], []]
    assert cpu_plan(3, None, range(64), [list(range(64))]) == [[], [], []]
    assert cpu_plan(3, False, range(16), NODES) == [[], [], []]


@given(st.integers(1, 40), st.sets(st.integers(0, 31), min_size=1), st.sampled_from([True, False, None]))
def test_no_worker_leaves_the_cpus_this_process_may_use(workers: int, allowed: set[int], pin: bool | None) -> None:
    plan = cpu_plan(workers, pin, sorted(allowed), [list(range(16)), list(range(16, 32))])
    assert len(plan) == workers
    assert all(set(cpus) <= allowed for cpus in plan)


def test_numa_nodes_are_read_from_the_system(tmp_path: Path) -> None:
    for name, cpus in (("node0", "0-1,4"), ("node10", "8"), ("node2", "6-7"), ("node3", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(cpus + "\n")
    assert numa_nodes(tmp_path) == [[0, 1, 4], [6, 7], [8]]
    assert parse_cpu_list("3") == [3]
    assert numa_nodes(), "this machine has at least one node"


def test_gpus_are_given_out_in_turn() -> None:
    config = VectorConfig(num_envs=3, egl_device=(2, 5))
    devices = [worker_environment(i, SimulatorConfig("gym/x"), config)["MUJOCO_EGL_DEVICE_ID"] for i in range(3)]
    assert devices == ["2", "5", "2"]
    assert "MUJOCO_EGL_DEVICE_ID" not in worker_environment(0, SimulatorConfig("gym/x"), VectorConfig()) or os.environ
    for wrong in (-1, (), (0, -2)):
        with pytest.raises(ConfigError, match="egl_device"):
            VectorConfig(egl_device=wrong)


def test_deadlines_grow_with_what_was_seen_unless_given() -> None:
    learned = patience.Patience(None, None)
    assert learned.allowed(False, 1) == patience.LEAST_STEP_SECONDS
    assert learned.allowed(False, 54) >= 54 * 10.0, "planners take seconds an action, from the first chunk on"
    learned.learn(False, 10, 50.0)
    assert learned.allowed(False, 1) == 100.0
    assert learned.allowed(False, 4) == 400.0
    learned.learn(True, 0, 60.0)
    assert learned.allowed(True, 0) == 1200.0
    given_one = patience.Patience(0.5, 3.0)
    given_one.learn(False, 1, 100.0)
    assert (given_one.allowed(False, 4), given_one.allowed(True, 4)) == (2.0, 3.0)


def test_a_process_that_computes_is_judged_by_the_time_it_had_a_cpu() -> None:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        while patience.process_letter(process.pid) != "R":
            time.sleep(0.01)
        suspicion = patience.Suspicion(process.pid)
        used = patience.cpu_seconds(process.pid)

        def is_judged_so() -> bool:
            """While it waits for a CPU, the wait it is in is not known yet: looked at once, it may not hold."""
            computed = patience.cpu_seconds(process.pid) - used
            return computed > 0.2 and abs(suspicion.idle_seconds() - computed) < 0.1

        assert eventually(is_judged_so, 60.0)
        process.send_signal(19)  # SIGSTOP
        while patience.process_letter(process.pid) != "T":
            time.sleep(0.01)
        assert "stopped" in patience.process_state(process.pid)
    finally:
        process.kill()
        process.wait()
    assert patience.process_state(process.pid) == "it is gone"
    assert patience.run_delays(process.pid) == {}


@pytest.mark.parametrize(
    ("code", "what"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "SIGKILL"), (-11, "SIGSEGV"), (-63, "signal 63")]
)
def test_exit_codes_are_put_into_words(code: int, what: str) -> None:
    assert what in explain_exit(code)[0] or what.removeprefix("signal ") in explain_exit(code)[0]


def test_the_keeper_ends_what_it_marked_and_removes_paths_when_dismissed(tmp_path: Path) -> None:
    directory, file = tmp_path / "dir", tmp_path / "file"
    directory.mkdir()
    (directory / "inside").touch()
    file.touch()
    kept = tmp_path / "kept"
    kept.touch()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
    keeper = Keeper()
    keeper.mark(process.pid)
    for path in (directory, file, kept):
        keeper.add_path(str(path))
    keeper.remove_path(str(kept))
    keeper.dismiss()
    assert process.wait(timeout=60) == -9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept"]


def test_the_keeper_leaves_a_file_that_has_taken_the_place_of_another(tmp_path: Path) -> None:
    keeper = Keeper()
    same, other = tmp_path / "same", tmp_path / "other"
    for path in (same, other):
        path.touch()
        keeper.add_file(str(path), file_identity(str(path)))
    other.rename(tmp_path / "older")  # its inode is taken as long as it is there
    other.touch()
    keeper.dismiss()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["older", "other"]


def test_cleaning_up_what_is_gone_already_is_no_error(tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothing")
    clean_up({"path": {nothing: None}, "file": {f"1 2 {nothing}": None}})


def test_one_keeper_serves_the_whole_process() -> None:
    keeper = Keeper.instance()
    assert Keeper.instance() is keeper
    keeper._process.kill()
    keeper._process.wait()
    replaced = Keeper.instance()
    assert replaced is not keeper
    assert psutil.pid_exists(replaced._process.pid)


LIMITED = """
import resource
resource.setrlimit(10, (5, 1 << 40))
import manyarms
manyarms.make_vec("gym/CartPole-v1", 2)
"""


def test_a_limit_on_file_locks_that_cannot_be_had_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], check=False, capture_output=True, text=True)
    assert "ConfigError: the hard limit on file locks (RLIMIT_LOCKS) is set" in done.stderr


def test_only_what_bears_one_of_the_marks_is_ended() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(100)"]
    keeper = Keeper()
    first, second, unmarked = (subprocess.Popen(sleeper) for _ in range(3))
    try:
        mark, other = keeper.mark(first.pid), keeper.mark(second.pid)
        assert (mark_of(first.pid), main_of(mark)) == (mark, os.getpid())
        assert mark_of(unmarked.pid) == 0
        end_all({0, mark})
        assert first.wait(timeout=60) == -9
        assert (second.poll(), unmarked.poll()) == (None, None)
        end_all({mark, other}, patience=60.0)
        assert second.poll() == -9, "it is gone when that returns"
        assert unmarked.poll() is None
    finally:
        keeper.dismiss()
        for process in (first, second, unmarked):
            process.kill()
            process.wait()


def test_a_keeper_that_takes_over_ends_what_was_marked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeper, "_instance", None)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    before = Keeper.instance()
    before.mark(process.pid)
    before._process.kill()
    before._process.wait()
    Keeper.instance().dismiss()
    assert process.wait(timeout=60) == -9
