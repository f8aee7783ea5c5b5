"""Displays for simulators that need an X server: real ones, with OpenGL, and nothing left however it ends."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import manyarms
from conftest import environment
from endings import alive, eventually
from manyarms.errors import ConfigError, StartError
from manyarms.vector import display, xauthority
from manyarms.vector.display import DisplayConfig, Displays
from manyarms.vector.egl import egl_failure
from manyarms.vector.xauthority import check_external, knock
from manyarms.vector.xvfb import Xvfb

needs_xvfb = pytest.mark.skipif(
    shutil.which("Xvfb") is None, reason="Xvfb is not installed: apt-get install xvfb (make test does it as root)"
)
SOCKETS = Path("/tmp/.X11-unix")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests are not to see the display, the rank or the temporary files of whoever runs them."""
    for name in ("DISPLAY", "XAUTHORITY", "RLBENCH_PER_PROCESS_XVFB", "RLBENCH_BASE_DISPLAY", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def answers(variables: dict[str, Any]) -> bool:
    cookies = xauthority.known_cookies(Path(variables["XAUTHORITY"]), variables["DISPLAY"])
    return knock(variables["DISPLAY"], cookies, 10.0) == ""


def files_of(number: int) -> dict[Path, tuple[int, int]]:
    """Return a display's files, and which they are: another server may take the number at any time."""
    files: dict[Path, tuple[int, int]] = {}
    for path in (SOCKETS / f"X{number}", Path(f"/tmp/.X{number}-lock")):
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            files[path] = (status.st_ino, status.st_mtime_ns)
    return files


def remaining(files: dict[Path, tuple[int, int]]) -> list[Path]:
    return [path for path, which in files.items() if files_of(int(path.name.strip("X.-lock"))).get(path) == which]


def servers_of(folder: Path) -> list[psutil.Process]:
    """Return the Xvfb whose files are in a folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == "Xvfb" and str(folder) in " ".join(process.cmdline()):
                found.append(process)
    return found


# -- Xvfb -----------------------------------------------------------------------------------------------------------


@needs_xvfb
def test_sixteen_displays_at_once_all_different_and_answering(tmp_path: Path) -> None:
    with Displays(DisplayConfig(), 16) as displays:
        variables = [displays.variables(worker) for worker in range(16)]
        for name in ("DISPLAY", "XAUTHORITY", "HOME", "XDG_RUNTIME_DIR"):
            assert len({own[name] for own in variables}) == 16
        assert all(answers(own) for own in variables)
        assert knock(str(variables[0]["DISPLAY"]), [], 10.0).startswith("Authorization required"), "others are kept out"
        files = {path: which for server in displays.servers for path, which in files_of(server.number).items()}
        assert len(files) >= 16
        assert len(servers_of(tmp_path)) == 16
    assert remaining(files) == []
    assert servers_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@needs_xvfb
def test_nobody_listens_on_the_network() -> None:
    with Displays(DisplayConfig(), 1) as displays:
        inet = [c for c in psutil.Process(displays.servers[0].pid).net_connections("inet") if c.status == "LISTEN"]
        assert inet == []


@needs_xvfb
def test_processes_that_start_at_once_get_different_displays() -> None:
    code = (
        "import sys; from manyarms.vector.display import *\n"
        "with Displays(DisplayConfig(), 6) as d: print(*(s.number for s in d.servers), flush=True); sys.stdin.read()"
    )
    several: list[Any] = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    numbers = [int(number) for process in several for number in process.stdout.readline().split()]
    for process in several:
        process.communicate()
        assert process.returncode == 0
    assert len(set(numbers)) == 18


@needs_xvfb
def test_workers_render_with_opengl_inside(tmp_path: Path) -> None:
    """MuJoCo through GLFW and GLX: there is no other way than through the X server."""
    settings: Any = {"cameras": ["render"], "env": {"MUJOCO_GL": "glfw"}, "display": "xvfb"}
    with manyarms.make_vec("gym/Reacher-v5", 2, **settings) as envs:
        observations, _ = envs.reset(seed=0)
        assert observations["render"].std(axis=(1, 2, 3)).min() > 5, "the frames show something"
        environments = [psutil.Process(pid).environ() for pid in envs.worker_pids]
        assert len({env["DISPLAY"] for env in environments}) == 2
        assert all(env["HOME"].startswith(str(tmp_path)) and Path(env["HOME"]).is_dir() for env in environments)
        assert {env["QT_QPA_PLATFORM"] for env in environments} == {"xcb"}
    assert list(tmp_path.iterdir()) == []
    assert servers_of(tmp_path) == []


@needs_xvfb
def test_a_worker_whose_display_was_killed_gets_a_new_one(tmp_path: Path) -> None:
    settings: Any = {"cameras": ["render"], "env": {"MUJOCO_GL": "glfw"}, "display": "xvfb"}
    with manyarms.make_vec("gym/Reacher-v5", 2, **settings) as envs:
        envs.reset(seed=0)
        number = psutil.Process(envs.worker_pids[1]).environ()["DISPLAY"].lstrip(":")
        before = files_of(int(number))
        victim = next(p for p in servers_of(tmp_path) if p.cmdline()[-2] == authority_of(envs.worker_pids[1]))
        victim.kill()
        other = envs.worker_pids[0]
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        *_, truncated, _ = envs.step(np.zeros((2, 2), np.float32))
        assert truncated.tolist() == [False, True]
        observations, *_ = envs.step(np.zeros((2, 2), np.float32))
        assert observations["render"].std(axis=(1, 2, 3)).min() > 5
        assert envs.worker_pids[0] == other
        assert remaining(before) == []
        assert len(servers_of(tmp_path)) == 2
    assert servers_of(tmp_path) == []


def authority_of(pid: int) -> str:
    return psutil.Process(pid).environ()["XAUTHORITY"]


@needs_xvfb
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_display_that_does_not_answer_is_replaced(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyarms.vector.xvfb.PATIENCE", 5.0)
    with Displays(DisplayConfig(), 2) as displays:
        first, second = displays.servers
        files = files_of(first.number)
        os.kill(first.pid, number)
        if number != signal.SIGSTOP:
            assert eventually(lambda: psutil.Process(first.pid).status() == psutil.STATUS_ZOMBIE)
        assert displays.variables(1)["DISPLAY"] == f":{second.number}", "the other one is left alone"
        assert answers(displays.variables(0))
        assert first not in displays.servers
        assert second in displays.servers
        assert remaining(files) == []
        assert not psutil.pid_exists(first.pid)


@needs_xvfb
def test_the_files_of_a_display_that_was_killed_go_with_the_others() -> None:
    """It could not remove them itself, and nobody has asked for it since."""
    with Displays(DisplayConfig(), 2) as displays:
        files = {path: which for server in displays.servers for path, which in files_of(server.number).items()}
        os.kill(displays.servers[0].pid, signal.SIGKILL)
    assert len(files) >= 2
    assert remaining(files) == []


@needs_xvfb
def test_a_restarted_worker_keeps_its_display_and_gets_a_clean_home() -> None:
    with Displays(DisplayConfig(), 1) as displays:
        first = displays.variables(0)
        (Path(str(first["HOME"])) / "settings").write_text("half a se")
        again = displays.variables(0)
        assert again == first
        assert list(Path(str(again["HOME"])).iterdir()) == []
        assert Path(str(again["XDG_RUNTIME_DIR"])).stat().st_mode & 0o777 == 0o700


@needs_xvfb
def test_several_workers_share_a_display_until_the_last_ends() -> None:
    with Displays(DisplayConfig(workers_per_display=2), 5) as displays:
        names = [displays.variables(worker)["DISPLAY"] for worker in range(5)]
        homes = {displays.variables(worker)["HOME"] for worker in range(5)}
        assert (len(displays.servers), len(homes)) == (3, 5)
        assert names[0] == names[1] != names[2] == names[3] != names[4]
        displays.release(0)
        assert len(displays.servers) == 3
        displays.release(1)
        displays.release(4)
        assert [f":{server.number}" for server in displays.servers] == [names[2]]


# -- nothing is left ------------------------------------------------------------------------------------------------

SCRIPT = """
import json, os, sys, time
import manyarms
print("starting", flush=True)
with manyarms.make_vec("standins:Walker", 3, cameras=[], display="xvfb") as envs:
    envs.reset(seed=0)
    servers = envs._supervisor._displays.servers
    print(json.dumps([[s.number for s in servers], [s.pid for s in servers], envs.worker_pids]), flush=True)
    if sys.argv[1] == "raise":
        raise RuntimeError("the user's own mistake")
    if sys.argv[1] == "exit":
        sys.stdin.readline()
        sys.exit(3)
    if sys.argv[1] == "fork" and os.fork() == 0:
        time.sleep(5)  # a child that keeps every file of its parent open
        os._exit(0)
    time.sleep(600)
"""


def start_script(what: str, tmp_path: Path) -> Any:
    env = environment(TMPDIR=str(tmp_path))
    process: Any = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
    )
    assert process.stdout.readline() == "starting\n"
    return process


@needs_xvfb
@pytest.mark.parametrize(
    ("what", "number"),
    [
        ("sleep", signal.SIGKILL),
        ("fork", signal.SIGKILL),
        ("sleep", signal.SIGTERM),
        ("sleep", signal.SIGINT),
        ("raise", None),
        ("exit", None),
    ],
    ids=["kill -9", "kill -9 with a forked child", "SIGTERM", "Ctrl-C", "exception", "exit"],
)
def test_nothing_is_left_however_the_main_process_goes(
    what: str, number: signal.Signals | None, tmp_path: Path
) -> None:
    process = start_script(what, tmp_path)
    numbers, servers, workers = json.loads(process.stdout.readline())
    files = {path: which for n in numbers for path, which in files_of(n).items()}
    assert what == "raise" or len(files) >= 3
    if number is not None:
        process.send_signal(number)
    process.stdin.close()
    process.wait(timeout=600)
    process.stdout.close()
    assert eventually(lambda: not any(map(alive, [*servers, *workers])))
    assert eventually(lambda: remaining(files) == [])
    assert eventually(lambda: list(tmp_path.iterdir()) == [])


@needs_xvfb
@pytest.mark.slow
def test_nothing_is_left_of_displays_that_were_just_starting(tmp_path: Path) -> None:
    for delay in (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3):
        process = start_script("sleep", tmp_path)
        time.sleep(delay)
        process.kill()
        process.wait(timeout=600)
        process.stdout.close()
        process.stdin.close()
        assert eventually(lambda: servers_of(tmp_path) == [])
        assert eventually(lambda: stale_sockets() == [])


def stale_sockets() -> list[Path]:
    return [path for path in SOCKETS.glob("X*") if knock(f":{path.name[1:]}", [], 10.0) == "Connection refused"]


@needs_xvfb
def test_a_forked_child_does_not_end_its_parents_displays() -> None:
    with Displays(DisplayConfig(), 1) as displays:
        child = os.fork()
        if child == 0:
            displays.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert displays.servers[0].problem() == ""


# -- what goes wrong at the start -----------------------------------------------------------------------------------


def test_without_xvfb_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StartError, match="apt-get install xvfb"):
        manyarms.make_vec("standins:Walker", 2, cameras=[], display="xvfb")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no room for screens >&2; exit 1", "ended when(.|\n)*no room for screens"),
        ("exec sleep 600", "2 of 2 Xvfb"),
    ],
    ids=["it ends", "it hangs"],
)
def test_an_xvfb_that_does_not_start_is_explained(
    script: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program = tmp_path_factory.mktemp("bin") / "Xvfb"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    with pytest.raises(StartError, match=said), Displays(DisplayConfig(), 2, timeout=1.0):
        pass
    assert list(tmp_path.iterdir()) == []
    assert not [child for child in psutil.Process().children() if child.name() in ("sleep", "Xvfb")]


@pytest.mark.parametrize(
    "wrong",
    [{"backend": "glx"}, {"workers_per_display": 0}, {"base": -1}, {"screen": "big"}, {"per_rank": True}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    name = "display" if "backend" in wrong else next(iter(wrong))
    with pytest.raises(ConfigError, match=f"{name} is {next(iter(wrong.values()))!r}"):
        DisplayConfig(**wrong)


@pytest.mark.parametrize("wrong", ["glx", True, 99])
def test_vector_environments_refuse_them_too(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="display is"):
        manyarms.make_vec("standins:Walker", 1, display=wrong)


# -- displays of others ---------------------------------------------------------------------------------------------


@pytest.fixture
def two_displays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Two neighbouring displays that someone else runs, open to all; the number of the first."""
    if shutil.which("Xvfb") is None:
        pytest.skip("Xvfb is not installed: apt-get install xvfb")
    log = tmp_path_factory.mktemp("external") / "log"
    for base in range(200 + os.getpid() % 400, 1000, 2):
        with log.open("wb") as out:
            commands = [["Xvfb", f":{number}", "-ac", "-nolisten", "tcp"] for number in (base, base + 1)]
            started = [subprocess.Popen(command, stdout=out, stderr=out) for command in commands]
        try:
            settled = all(eventually(lambda s=s: s.poll() is not None or number_of(s) is not None) for s in started)
            if settled and all(s.poll() is None for s in started):
                yield base
                return
        finally:
            for server in started:
                server.terminate()
                server.wait(timeout=600)
    pytest.fail("no two neighbouring displays are free")


def number_of(server: Any) -> int | None:
    """Return the display of a server that answers."""
    number = int(server.args[1][1:])
    return number if knock(f":{number}", [], 10.0) == "" else None


def test_external_displays_are_counted_by_rank_and_worker(two_displays: int) -> None:
    with Displays(DisplayConfig("external", base=two_displays), 2) as displays:
        assert [displays.variables(i)["DISPLAY"] for i in range(2)] == [f":{two_displays}", f":{two_displays + 1}"]
        assert displays.servers == []
    with Displays(DisplayConfig("external", base=two_displays), 1, rank=1) as displays:
        assert displays.variables(0)["DISPLAY"] == f":{two_displays + 1}"
    shared = DisplayConfig("external", base=two_displays - 6, per_rank=3, workers_per_display=2)
    with Displays(shared, 4, rank=2) as displays:
        assert displays.variables(3)["DISPLAY"] == f":{two_displays + 1}"
    assert knock(f":{two_displays}", [], 10.0) == "", "what others run is not ours to end"


def test_the_variables_of_rlbench_scripts_mean_external(two_displays: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLBENCH_PER_PROCESS_XVFB", "0")
    monkeypatch.setenv("RLBENCH_BASE_DISPLAY", str(two_displays))
    with manyarms.make_vec("standins:Walker", 2, cameras=[], display="xvfb") as envs:
        names = [psutil.Process(pid).environ()["DISPLAY"] for pid in envs.worker_pids]
    assert names == [f":{two_displays}", f":{two_displays + 1}"]
    monkeypatch.setenv("LOCAL_RANK", "1")
    with Displays(DisplayConfig(), 1) as displays:
        assert (displays.backend, displays.variables(0)["DISPLAY"]) == ("external", f":{two_displays + 1}")
    monkeypatch.delenv("RLBENCH_BASE_DISPLAY")
    monkeypatch.setenv("DISPLAY", f":{two_displays}.0")
    with Displays(DisplayConfig(), 5) as displays:
        assert {displays.variables(i)["DISPLAY"] for i in range(5)} == {f":{two_displays}.0"}, "as under xvfb-run"


@needs_xvfb
def test_per_process_xvfb_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLBENCH_PER_PROCESS_XVFB", "1")
    monkeypatch.setenv("RLBENCH_BASE_DISPLAY", "99")
    with Displays(DisplayConfig(), 1) as displays:
        assert displays.backend == "xvfb"


@needs_xvfb
def test_external_displays_are_opened_with_the_users_cookie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = Xvfb(tmp_path / "theirs", "640x480x24")
    try:
        display.wait_until_up([server], time.monotonic() + 60)
        monkeypatch.setenv("DISPLAY", f":{server.number}")
        with pytest.raises(StartError, match=r"does not answer\n  why: Authorization required"):
            check_external(f":{server.number}")
        theirs = xauthority.authority_entry(b"x" * 16) + Path(str(server.variables["XAUTHORITY"])).read_bytes()
        (tmp_path / ".Xauthority").write_bytes(theirs + b"\0\0\0")  # and half an entry
        monkeypatch.setenv("HOME", str(tmp_path))
        with Displays(DisplayConfig("external"), 2) as displays:
            assert displays.variables(1)["XAUTHORITY"] == str(tmp_path / ".Xauthority"), "though HOME is another"
    finally:
        server.ask_to_end()
        server.end(time.monotonic() + 30)


def test_an_external_display_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"display :54321 does not answer\n  why: No such file"):
        manyarms.make_vec("standins:Walker", 1, cameras=[], display=DisplayConfig("external", base=54321))
    with pytest.raises(StartError, match="DISPLAY is not set"), Displays(DisplayConfig("external"), 1):
        pass
    monkeypatch.setenv("DISPLAY", "the big screen")
    with pytest.raises(ConfigError, match="is no display"), Displays(DisplayConfig("external"), 1):
        pass
    monkeypatch.setenv("RLBENCH_BASE_DISPLAY", "first")
    with pytest.raises(ConfigError, match="RLBENCH_BASE_DISPLAY is 'first'"):
        Displays(DisplayConfig("external"), 1)
    assert list(tmp_path.iterdir()) == []


# -- EGL ------------------------------------------------------------------------------------------------------------


def test_egl_needs_no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := egl_failure():
        pytest.skip(f"EGL does not work here: {reason}")
    monkeypatch.setenv("DISPLAY", ":54321")
    with manyarms.make_vec("gym/Reacher-v5", 1, cameras=["render"], display="egl") as envs:
        assert envs.reset(seed=0)[0]["render"].std() > 5
        env = psutil.Process(envs.worker_pids[0]).environ()
    assert (env["QT_QPA_PLATFORM"], env["MUJOCO_GL"]) == ("offscreen", "egl")
    assert "DISPLAY" not in env


@needs_xvfb
def test_where_egl_does_not_work_it_says_so_and_takes_xvfb(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("__EGL_VENDOR_LIBRARY_FILENAMES", "/nonexistent")  # as where there is no driver
    with caplog.at_level(logging.WARNING, "manyarms"), Displays(DisplayConfig("egl"), 1) as displays:
        assert displays.backend == "xvfb"
        assert answers(displays.variables(0))
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == "EGL does not work here (EGL finds no display): rendering through Xvfb instead"
