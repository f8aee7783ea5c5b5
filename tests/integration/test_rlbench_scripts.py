"""The commands that users of the RLBench vector environment know, with fewer environments and steps than they type."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest

from conftest import environment
from manyarms.vector.display import DisplayConfig, Displays

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).resolve().parents[2] / "examples/rlbench"
TESTS = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

#: What stands in the documents, and how much of it is run here.
SCALE = {
    "--num_envs": "2",
    "--num_envs_total": "5",
    "--steps": "12",
    "--max_steps": "12",
    "--action_chunk": "5",
    "--image_size": "32",
    "--train_updates": "4",
}

PARTS = ("build", "env_call", "sim", "obs", "vid", "toggle", "other", "ipc")

COMMANDS = """
python rlbench_vec_env.py --num_envs 64 --steps 100 --task OpenDrawer
python3 rlbench_vec_env.py --num_envs 64 --steps 100 --task OpenDrawer --arm_mode ik --action_chunk 16 --copy_obs 0
RLBENCH_PER_PROCESS_XVFB=0 xvfb-run -a python3 rlbench_vec_env.py --num_envs 16 --steps 100 --task OpenDrawer
python rlbench_vec_env.py --num_envs 4 --steps 50 --record
python3 mp_rlbench_env_test.py --task_class OpenDrawer --num_envs 8 --max_steps 100 --action_chunk 16 --image_size 256 256
torchrun --nproc_per_node=1 rlbench_vec_env.py --num_envs 64
torchrun --nproc_per_node=4 rl_vec_env.py --num_envs_total 64 --max_steps 100 --task_class OpenDrawer --action_chunk 54 --fast --ddp_bind_gpu
torchrun --nproc_per_node=4 rl_vec_env.py --mode debug --num_envs_total 64 --max_steps 100 --task_class OpenDrawer --action_chunk 54 --arm_mode ik --fps 20 --output_dir rlbench_vec_env_videos --video_stride 4 --ddp_bind_gpu
python rl_vec_env.py --num_envs 64 --max_steps 100 --task_class sweep_to_dustpan --action_chunk 54 --profile_timing
torchrun --nproc_per_node=4 rl_vec_env.py --mode train --num_envs_total 64 --task_class OpenDrawer --train_updates 20 --train_lr 3e-4 --train_hidden 256 --ddp_bind_gpu
python rl_vec_env.py --num_envs 64 --max_steps 100 --task_class sweep_to_dustpan --action_chunk 54 --fast
""".strip().splitlines()  # noqa: E501


def scaled(command: str) -> tuple[dict[str, str], list[str]]:
    """Return a command of the documents with fewer of everything, and the variables before it."""
    variables: dict[str, str] = {}
    words: list[str] = []
    flag = ""
    for word in shlex.split(command):
        if word.partition("=")[0].isupper():
            name, _, value = word.partition("=")
            variables[name] = value
            continue
        flag = word if word.startswith("--") else flag
        words.append(SCALE.get(flag, word) if word.isdecimal() else _found(word))
    return variables, words


def _found(word: str) -> str:
    """Return a word as it is found from another folder."""
    if word in ("python", "python3"):
        return sys.executable
    if word == "torchrun":
        return str(BIN / word)
    return str(SCRIPTS / word) if word.endswith(".py") else word.replace("per_node=4", "per_node=2")


def run(words: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = environment(**variables)
    return subprocess.run(words, capture_output=True, text=True, cwd=folder, env=env, check=False, timeout=600)


def standin(folder: Path) -> dict[str, str]:
    """Return the variables with which workers find the stand-in."""
    path = os.pathsep.join([str(TESTS / "rlbench_standin"), str(TESTS)])
    root = folder / "CoppeliaSim"
    root.mkdir(exist_ok=True)
    return {"PYTHONPATH": path, "COPPELIASIM_ROOT": str(root), "DISPLAY": ""}


def frames_of(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def short(command: str) -> str:
    return re.sub(r"[^\w=-]+", " ", command)[:60]


#: Each on the stand-in. On the tabletop torchrun is tried by training alone, further down.
RUNS = [(simulator, command) for simulator in ("standin", "tabletop") for command in COMMANDS]
RUNS = [(simulator, command) for simulator, command in RUNS if simulator == "standin" or "torchrun" not in command]


@pytest.mark.parametrize(("simulator", "command"), RUNS, ids=short)
def test_every_command_of_the_documents_runs(simulator: str, command: str, tmp_path: Path) -> None:
    variables, words = scaled(command)
    if simulator == "tabletop":
        words += ["--simulator", "tabletop"]
    else:
        variables = {**standin(tmp_path), **variables}
    done = run(words, tmp_path, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Success rate (done==True): ") == 1, done.stdout
    assert "Average return: " in done.stdout
    if "_total" in command:
        assert done.stdout.count("envs_per_rank=[3, 2]") == 1
    if "--profile_timing" in command:
        assert all(f"{part}=" in done.stdout for part in PARTS)
    if "mp_rlbench" in command:
        chunks = re.findall(r"^chunk \d+/3: done=\d/2 exec_s=[\d.]+ ipc_s=[\d.]+$", done.stdout, re.MULTILINE)
        assert len(chunks) == 3 or "done=2/2" in chunks[-1]
    videos = sorted(path.name for path in tmp_path.rglob("*.mp4"))
    ranks = 2 if "--mode debug" in command else 1 if "--record" in command else 0
    expected = [f"rank{rank}_env0_{view}.mp4" for rank in range(ranks) for view in ("front", "wrist")]
    if "mp_rlbench" in command:
        expected = [f"rank0_env{row}_{view}.mp4" for row in range(2) for view in ("front", "wrist")]
    assert videos == expected


def test_a_backend_that_cannot_draw_gives_way_to_xvfb(tmp_path: Path) -> None:
    """CoppeliaSim's Qt draws with GLX, which EGL does not have: tried, told, and done otherwise."""
    words = [sys.executable, str(SCRIPTS / "rl_vec_env.py"), "--num_envs", "2", "--max_steps", "4"]
    done = run([*words, "--render_backend", "egl", "--output_dir", "films"], tmp_path, **standin(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "EGL does not work here" in done.stderr
    assert "rendering through Xvfb instead" in done.stderr
    assert frames_of(tmp_path / "films/rank0_env0_front.mp4")


def test_displays_that_someone_else_runs_are_used_in_turn(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPTS / "rl_vec_env.py"), "--num_envs", "2", "--max_steps", "4"]
    with Displays(DisplayConfig("xvfb"), 1, rank=0) as displays:
        name = displays.variables(0)["DISPLAY"]
        authority = displays.variables(0)["XAUTHORITY"]
        assert name is not None
        assert authority is not None
        variables = {**standin(tmp_path), "DISPLAY": name, "XAUTHORITY": authority}
        done = run([*words, "--render_backend", "external", "--output_dir", "films"], tmp_path, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert frames_of(tmp_path / "films/rank0_env0_front.mp4")


@pytest.mark.parametrize(("stride", "chunk", "frames"), [(1, 1, 13), (1, 5, 13), (4, 5, 4), (4, 1, 4), (5, 12, 3)])
def test_a_video_shows_every_nth_step_whatever_the_chunk(stride: int, chunk: int, frames: int, tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPTS / "rl_vec_env.py"), "--simulator", "tabletop", "--num_envs", "1"]
    words += ["--max_steps", "12", "--action_chunk", str(chunk), "--video_stride", str(stride)]
    done = run([*words, "--output_dir", "films", "--image_size", "24", "48"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert frames_of(tmp_path / "films/rank0_env0_front.mp4") == frames


def test_fast_renders_and_films_nothing(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPTS / "rl_vec_env.py"), "--num_envs", "1", "--max_steps", "4", "--fast"]
    variables = {**standin(tmp_path), "RLBENCH_STANDIN_LOG": str(tmp_path / "log")}
    done = run([*words, "--output_dir", "films"], tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert "arm_mode=ik action_chunk=16 rgb=off video=off" in done.stdout
    assert "render" not in (tmp_path / "log").read_text()
    assert not (tmp_path / "films").exists()


def test_training_under_torchrun_splits_unevenly_and_its_loss_falls(tmp_path: Path) -> None:
    words = [str(BIN / "torchrun"), "--nproc_per_node=3", str(SCRIPTS / "rl_vec_env.py"), "--mode", "train"]
    words += ["--simulator", "tabletop", "--num_envs_total", "7", "--train_updates", "15", "--action_chunk", "8"]
    done = run(words, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("envs_per_rank=[3, 2, 2]") == 1
    losses = [float(text) for text in re.findall(r"^update \d+/15 loss=([\d.]+)", done.stdout, re.MULTILINE)]
    assert len(losses) == 15
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])
    assert "env_steps=840 " in done.stdout


def test_several_ranks_learn_what_one_would(tmp_path: Path) -> None:
    """The same three environments on one rank and on three: the same losses, to rounding."""
    words = [str(SCRIPTS / "rl_vec_env.py"), "--mode", "train", "--simulator", "tabletop", "--num_envs_total", "3"]
    words += ["--train_updates", "3", "--action_chunk", "4"]
    several = run([str(BIN / "torchrun"), "--nproc_per_node=3", *words], tmp_path)
    one = run([sys.executable, *words], tmp_path)
    found = [re.findall(r"loss=([\d.]+)", done.stdout) for done in (several, one)]
    assert len(found[0]) == 3, several.stderr
    assert np.allclose(np.array(found[0], float), np.array(found[1], float), atol=2e-4)


def test_a_missing_coppeliasim_is_said_with_the_ways_out(tmp_path: Path) -> None:
    for script in ("rl_vec_env.py", "rlbench_vec_env.py", "mp_rlbench_env_test.py"):
        done = run([sys.executable, str(SCRIPTS / script)], tmp_path, COPPELIASIM_ROOT="")
        assert done.returncode == 2
        assert "there is no CoppeliaSim" in done.stderr
        assert "--simulator tabletop" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--num_envs", "0"], "num_envs"),
        (["--arm_mode", "walk"], "walk"),
        (["--no_such_flag"], "no_such_flag"),
        (["--task", "OpenDrawr"], "open_drawer"),
        (["--video_all", "--fast"], "--video_all films nothing"),
        (["--num_envs_total", "-3"], "num_envs_total"),
        (["--image_size", "0", "5"], "image_size"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_bad_flags_are_answered_in_words(flags: list[str], words: str, tmp_path: Path) -> None:
    done = run([sys.executable, str(SCRIPTS / "rl_vec_env.py"), "--simulator", "tabletop", *flags], tmp_path)
    assert done.returncode == 2
    assert words.replace("-", "_") in (done.stdout + done.stderr).replace("-", "_")
    assert "Traceback" not in done.stderr


def test_several_ranks_complain_once(tmp_path: Path) -> None:
    words = [str(BIN / "torchrun"), "--nproc_per_node=3", str(SCRIPTS / "rl_vec_env.py"), "--simulator", "tabletop"]
    done = run([*words, "--num_envs_total", "2"], tmp_path)
    assert done.returncode != 0
    assert (done.stdout + done.stderr).count("2 environments cannot be split over 3 ranks") == 1


def test_ctrl_c_tells_what_was_measured_and_finishes_the_videos(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPTS / "rl_vec_env.py"), "--simulator", "tabletop", "--num_envs", "1"]
    words += ["--max_steps", "1000000", "--action_chunk", "4", "--output_dir", "films", "--image_size", "24", "24"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        film = tmp_path / "films/rank0_env0_wrist.mp4"
        deadline = time.monotonic() + 300
        while not (film.exists() and film.stat().st_size > 4000) and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=600)
    assert "interrupted after" in output
    assert "Success rate (done==True)" in output
    assert "Traceback" not in output
    assert frames_of(film) > 8


def test_the_class_is_importable_and_steps(tmp_path: Path) -> None:
    code = """
import numpy as np
from rlbench_vec_env import RLBenchVectorEnv

env = RLBenchVectorEnv(2, "OpenDrawer", simulator="tabletop", image_size=(24, 32), copy_obs=False)
observations = env.reset(seed=0)
assert observations["front_rgb"].shape == (2, 24, 32, 3)
assert np.shares_memory(observations["front_rgb"], env.envs.observations["front_rgb"])
hold = np.concatenate([observations["gripper_pose"], np.ones((2, 1))], axis=1)
observations, rewards, dones, infos = env.step(hold)
assert rewards.shape == dones.shape == (2,)
observations, rewards, dones, infos = env.step_chunk(np.repeat(hold[:, None], 6, axis=1))
assert rewards.shape == (2, 6) and infos["num_steps"].tolist() == [6, 6]
env.close()
"""
    done = run([sys.executable, "-c", code], tmp_path, PYTHONPATH=str(SCRIPTS))
    assert done.returncode == 0, done.stderr


def test_the_installation_check_of_the_document_runs_on_the_stand_in(tmp_path: Path) -> None:
    code = """
import os
from pyrep import PyRep
from rlbench.environment import Environment
from rlbench.action_modes.action_mode import MoveArmThenGripper
from rlbench.action_modes.arm_action_modes import JointVelocity
from rlbench.action_modes.gripper_action_modes import Discrete
from rlbench.observation_config import ObservationConfig
from rlbench.tasks import ReachTarget
print("CoppeliaSim Root:", os.environ.get("COPPELIASIM_ROOT"))
"""
    done = run([sys.executable, "-c", code], tmp_path, **standin(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "CoppeliaSim Root: /" in done.stdout
