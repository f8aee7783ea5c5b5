"""The scripts that install BEHAVIOR, run for real without a network, and what ``manyarms doctor`` says of it."""

from __future__ import annotations

import hashlib
import os
import pty
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import houses
from machines import Machine, Mirror, serving
from manyarms.doctor import simulators
from manyarms.simulators.about import ABSENT, FAULT, OK, Finding

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
INSTALL, ALIAS = REPOSITORY / "scripts/install_behavior.sh", REPOSITORY / "requirements/install.sh"
NAME = "isaac-sim-standalone-4.5.0-linux-x86_64.zip"
STEPS = ("omnigibson-robot-assets", "behavior-1k-assets", "2025-challenge-task-instances")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.env["MANYARMS_ROOM"] = "0"
    made.program("nvidia-smi", "echo")
    return made


def make_zip(folder: Path, version: str = "4.5.0-rc.36", top: str = "", name: str = NAME) -> Path:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr(f"{top}VERSION", f"{version}\n")
        archive.writestr(f"{top}apps/isaacsim.exp.base.kit", "kit")
        archive.writestr(f"{top}kit/libcarb.so", "")
        archive.writestr(f"{top}setup_python_env.sh", 'export PYTHONPATH="$SCRIPT_DIR/exts"\n')
        program = zipfile.ZipInfo(f"{top}kit/kit")
        program.external_attr = 0o755 << 16
        archive.writestr(program, os.urandom(100_000))
    return folder / name


def make_checkout(folder: Path, version: str = "3.7.2") -> Path:
    """Make what the script looks at in a checkout of BEHAVIOR-1K."""
    for part in ("bddl3", "OmniGibson/omnigibson"):
        (folder / part).mkdir(parents=True)
    (folder / "OmniGibson/omnigibson/__init__.py").write_text(f'import os\n\n__version__ = "{version}"\n')
    return folder


def python310(machine: Machine) -> Path:
    """Make a Python that makes environments whose pip and OmniGibson write down what they are asked."""
    inner = f"""#!/bin/bash
echo "$ISAAC_PATH|$PYTHONPATH|$LD_PRELOAD|$*" >> {machine.folder}/asked
case "$*" in
  *'-m pip'*) ;;
  *asset_utils*)
    [ -z "$FAILING" ] || [[ "$*" != *"$FAILING"* ]] || {{ mkdir "$OMNIGIBSON_DATA_PATH/behavior-1k-assets"; exit 1; }}
    case "$*" in
      *robot_assets*) mkdir "$OMNIGIBSON_DATA_PATH/omnigibson-robot-assets" ;;
      *behavior_1k*accept_license=True*) mkdir "$OMNIGIBSON_DATA_PATH/behavior-1k-assets" ;;
      *2025*) mkdir "$OMNIGIBSON_DATA_PATH/2025-challenge-task-instances" ;;
    esac ;;
esac
"""
    (machine.folder / "inner").write_text(inner)
    make = f'mkdir -p "$3/bin"; cp {machine.folder}/inner "$3/bin/python"; chmod 755 "$3/bin/python"'
    return machine.program("python3.10", f'case "$1" in -c) exit 0 ;; -m) {make} ;; esac')


def asked(machine: Machine) -> list[str]:
    path = machine.folder / "asked"
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    make_zip(tmp_path / "mirror")
    with serving(tmp_path / "mirror") as server:
        yield server


def everything(machine: Machine, mirror: Mirror) -> list[Any]:
    """Return the arguments that install all of it here."""
    checkout = machine.folder / "BEHAVIOR-1K"
    if not checkout.exists():
        make_checkout(checkout)
    return ["--accept-licences", "--url", mirror.url(NAME), "--source", checkout, "--venv", machine.folder / "venv"]


@pytest.mark.parametrize("script", [INSTALL, ALIAS], ids=lambda path: path.name)
def test_scripts_are_sound_and_explain_themselves(script: Path, machine: Machine) -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([str(shellcheck), str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert os.access(script, os.X_OK)
    assert "--dry-run" in machine.good(script, "--help")
    for wrong in (["--no-such-thing"], ["openvla", "--enable-behavior"], ["--only", "everything"]):
        done = machine.run(script, *wrong)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert "usage: " in done.stderr


def test_the_model_is_explained_for_both_hubs(machine: Machine) -> None:
    text = machine.good(INSTALL, "--help")
    assert "hf download RLinf/RLinf-OpenVLAOFT-Behavior" in text
    assert "modelscope download --model RLinf/RLinf-OpenVLAOFT-Behavior" in text


def test_a_dry_run_prints_every_step_and_changes_nothing(machine: Machine) -> None:
    python310(machine)
    before = machine.listing()
    said = machine.good(INSTALL, "--dry-run", "--venv", machine.folder / "venv")
    assert machine.listing() == before
    assert asked(machine) == []
    wanted = [
        f"https://download.isaacsim.omniverse.nvidia.com/{NAME}",
        "+ unzip -q",
        "-m venv",
        "+ git clone --quiet --depth 1 --branch v3.7.2 https://github.com/StanfordVL/BEHAVIOR-1K.git",
        "torch==2.6.0",
        "BEHAVIOR-1K/bddl3 -e",
        "download_omnigibson_robot_assets",
        "download_behavior_1k_assets",
        "download_2025_challenge_task_instances",
        "export ISAAC_PATH=",
        "export OMNIGIBSON_DATA_PATH=",
        "you would be asked to accept both",
    ]
    places = [said.find(text) for text in wanted]
    assert -1 not in places, wanted[places.index(-1)]
    assert places[:11] == sorted(places[:11]), "in this order"
    assert "RLinf/v3.7.2 https://github.com/RLinf/BEHAVIOR-1K.git" in machine.good(INSTALL, "--dry-run", "--fork")


def test_everything_is_installed_once(machine: Machine, mirror: Mirror) -> None:
    python310(machine)
    arguments = everything(machine, mirror)
    said = machine.good(INSTALL, *arguments)
    isaac, data = machine.home / "isaac-sim", machine.home / "BEHAVIOR-1K-datasets"
    assert (isaac / "VERSION").is_file()
    assert os.access(isaac / "kit/kit", os.X_OK), "what is a program stays one"
    assert sorted(path.name for path in data.iterdir()) == sorted(STEPS)
    assert "manyarms doctor behavior" in said
    pip = [line for line in asked(machine) if "-m pip" in line]
    assert "numpy<2" in pip[0]
    assert "OmniGibson" in pip[2]
    download = next(line for line in asked(machine) if "asset_utils" in line)
    wanted = f"{isaac}|{isaac}/exts|{isaac}/kit/libcarb.so|"
    assert download.startswith(wanted), "with the paths of Isaac Sim, and the library that its python.sh loads first"
    code = 'echo "$ISAAC_PATH $OMNIGIBSON_DATA_PATH"'
    shell = ["bash", "-euc", f". {machine.home}/.bashrc; {code}"]
    assert subprocess.run(shell, env=machine.env, capture_output=True, text=True, check=True).stdout.split() == [
        str(isaac),
        str(data),
    ]
    before, count = machine.listing(), len(asked(machine))
    said = machine.good(INSTALL, *arguments)
    assert said.count("is there already") == 5
    assert machine.listing() == before
    assert len(asked(machine)) == count


def test_the_variables_say_where_things_go(machine: Machine, mirror: Mirror) -> None:
    python310(machine)
    machine.env.update(
        ISAAC_PATH=str(machine.folder / "opt/isaac"), OMNIGIBSON_DATA_PATH=str(machine.folder / "opt/data")
    )
    machine.good(INSTALL, *everything(machine, mirror), "--no-bashrc")
    assert (machine.folder / "opt/isaac/VERSION").is_file()
    assert (machine.folder / "opt/data/behavior-1k-assets").is_dir()
    assert not (machine.home / ".bashrc").exists()


def test_steps_can_be_run_one_by_one(machine: Machine, mirror: Mirror) -> None:
    python310(machine)
    arguments = everything(machine, mirror)
    assert "there is no OmniGibson" in machine.bad(INSTALL, *arguments, "--only", "data")
    machine.good(INSTALL, *arguments, "--only", "omnigibson", "--no-bashrc")
    assert not (machine.home / "isaac-sim").exists()
    machine.good(INSTALL, *arguments, "--only=data", "--no-bashrc")
    assert (machine.home / "BEHAVIOR-1K-datasets" / STEPS[2]).is_dir()
    assert mirror.asked == []


def test_an_interrupted_dataset_is_downloaded_anew(machine: Machine, mirror: Mirror) -> None:
    """OmniGibson takes the folder that is left for a complete one."""
    python310(machine)
    machine.env["FAILING"] = "behavior_1k"
    said = machine.bad(INSTALL, *everything(machine, mirror))
    assert "behavior-1k-assets could not be downloaded" in said
    machine.env["FAILING"] = ""
    said = machine.good(INSTALL, *everything(machine, mirror))
    assert "an earlier download was interrupted" in said
    data = machine.home / "BEHAVIOR-1K-datasets"
    assert sorted(path.name for path in data.iterdir()) == sorted(STEPS)


def test_licences_are_asked_for_and_no_means_no(machine: Machine, mirror: Mirror) -> None:
    python310(machine)
    arguments = [str(each) for each in everything(machine, mirror) if each != "--accept-licences"]
    before = machine.listing()
    assert "the licences were not accepted" in machine.bad(INSTALL, *arguments)
    for answer, code in (("n", 1), ("y", 0)):
        main, terminal = pty.openpty()
        os.write(main, f"{answer}\n".encode())
        done = subprocess.run(
            ["bash", str(INSTALL), *arguments],
            env=machine.env,
            stdin=terminal,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        os.close(main)
        os.close(terminal)
        assert done.returncode == code, done.stderr
        assert "nvidia-software-license-agreement" in done.stdout
        if answer == "n":
            assert machine.listing() == before


def test_an_interrupted_download_goes_on_where_it_ended(machine: Machine, mirror: Mirror) -> None:
    arguments = ["--accept-licences", "--only", "isaac", "--no-bashrc", "--url", mirror.url(NAME)]
    mirror.break_off_after = 50_000
    machine.program("curl", 'exec /usr/bin/curl --retry 0 "${@/--retry/--max-redirs}"')
    assert "it goes on where it ended" in machine.bad(INSTALL, *arguments)
    assert (machine.home / f".cache/manyarms/{NAME}.part").stat().st_size >= 50_000
    mirror.break_off_after = None
    mirror.asked.clear()
    machine.good(INSTALL, *arguments)
    assert mirror.asked[0][1] not in (None, "bytes=0-")
    assert (machine.home / "isaac-sim/VERSION").is_file()
    assert not any((machine.home / ".cache/manyarms").iterdir()), "the zip is not kept"


def test_a_zip_of_ones_own_is_taken_if_it_is_the_right_one(machine: Machine, mirror: Mirror) -> None:
    arguments = ["--accept-licences", "--only", "isaac", "--no-bashrc", "--archive"]
    good = make_zip(machine.folder / "mine", top="isaac-sim-4.5.0/")
    assert "its SHA-256 is" in machine.bad(INSTALL, *arguments, good, "--sha256", "0" * 64)
    other = make_zip(machine.folder / "mine", version="5.1.0", name="other.zip")
    assert "does not hold Isaac Sim 4.5.0" in machine.bad(INSTALL, *arguments, other)
    page = machine.folder / "mine/page.zip"
    page.write_text("<html>please log in</html>")
    assert "no complete zip" in machine.bad(INSTALL, *arguments, page)
    assert "there is no file" in machine.bad(INSTALL, *arguments, machine.folder / "none.zip")
    assert list(machine.home.iterdir()) == []
    machine.good(INSTALL, *arguments, good, "--sha256", hashlib.sha256(good.read_bytes()).hexdigest())
    assert (machine.home / "isaac-sim/VERSION").is_file()
    assert page.exists()
    assert good.exists()


def test_what_is_in_the_way_is_left_alone(machine: Machine, mirror: Mirror) -> None:
    folder = machine.home / "isaac-sim"
    folder.mkdir()
    (folder / "VERSION").write_text("5.1.0-rc.19\n")
    arguments = ["--accept-licences", "--only", "isaac", "--url", mirror.url(NAME)]
    before = machine.listing()
    assert "holds Isaac Sim 5.1.0" in machine.bad(INSTALL, *arguments)
    assert machine.listing() == before
    machine.env["MANYARMS_ROOM"] = "99999999"
    assert "there is no room for Isaac Sim" in machine.bad(INSTALL, *arguments, "--prefix", machine.home / "other")


def test_another_release_is_refused_with_what_it_stands_on(machine: Machine, mirror: Mirror) -> None:
    """Only 3.7 fits the Isaac Sim, the Python, the PyTorch and the instances that are installed."""
    python310(machine)
    before = machine.listing()
    for ref in ("v3.9.1", "RLinf/v3.9.1"):
        said = machine.bad(INSTALL, "--ref", ref, "--dry-run")
        assert f"--ref {ref} is OmniGibson 3.9" in said
        assert "Isaac Sim 5.1.0" in said
    assert machine.listing() == before
    for ref in ("v3.7.1", "main"):
        assert f"--branch {ref}" in machine.good(INSTALL, "--ref", ref, "--dry-run")
    checkout = make_checkout(machine.folder / "newer", "3.9.1")
    arguments = ["--accept-licences", "--only", "omnigibson", "--venv", machine.folder / "venv", "--source", checkout]
    assert "is OmniGibson 3.9.1" in machine.bad(INSTALL, *arguments)
    assert not any("-m pip" in line for line in asked(machine))
    assert checkout.is_dir(), "what is the user's own stays"


def test_another_python_than_3_10_is_refused(machine: Machine, mirror: Mirror) -> None:
    arguments = [*everything(machine, mirror), "--only", "omnigibson", "--python", sys.executable]
    assert "there is no Python 3.10" in machine.bad(INSTALL, *arguments)


def test_the_command_of_the_document_installs_both(machine: Machine) -> None:
    python310(machine)
    before = machine.listing()
    arguments = ["openvla-oft", "--enable-behavior", "--dry-run", "--venv", machine.folder / "venv"]
    said = machine.good(ALIAS, *arguments)
    assert said.index(" torch") < said.index("download_2025_challenge_task_instances")
    assert str(machine.folder / "venv") in said
    assert machine.listing() == before
    assert "isaac" not in machine.good(ALIAS, "openvla-oft", "--dry-run")


# -- the doctor -------------------------------------------------------------------------------------------------------


@pytest.fixture
def complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a machine on which the stand-in has all that OmniGibson needs."""
    version = "3.9.1" if sys.version_info[:2] == (3, 11) else "3.7.2"
    for name, value in houses.build(tmp_path, ("turning_on_radio",), version).items():
        monkeypatch.setenv(name, value)
    for name in STEPS[:2]:
        (tmp_path / "data" / name).mkdir()
    gpu(tmp_path, monkeypatch, "NVIDIA L40S, 550.90.07, 8.9")
    # The version is read where a release has it, and the stand-in has it in a variable.
    folder = tmp_path / "site/omnigibson"
    folder.mkdir(parents=True)
    standin = houses.STANDIN / "omnigibson"
    lines = [
        f'__version__ = "{version}"',
        f"__path__ = [{str(standin)!r}]",
        f"exec(open({str(standin / '__init__.py')!r}).read())",
    ]
    (folder / "__init__.py").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", f"{folder.parent}{os.pathsep}{os.environ['PYTHONPATH']}")
    return tmp_path


def gpu(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    program = folder / "gpu/nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def rows_of_behavior(python: str | None = None) -> dict[str, Finding]:
    return {row.name.removeprefix("behavior: "): row for row in simulators.findings("behavior", python, True, 60)}


def test_the_doctor_starts_it_where_everything_is_there(complete: Path) -> None:
    rows = rows_of_behavior()
    assert list(rows) == ["OmniGibson", "ISAAC_PATH", "OMNIGIBSON_DATA_PATH", "GPU", "behavior"]
    if sys.version_info[:2] in ((3, 10), (3, 11)):
        assert {row.status for row in rows.values()} == {OK}, rows
        assert "behavior/turning_on_radio: up in" in rows["behavior"].found


def test_the_doctor_names_what_is_missing(complete: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (complete / "isaac/VERSION").write_text("4.2.0\n")
    (complete / "data" / STEPS[0]).rmdir()
    gpu(complete, monkeypatch, "NVIDIA H100 80GB HBM3, 550.90.07, 9.0")
    rows = rows_of_behavior()
    assert "holds 4.2.0" in rows["ISAAC_PATH"].found
    assert STEPS[0] in rows["OMNIGIBSON_DATA_PATH"].found
    assert "--only data" in rows["OMNIGIBSON_DATA_PATH"].fix
    assert (rows["GPU"].status, rows["ray tracing"].status) == (FAULT, ABSENT)
    assert "570" in rows["GPU"].found
    assert "not started" in rows["behavior"].found
    monkeypatch.delenv("ISAAC_PATH")
    monkeypatch.setenv("OMNIGIBSON_DATA_PATH", str(complete / "nowhere"))
    rows = rows_of_behavior()
    assert rows["ISAAC_PATH"].fix.startswith("export ISAAC_PATH=")
    assert "there is no folder" in rows["OMNIGIBSON_DATA_PATH"].found


def test_the_doctor_sees_what_a_launcher_sets(complete: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("ISAAC_PATH", "OMNIGIBSON_DATA_PATH")
    launcher = complete / "behavior-python"
    exports = "\n".join(f'export {name}="{os.environ[name]}"' for name in names)
    launcher.write_text(f'#!/bin/sh\n{exports}\nexec "{sys.executable}" "$@"\n')
    launcher.chmod(0o755)
    for name in names:
        monkeypatch.delenv(name)
    rows = rows_of_behavior(str(launcher))
    assert {rows[name].status for name in names} == {OK}, rows


def test_the_doctor_says_nothing_against_a_machine_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ISAAC_PATH", "OMNIGIBSON_DATA_PATH", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    (row,) = simulators.findings("behavior", None, False, 60)
    assert row.status == ABSENT
    assert "scripts/install_behavior.sh" in row.fix
