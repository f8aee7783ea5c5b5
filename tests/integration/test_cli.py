"""The commands, as a person types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from conftest import environment
from endings import eventually
from manyarms.cli import bench, demo
from manyarms.cli.options import parse_pairs
from training import wait_for

MANYARMS = [str(Path(sys.executable).with_name("manyarms"))]


def manyarms(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = environment()
    return subprocess.run(
        [*MANYARMS, *arguments], capture_output=True, text=True, cwd=cwd, env=env, timeout=600, check=False
    )


def test_help_loads_nothing_heavy() -> None:
    """A wall clock proves nothing on a busy machine; what is imported does."""
    code = (
        "import sys; from manyarms.cli import run; status = run(['--help']); "
        "heavy = {'numpy', 'gymnasium', 'tyro', 'rich', 'torch', 'mujoco'} & set(sys.modules); "
        "assert status == 0; assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "bench" in done.stdout


def test_version_and_no_command() -> None:
    assert manyarms("--version").stdout.startswith("manyarms 0.")
    nothing = manyarms()
    assert nothing.returncode == 2
    assert "usage" in nothing.stdout


def test_bench_prints_the_headline_first_and_writes_json(tmp_path: Path) -> None:
    done = manyarms(
        *("bench", "gym/CartPole-v1", "--num-envs", "3", "--action_chunk", "8", "--steps", "64", "--profile"),
        *("--warmup", "2", "--json", "out/bench.json", "--trace", "out/trace.json"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("gym/CartPole-v1: ")
    assert "env-steps/s (3 environments, chunks of 8)" in first
    assert any("p50" in line and "p99" in line for line in rest)
    result = json.loads((tmp_path / "out/bench.json").read_text())
    assert 0 < result["env_steps"] <= 3 * 64
    assert result["env_steps_per_second"] == pytest.approx(result["env_steps"] / result["seconds"])
    assert {"p50", "p90", "p99"} <= result["latency_ms"].keys()
    for part in ("build", "env_call", "sim", "obs", "vid", "toggle", "other", "cpu", "ipc"):
        assert part in result["profile"]["mean_ms"]
        assert f"\n  {part} " in done.stdout
    assert json.loads((tmp_path / "out/trace.json").read_text())["traceEvents"]


def test_what_is_measured_begins_after_the_warm_up() -> None:
    config = bench.BenchConfig("standins:Sleeper", num_envs=1, steps=5, warmup=30, profile=True)
    assert bench.run(config).profile["calls"] == 5


def test_the_value_of_an_option_may_hold_an_equals_sign() -> None:
    assert parse_pairs(["url=ws://host/?a=b&c=d", "chunk=4"]) == {"url": "ws://host/?a=b&c=d", "chunk": 4}


def test_bench_takes_simulator_options_and_nested_actions(tmp_path: Path) -> None:
    for arguments in (
        ("standins:Walker", "--options", "goal=2.0", "cameras=[front]", "max_episode_steps=5"),
        ("gym_envs:DictAction", "--action-chunk", "4"),
        ("gym_envs:Chatty", "--rows-per-worker", "2"),
    ):
        done = manyarms("bench", *arguments, "--num-envs", "2", "--steps", "20", "--warmup", "1", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").glob("bench-*.json"))) >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["benhc"], "did you mean bench"),
        (["bench", "gym/CartPol-v1"], "did you mean CartPole-v1"),
        (["bench", "gym/CartPole-v1", "--num-envs", "0"], "num_envs is 0"),
        (["bench", "gym/CartPole-v1", "--steps", "0"], "steps is 0"),
        (["bench", "gym/CartPole-v1", "--options", "speed"], "not of the form key=value"),
        (["bench", "gym/CartPole-v1", "--python", "/no/python"], "no Python interpreter"),
        (["bench", "gym/CartPole-v1", "--stepz", "3"], "--stepz"),
        (["bench"], "required"),
    ],
)
def test_mistakes_get_an_answer_not_a_traceback(arguments: list[str], message: str) -> None:
    done = manyarms(*arguments)
    assert done.returncode == 2
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_closed_stream_takes_no_worker_its_memory(stream: str, tmp_path: Path) -> None:
    command = f"{MANYARMS[0]} eval gym/CartPole-v1 --episodes 1 --num-envs 1 --out x {stream}>&-"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x/results.json").exists()


@pytest.mark.parametrize("arguments", [["--help"], ["eval", "--help"], ["list", "policies"]])
def test_output_on_a_full_disk_is_told_in_words(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*MANYARMS, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=600, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith("DiskError: what is printed cannot be written\n  why: No space left")
    assert "Traceback" not in done.stderr


def test_results_that_cannot_be_saved_are_shown_and_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    done = manyarms("bench", "gym/CartPole-v1", "--num-envs", "1", "--steps", "8", "--warmup", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert "env-steps/s" in done.stdout
    assert done.stderr.startswith("ConfigError: runs cannot be made")


def test_letters_that_the_terminal_lacks_end_no_command() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*MANYARMS, "eval", "--help"], capture_output=True, env=env, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert b"KEY=VALUE?" in done.stdout


def test_check_names_what_does_not_hold() -> None:
    good = manyarms("check", "standins:Walker", "--steps", "4")
    assert good.returncode == 0, good.stdout + good.stderr
    assert "11 of 11 checks hold" in good.stdout
    bad = manyarms("check", "standins:Drifting", "--steps", "4")
    assert bad.returncode == 1
    assert "✗ same seed gives the same episode" in bad.stdout
    assert "Traceback" not in bad.stderr


def test_ctrl_c_shows_what_was_measured_and_leaves_no_worker(tmp_path: Path) -> None:
    env = environment(PYTHONUNBUFFERED="1")
    process = subprocess.Popen(
        [*MANYARMS, "bench", "standins:Sleeper", "--steps", "100000", "--warmup", "0", "--options", "naps={'0': 0.01}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=env,
    )

    def has_made_steps() -> bool:
        """A worker sleeps before every step, and in that of row 0: here some hundreds of times."""
        workers = [child for child in psutil.Process(process.pid).children(recursive=True) if child.name() == "arm-0"]
        return any(worker.num_ctx_switches().voluntary > 300 for worker in workers)

    assert eventually(has_made_steps)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "interrupted: these are the results so far" in out
    assert "Traceback" not in err


@pytest.mark.slow
def test_demo_compares_with_gymnasium(tmp_path: Path) -> None:
    done = manyarms("demo", "--seconds", "0.2", "--num-envs", "2", "--steps", "8", "--train-seconds", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "gymnasium AsyncVectorEnv" in done.stdout
    assert "manyarms step_chunk" in done.stdout


@pytest.mark.slow
def test_demo_ends_with_an_arm_that_learns(tmp_path: Path) -> None:
    done = manyarms(
        "demo",
        "--seconds",
        "0.2",
        "--num-envs",
        "2",
        "--steps",
        "0",
        "--train-seconds",
        "3",
        "--episodes",
        "3",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "an arm learnt to press a button in 3 s" in done.stdout
    report = next(line for line in done.stdout.splitlines() if line.startswith("report: ")).removeprefix("report: ")
    assert "data:video/mp4" in (tmp_path / report).read_text(), "it was filmed before and after"


@pytest.mark.slow
def test_a_demo_without_pillow_trains_and_films_without_captions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    config = demo.DemoConfig(train_seconds=1.0, episodes=3, out=tmp_path)
    trained = demo.train_arm(config, demo.DemoResult(config, {"one way": 1.0}))
    assert trained.success is not None
    assert trained.report is not None
    assert "data:video/mp4" in trained.report.read_text()


def test_a_demo_without_torch_says_all_that_training_and_its_captions_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(demo, "measure", lambda config: {"one way": 1.0})
    assert demo.run(demo.DemoConfig(steps=0, out=tmp_path)).success is None
    assert "pip install 'manyarms[torch,video]'" in capsys.readouterr().err


def _gymnasiums(parent: int) -> list[psutil.Process]:
    """Return the processes that Gymnasium has started."""
    return [child for child in psutil.Process(parent).children() if "spawn_main" in " ".join(child.cmdline())]


@pytest.mark.slow
@pytest.mark.parametrize("loaded", [False, True], ids=["starting", "stepping"])
def test_ctrl_c_while_gymnasium_is_measured_is_answered_in_one_line(tmp_path: Path, loaded: bool) -> None:
    words = [*MANYARMS, "demo", "--seconds", "600", "--num-envs", "2", "--steps", "0", "--train-seconds", "0"]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, start_new_session=True
    )

    def come_so_far() -> bool:
        children = _gymnasiums(process.pid)
        return len(children) == 2 and (not loaded or all(child.cpu_times().user > 3.0 for child in children))

    try:
        wait_for(process, come_so_far)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=600)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert (said, process.returncode) == ("interrupted\n", 130)
