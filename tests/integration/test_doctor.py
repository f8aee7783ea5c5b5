"""``manyarms doctor``: what works is ✓, what is broken is ✗ with the command that mends it, and nothing hangs it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from test_rlbench import standin_options

from conftest import environment
from endings import eventually
from manyarms.cli import doctor as command
from manyarms.doctor import machine, rendering, simulators, strays
from manyarms.doctor.examination import Check, Examination
from manyarms.reporting import video
from manyarms.simulators import graphics
from manyarms.simulators.about import ABSENT, FAULT, OK, Finding
from manyarms.simulators.rlbench import install

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parent.parent
MANYARMS = str(Path(sys.executable).with_name("manyarms"))

needs_xvfb = pytest.mark.skipif(
    shutil.which("Xvfb") is None, reason="Xvfb is not installed: apt-get install xvfb (make test does it as root)"
)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests are not to see the display, the simulators or the temporary files of whoever runs them."""
    for name in ("DISPLAY", "XAUTHORITY", "MUJOCO_GL", "COPPELIASIM_ROOT", "LD_LIBRARY_PATH", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    folder = str(tmp_path_factory.mktemp("tmp"))
    monkeypatch.setattr("tempfile.tempdir", folder)
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])


def doctor(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MANYARMS, "doctor", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=600,
        check=False,
    )


def found(done: subprocess.CompletedProcess[str]) -> dict[str, Finding]:
    """Return the rows of a JSON document; other tests leave strays for a moment, so theirs are not looked at."""
    document = json.loads(done.stdout)
    rows = {row["name"]: Finding(**row) for row in document["rows"]}
    assert len(rows) == len(document["rows"]), "names are unique"
    assert document["healthy"] == all(row.status != FAULT for row in rows.values())
    assert done.returncode == (0 if document["healthy"] else 1)
    assert all(row.fix for row in rows.values() if row.status == FAULT)
    return rows


def by_name(rows: list[Finding]) -> dict[str, Finding]:
    return {row.name: row for row in rows}


def descendants_of(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


# -- what works -----------------------------------------------------------------------------------------------------


@needs_xvfb
def test_a_good_machine_is_all_well_and_all_known_simulators_are_checked_when_none_is_named() -> None:
    done = doctor()
    lines = done.stdout.splitlines()
    rows = {mark + name: said for mark, name, said in re.findall(r"^(\S) ([^:\n]+): (.*)", done.stdout, re.MULTILINE)}
    for name in ("Python", "CPUs", "memory", "memfd", "open files", "temporary files", "Xvfb", "video", "gym"):
        assert f"✓{name}" in rows, done.stdout
    assert "5 steps, 2 cameras" in rows["✓tabletop"]
    assert "a picture drawn by" in rows["✓Xvfb"]
    assert "a picture drawn by" in rows.get("✓EGL", "") + rows.get("✓OSMesa", "")
    assert {name for name in rows if name[0] == "✗"} <= {"✗GPU", "✗PyTorch", "✗stray processes"}
    missing = next(i for i, line in enumerate(lines) if line.startswith("– rlbench: not installed"))
    assert "scripts/install_coppeliasim.sh" in lines[missing + 1]
    assert "\x1b" not in done.stdout, "no colours without a terminal"
    assert "well" in lines[-1]


def test_it_is_a_function_too(capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[Finding] = []
    result = command.run(command.DoctorConfig(("standins:Sleeper",), timeout=600), hear=heard.extend)
    assert list(result.rows) == heard
    assert by_name(heard)["standins:Sleeper"].status == OK
    assert result.healthy == (result.faults == [])
    assert capfd.readouterr() == ("", ""), "what it finds is told by the result"


def test_a_terminal_shows_a_table_and_commands_that_can_be_copied() -> None:
    rows = (
        Finding("a thing", OK, "word " * 30),
        Finding("PyTorch [extra]", FAULT, "not there", "pip install 'x[torch]' " * 5),
    )
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    code = (
        "import sys; from rich.console import Console; from manyarms.simulators.about import Finding\n"
        "from manyarms.cli.doctor import DoctorResult, draw\n"
        f"draw(DoctorResult({rows!r}), Console())"
    )
    # Given by name: GNU readline, where pytest has loaded it, sets COLUMNS behind the back of `os.environ`.
    subprocess.run([sys.executable, "-c", code], stdout=theirs, env={**os.environ, "TERM": "xterm"}, check=True)
    os.close(theirs)
    text = b""
    with contextlib.suppress(OSError):
        while more := os.read(ours, 4096):
            text += more
    os.close(ours)
    lines = text.decode().splitlines()
    assert sum("word" in line for line in lines) >= 6, "long findings wrap"
    assert any("PyTorch [extra]" in line and "not there" in line and "✗" in line for line in lines)
    assert any(line.strip() == rows[1].fix.strip() for line in lines), "commands do not"


# -- what is broken -------------------------------------------------------------------------------------------------


def test_a_broken_machine_is_told_with_what_mends_it(tmp_path: Path) -> None:
    rows = found(doctor("--json", PATH=str(tmp_path), MUJOCO_GL="nonsense"))
    assert (rows["Xvfb"].status, rows["Xvfb"].fix.split()[:3]) == (FAULT, ["apt-get", "install", "xvfb"])
    chosen = rows["MUJOCO_GL=nonsense"]
    assert chosen.status == FAULT
    assert "invalid value" in chosen.found
    assert "unset MUJOCO_GL" in chosen.fix
    assert rows["tabletop"].status == FAULT
    assert "MUJOCO_GL" in rows["tabletop"].found, "the error's own words"
    assert rows["gym"].status == OK


def test_xvfb_is_optional_for_simulators_that_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(map(simulators.needs_xvfb, ("gym/CartPole-v1", "tabletop", "standins:Walker")))
    assert simulators.needs_xvfb("rlbench/open_drawer")
    monkeypatch.setenv("PATH", "")
    assert [row.status for row in rendering.on_display(10, needed=False)] == [ABSENT]
    assert [row.status for row in rendering.on_display(10, needed=True)] == [FAULT]


def test_an_egl_without_a_driver_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    if not graphics.is_installed("egl"):
        pytest.skip("there is no libEGL here: apt-get install libegl1")
    monkeypatch.setenv("__EGL_VENDOR_LIBRARY_FILENAMES", "/nowhere.json")
    row = by_name(rendering.without_display(60))["EGL"]
    assert row.status == FAULT
    assert "EGL" in row.found
    assert "apt-get install libegl1" in row.fix


@pytest.mark.parametrize(
    ("script", "said"), [("exec sleep 600", "did not start in time"), ("echo no screens >&2; exit 1", "no screens")]
)
def test_an_xvfb_that_does_not_work_is_told(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "Xvfb"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (row,) = rendering.on_display(3, needed=True)
    assert row.status == FAULT
    assert said in row.found


BLANK = """
from manyarms.simulators.base import Field, Simulator, Spec, StepResult

class Blank(Simulator):
    def __init__(self, task=""):
        self.spec = Spec({"rgb": Field((8, 8, 3), "uint8", 0, 255, camera="front")}, {"": Field((1,))})

    def reset(self, task, seed, init_state):
        pass

    def step(self, action):
        return StepResult(0.0)

    def observe(self, out, cameras):
        out["rgb"][...] = 255
"""


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ("echo 'NVIDIA H200, 570.1, 143771 MiB, 143000 MiB'", OK, "NVIDIA H200, 143000 MiB free of 143771 MiB"),
        ("echo Driver/library version mismatch; exit 18", FAULT, "version mismatch"),
        ("exec sleep 600", FAULT, "no answer within"),
    ],
    ids=["a GPU", "a driver that does not fit", "a driver that hangs"],
)
def test_what_the_driver_says_is_told(
    script: str, status: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    row = by_name(machine.graphics_card(12))["GPU"]
    assert row.status == status
    assert said in row.found


def test_plug_ins_are_tried_too_and_must_show_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blank_plug_in.py").write_text(BLANK)
    about = tmp_path / "blank_plug_in-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: blank-plug-in\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[manyarms.simulators]\nblank = blank_plug_in:Blank\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "blank" in simulators.known(None, 30)
    (row,) = simulators.findings("blank", None, False, 60)
    assert row.status == FAULT
    assert "every pixel of rgb is the same" in row.found
    (row,) = simulators.findings("blank/sky", None, True, 60)
    assert row.status == OK, "whoever names a task may know it to be dark"
    assert "every pixel of rgb is the same" in row.found


FACTS = """
import os
from manyarms.simulators.about import About, fault, ok

about = About(
    "a thing", factory="standins:Walker", findings="facts_of_ours:findings", task="near", options={"cameras": ["front"]}
)

def findings(python):
    if "LICENCE" in os.environ:
        return [ok("licence", os.environ["LICENCE"])]
    return [fault("licence", "not set", f"LICENCE=1 {python}")]
"""


def test_plug_ins_say_what_they_stand_on_and_how_they_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "facts_of_ours.py").write_text(FACTS)
    info = tmp_path / "ours-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[manyarms.simulators]\nours = facts_of_ours\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    licence, tried = simulators.findings("ours", None, True, 60)
    assert (licence.name, licence.status, licence.fix) == ("ours: licence", FAULT, f"LICENCE=1 {sys.executable}")
    assert (tried.name, tried.status) == ("ours", FAULT)
    monkeypatch.setenv("LICENCE", "4711")
    licence, tried = simulators.findings("ours", None, True, 60)
    assert (licence.status, tried.status) == (OK, FAULT)
    assert "ours/near: every pixel of front_rgb is the same" in tried.found, "the task and the camera of its facts"


def test_parts_that_crash_when_they_are_looked_at_are_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crashing.py").write_text("import os\ndef findings(python):\n    os.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    about = simulators.About(findings="crashing:findings", install="mend it")
    monkeypatch.setattr(simulators.registry, "about", lambda _: about)
    crashed, tried = simulators.findings("crashing", None, True, 60)
    assert "SIGABRT" in crashed.found
    assert (crashed.status, tried.status) == (FAULT, FAULT)


def test_another_interpreter_is_looked_at(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv/bin/python")
    rows = found(doctor("gym", "--json", "--python", str(tmp_path / "venv")))
    assert not {"tabletop", "rlbench"} & set(rows), "they were not asked for"
    assert rows["Python of simulators"].status == FAULT
    assert rows["Python of simulators"].fix == f"{python} -m pip install numpy"
    assert rows["gym"].status == FAULT
    assert rows["gym"].fix == f"{python} -m pip install gymnasium"
    assert by_name(simulators.findings("gym", python, False, 60))["gym"].status == ABSENT, "it was not asked for"


@pytest.mark.parametrize(("version", "status"), [("3.7.17", FAULT), ("3.8.0", OK), ("3.10.4", OK), ("3.14.0", OK)])
def test_interpreters_of_3_8_and_later_will_do(version: str, status: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {version} 1.24.4\n")
    python.chmod(0o755)
    row = machine.other_interpreter(str(python), 60)
    assert row.status == status
    assert version in row.found


@pytest.mark.parametrize(("limits", "status", "workers"), [("-Sn 150; ulimit -Hn 4096", OK, 992), ("-n 150", FAULT, 5)])
def test_open_files_are_as_many_as_can_be_asked_for(limits: str, status: str, workers: int) -> None:
    code = "from manyarms.doctor.machine import open_files; row = open_files(); print(row.status, row.found)"
    command = f'ulimit {limits}; exec {sys.executable} -c "{code}"'
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout.strip()
    hard = 4096 if status == OK else 150
    assert said == f"{status} 150, and up to {hard} when asked for: enough for {workers} workers"


def test_a_codec_that_writes_other_pictures_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Negative(video.VideoWriter):
        def add(self, frame: np.ndarray) -> None:
            super().add(255 - frame)

    assert [row.status for row in machine.video()] == [OK]
    monkeypatch.setattr(video, "VideoWriter", Negative)
    (row,) = machine.video()
    assert row.status == FAULT
    assert row.found == "8 of 8 frames came back, 8 of them changed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tabeltop"], "did you mean tabletop?"),
        (["gym/CartPole-v1", "gmy/CartPole-v1"], "did you mean gym?"),
        (["--jason"], "--json"),
        (["--timeout", "0"], "timeout is 0"),
        (["--timeout", "nan"], "timeout is nan"),
        (["--python", "/no/python"], "no Python interpreter"),
    ],
)
def test_mistakes_get_an_answer_not_a_traceback(arguments: list[str], message: str) -> None:
    done = doctor(*arguments)
    assert done.returncode == 2
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


# -- what hangs -----------------------------------------------------------------------------------------------------

HANGING = """
import time

class Hanging:
    def __init__(self):
        time.sleep(600)
"""


def test_a_simulator_that_hangs_does_not_hang_the_doctor(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    name = f"{tmp_path / 'hanging.py'}:Hanging"
    rows = found(doctor(name, "--json", "--timeout", "12"))
    assert rows[name].status == FAULT
    assert "did not start within" in rows[name].found
    assert eventually(lambda: not [p for p in psutil.process_iter() if str(tmp_path) in " ".join(command_line(p))])


def command_line(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def test_checks_that_hang_or_crash_are_findings() -> None:
    nap = f"600.{os.getpid()}"
    sleeper = Check("sleeper", "subprocess:check_call", {"args": ["sleep", nap]})
    with Examination([sleeper], timeout=5.0) as examination:
        (late,) = (row for rows in examination.findings() for row in rows)
    assert "no answer within 5 s" in late.found
    assert not [p for p in psutil.process_iter() if command_line(p) == ["sleep", nap]], "who is killed is waited for"
    checks = [Check("crasher", "os:abort"), Check("liar", "builtins:dict", {"a": 1})]
    with Examination(checks, timeout=600.0) as examination:
        crasher, liar = (row for rows in examination.findings() for row in rows)
    assert "SIGABRT" in crasher.found
    assert {row.status for row in (late, crasher, liar)} == {FAULT}


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    process = subprocess.Popen(
        [MANYARMS, "doctor", f"{tmp_path / 'hanging.py'}:Hanging", "--timeout", "900"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    worker = "manyarms.workers.main"
    assert eventually(lambda: any(worker in " ".join(command_line(p)) for p in descendants_of(process.pid)))
    started = descendants_of(process.pid)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert err.strip() == "interrupted"
    assert eventually(lambda: not any(one.is_running() for one in started))


# -- RLBench --------------------------------------------------------------------------------------------------------


def own_library() -> Path:
    """Return some shared library of this system."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]) for line in maps if line.endswith(".so.6") and "libm" in line)


@pytest.fixture
def coppeliasim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like CoppeliaSim 4.1.0, the stand-ins of RLBench and PyRep, and all variables set."""
    root = tmp_path / "CoppeliaSim"
    (root / "platforms").mkdir(parents=True)
    (root / "readme.txt").write_text("This is the Ubuntu release V4.1.0, 64bit\n")
    for name in ("libcoppeliaSim.so.1", "platforms/libqxcb.so"):
        shutil.copy(own_library(), root / name)
    for name, value in standin_options(root)["env"].items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DISPLAY")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(root))
    return root


@needs_xvfb
@pytest.mark.usefixtures("coppeliasim")
def test_rlbench_with_everything_it_needs_is_well() -> None:
    rows = simulators.findings("rlbench", None, True, 60)
    assert [row for row in rows if row.status != OK] == []
    parts = ("COPPELIASIM_ROOT", "CoppeliaSim", "libraries", "LD_LIBRARY_PATH", "PyRep", "RLBench", "OpenCV", "display")
    assert [row.name for row in rows] == [*(f"rlbench: {part}" for part in parts), "rlbench"]


def parts_of_rlbench() -> dict[str, Finding]:
    rows = by_name(simulators.findings("rlbench", None, False, 60))
    assert rows["rlbench"].status == FAULT
    assert "not started" in rows["rlbench"].found
    return {name.removeprefix("rlbench: "): row for name, row in rows.items() if row.status == FAULT}


def test_a_newer_coppeliasim_is_refused_with_the_reason(coppeliasim: Path) -> None:
    (coppeliasim / "readme.txt").write_text("This is the Debian/Ubuntu release V4.10.0, 64bit\n")
    row = parts_of_rlbench()["CoppeliaSim"]
    assert "version 4.10.0" in row.found
    assert "4.1.0 only" in row.found
    assert "Handle … does not exist" in row.found
    assert row.fix.startswith("scripts/install_coppeliasim.sh; export COPPELIASIM_ROOT=")
    assert "scripts/reinstall_rlbench.sh" in row.fix, "PyRep must be built again"


def test_the_version_is_read_from_whatever_tells_it(tmp_path: Path) -> None:
    root = tmp_path / "CoppeliaSim_Edu_V4_5_1_rev4_Ubuntu22_04"
    root.mkdir()
    assert install.version_of(root) == "4.5.1"
    (root / ".manyarms-origin").write_text("CoppeliaSim_Edu_V4_3_0_Ubuntu20_04\n")
    assert install.version_of(root) == "4.3.0"
    (root / "libcoppeliaSim.so.1").write_bytes(b"\x7fELF\0\0004.1.0\0 1.2.11\0003.0.8\0")
    assert install.version_of(root) == "4.1.0"
    (root / "readme.txt").write_text("This is the Ubuntu release V4.2.0, 64bit\n")
    assert install.version_of(root) == "4.2.0"
    header = root / "programming/include/simConst.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define SIM_PROGRAM_VERSION_NB 41003\r\n")
    assert install.version_of(root) == "4.10.3"
    assert install.version_of(tmp_path) == ""
    assert install.coppeliasim_version(tmp_path, sys.executable).status == ABSENT


@pytest.mark.usefixtures("coppeliasim")
def test_variables_that_rlbench_misses_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere/else")
    assert parts_of_rlbench()["LD_LIBRARY_PATH"].fix.startswith('export LD_LIBRARY_PATH="$COPPELIASIM_ROOT')
    monkeypatch.setenv("COPPELIASIM_ROOT", str(tmp_path / "nowhere"))
    assert "is no folder" in parts_of_rlbench()["COPPELIASIM_ROOT"].found
    monkeypatch.setenv("COPPELIASIM_ROOT", str(tmp_path))
    assert "no libcoppeliaSim.so.1" in parts_of_rlbench()["COPPELIASIM_ROOT"].found


def test_libraries_that_coppeliasim_misses_are_named_with_their_packages(coppeliasim: Path) -> None:
    plug_in = coppeliasim / "platforms/libqxcb.so"
    some = Path(np._core._multiarray_umath.__file__).read_bytes()  # type: ignore[attr-defined]
    plug_in.write_bytes(some.replace(b"libm.so.6\0", b"libm.so.9\0"))
    row = parts_of_rlbench()["libraries"]
    assert "libm.so.9" in row.found
    assert row.fix.startswith("apt-get install ")
    assert "libm9" in row.fix.split()
    assert install.debian_package("libxcb-icccm.so.4") == "libxcb-icccm4"
    assert install.debian_package("libxkbcommon-x11.so.0") == "libxkbcommon-x11-0"
    plug_in.unlink()
    assert "libqxcb.so" in parts_of_rlbench()["libraries"].found


@pytest.mark.usefixtures("coppeliasim")
def test_the_other_pyrep_and_the_other_opencv_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other/pyrep").mkdir(parents=True)
    (tmp_path / "other/pyrep/__init__.py").write_text("")
    metadata = tmp_path / "other/opencv_python-4.11.0.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: opencv-python\nVersion: 4.11.0\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'other'}{os.pathsep}{os.environ['PYTHONPATH']}")
    parts = parts_of_rlbench()
    assert "another one, from PyPI" in parts["PyRep"].found
    assert "uninstall -y pyrep" in parts["PyRep"].fix
    assert "Qt" in parts["OpenCV"].found
    assert parts["OpenCV"].fix.endswith("install opencv-python-headless")


@pytest.mark.usefixtures("coppeliasim")
def test_rlbench_without_a_display_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ldd").symlink_to(str(shutil.which("ldd")))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    row = parts_of_rlbench()["display"]
    assert "DISPLAY is not set" in row.found
    assert row.fix == "apt-get install xvfb"
    monkeypatch.setenv("DISPLAY", ":4711")
    assert ":4711" in parts_of_rlbench()["display"].found


# -- what earlier runs have left ------------------------------------------------------------------------------------

SCRIPT = """
import json, sys, time
import numpy as np
import manyarms
from manyarms.vector.keeper import Keeper
settings = {"simulator": "standins:Sleeper", "naps": {"0": 600.0, "1": 600.0}, **json.loads(sys.argv[1])}
envs = manyarms.make_vec(num_envs=2, step_timeout=900, **{k: v for k, v in settings.items() if v is not None})
infos = envs.reset(seed=0)[1]
envs.send([0, 1], np.zeros((2, 1, 1), np.float32))
started = [int(pid) for pid in infos.get("child", [])]
print(json.dumps([Keeper.instance()._process.pid, envs.worker_pids, started]), flush=True)
time.sleep(600)
"""


class Run:
    """A main process whose workers are in the middle of a step."""

    def __init__(self, **settings: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps(settings)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.keeper, self.workers, self.started = json.loads(self.process.stdout.readline())
        self.all = [psutil.Process(pid) for pid in [self.process.pid, self.keeper, *self.workers, *self.started]]
        self.all += [child for child in descendants_of(self.process.pid) if child not in self.all]

    def lose(self) -> None:
        """Kill the keeper, then the main process: nobody is left to clean up."""
        os.kill(self.keeper, signal.SIGKILL)
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        for process in self.all:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.fixture(params=[{}, {"start_method": "spawn"}, {"display": "xvfb"}], ids=["forked", "spawned", "with displays"])
def a_run(request: pytest.FixtureRequest) -> Iterator[Run]:
    if "display" in request.param and shutil.which("Xvfb") is None:
        pytest.skip("Xvfb is not installed: apt-get install xvfb")
    started = Run(**request.param)
    yield started
    started.close()


def end_as_told(row: Finding, run: Run) -> None:
    """Do what a row says, but to the processes of this run only: there may be those of other tests."""
    words = [word for word in row.fix.split()[2:] if abs(int(word)) in names_of_ours(row, run)]
    subprocess.run(["sh", "-c", f"kill -9 {' '.join(words)}"], check=True)


def names_of_ours(row: Finding, run: Run) -> list[int]:
    """Return the processes of a run that a row calls stray."""
    targets = {abs(int(word)) for word in row.fix.removeprefix("kill -9 ").split()}
    return sorted(targets & {process.pid for process in run.all})


def test_workers_without_a_main_process_are_strays_and_the_command_ends_them(a_run: Run) -> None:
    assert names_of_ours(strays.findings()[0], a_run) == [], "a live run is left alone"
    a_run.lose()
    row = strays.findings()[0]
    assert row.status == FAULT
    assert set(names_of_ours(row, a_run)) >= set(a_run.workers)
    end_as_told(row, a_run)
    assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in a_run.workers))
    assert names_of_ours(strays.findings()[0], a_run) == []


def test_what_a_stray_has_started_since_it_was_told_of_ends_with_it(tmp_path: Path) -> None:
    run, children = Run(simulator="standins:LateParent", folder=str(tmp_path), naps=None), []
    try:
        run.lose()
        row = strays.findings()[0]
        assert set(names_of_ours(row, run)) >= set(run.workers)
        (tmp_path / "go").touch()
        assert eventually(lambda: len(list(tmp_path.glob("child-*"))) == 2)
        children = [psutil.Process(int(path.name.removeprefix("child-"))) for path in tmp_path.glob("child-*")]
        end_as_told(row, run)
        assert not psutil.wait_procs(children, timeout=60)[1], "they are in no list, but in the group"
    finally:
        run.close()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


@needs_xvfb
def test_folders_of_runs_that_are_gone_are_told() -> None:
    run = Run(display="xvfb")
    try:
        temporary = Path(os.environ["TMPDIR"])
        (folder,) = temporary.glob("manyarms-display-*")
        os.utime(folder, (0, 0))
        assert strays.findings()[1].status == OK
        run.lose()
        for process in run.all:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        row = strays.findings()[1]
        assert (row.status, row.fix) == (FAULT, f"rm -r {folder}")
        subprocess.run(["sh", "-c", row.fix], check=True)
        assert strays.findings()[1].status == OK
    finally:
        run.close()


def test_a_folder_that_is_locked_is_in_use() -> None:
    folder = Path(os.environ["TMPDIR"]) / "manyarms-thing-1"
    folder.mkdir()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert strays.findings()[1].status == OK
    assert strays.findings()[1].status == FAULT


def test_folders_of_other_people_are_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.environ["TMPDIR"]) / "manyarms-thing-2"
    folder.mkdir()
    os.utime(folder, (0, 0))
    assert strays.findings()[1].fix == f"rm -r {folder}"
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    assert strays.findings()[1].status == OK


def test_a_keeper_that_was_stopped_is_a_stray() -> None:
    run = Run()
    try:
        os.kill(run.keeper, signal.SIGSTOP)
        assert run.keeper not in names_of_ours(strays.findings()[0], run)
        run.kill()
        assert run.keeper in names_of_ours(strays.findings()[0], run)
    finally:
        run.close()


@pytest.mark.parametrize("simulator", ["Parent", "Begetter"])
def test_what_a_killed_worker_has_started_is_a_stray(simulator: str) -> None:
    run = Run(simulator=f"standins:{simulator}", naps=None)
    try:
        assert len(run.started) == 2
        assert names_of_ours(strays.findings()[0], run) == []
        run.lose()
        assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in run.workers)), "workers end by themselves"
        assert names_of_ours(strays.findings()[0], run) == sorted(run.started)
    finally:
        run.close()
