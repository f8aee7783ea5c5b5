"""The scripts that set up a server for RLBench: run for real, without a network."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from machines import (
    NAME,
    Debian,
    Machine,
    Mirror,
    Server,
    make_coppeliasim,
    make_project,
    make_tarball,
    make_wheel,
    serving,
)

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((REPOSITORY / "scripts").glob("*.sh"))
SETUP, INSTALL, REINSTALL = (
    REPOSITORY / "scripts" / name for name in ("setup_remote.sh", "install_coppeliasim.sh", "reinstall_rlbench.sh")
)
# fmt: off
TOOLS = [
    "awk", "basename", "bash", "cat", "cp", "cut", "df", "dirname", "grep", "id", "ln", "ls", "mkdir", "mktemp", "mv",
    "readlink", "realpath", "rm", "sed", "sort", "stat", "tail", "tar", "touch", "tr", "uname", "wc", "xz",
]
# fmt: on
MARKER = "# >>> CoppeliaSim (manyarms) >>>"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# -- all of them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    subprocess.run(["bash", "-n", str(script)], check=True)
    done = subprocess.run([str(shellcheck), str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", [SETUP, INSTALL, REINSTALL], ids=lambda path: path.name)
def test_options_are_explained_and_unknown_ones_refused(script: Path, machine: Machine) -> None:
    assert os.access(script, os.X_OK)
    text = machine.good(script, "--help")
    assert "--dry-run" in text
    for wrong in (["--no-such-thing"], ["stray"], ["--python" if script != INSTALL else "--prefix"]):
        done = machine.run(script, *wrong)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert "usage: " in done.stderr


# -- CoppeliaSim ----------------------------------------------------------------------------------------------------


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    make_tarball(tmp_path / "mirror")
    with serving(tmp_path / "mirror") as server:
        yield server


def test_coppeliasim_is_downloaded_unpacked_linked_and_exported(machine: Machine, mirror: Mirror) -> None:
    said = machine.good(INSTALL, "--url", mirror.url(f"{NAME}.tar.xz"))
    root = machine.home / "CoppeliaSim"
    assert (root / "coppeliaSim.sh").is_file()
    assert os.readlink(root / "libcoppeliaSim.so.1") == "libcoppeliaSim.so"
    assert f"export COPPELIASIM_ROOT={root}\n" in said
    code = 'echo "$COPPELIASIM_ROOT $LD_LIBRARY_PATH $QT_QPA_PLATFORM_PLUGIN_PATH"'
    for before, after in (("", str(root)), ("/opt/lib", f"/opt/lib:{root}")):
        shell = ["bash", "-euc", f". {machine.home}/.bashrc; {code}"]
        env = {**machine.env, "LD_LIBRARY_PATH": before}
        assert subprocess.run(shell, env=env, capture_output=True, text=True, check=True).stdout.split() == [
            str(root),
            after,
            str(root),
        ]
    assert sorted(path.name for path in machine.home.iterdir()) == [".bashrc", ".cache", "CoppeliaSim"]
    assert not any((machine.home / ".cache/manyarms").iterdir()), "the tarball is not kept"


def test_a_second_run_does_nothing(machine: Machine, mirror: Mirror) -> None:
    (machine.home / ".bashrc").write_text("alias ll='ls -l'\n")
    machine.good(INSTALL, "--url", mirror.url(f"{NAME}.tar.xz"))
    asked, before = len(mirror.asked), machine.listing()
    said = machine.good(INSTALL, "--url", mirror.url(f"{NAME}.tar.xz"))
    assert "is there already" in said
    assert machine.listing() == before
    assert len(mirror.asked) == asked
    lines = (machine.home / ".bashrc").read_text().splitlines()
    assert lines[0] == "alias ll='ls -l'"
    assert lines.count(MARKER) == 1


def test_an_interrupted_download_goes_on_where_it_ended(machine: Machine, mirror: Mirror) -> None:
    url = mirror.url(f"{NAME}.tar.xz")
    mirror.break_off_after = 50_000
    assert "run this again: it goes on" in machine.bad(INSTALL, "--url", url)
    assert (machine.home / f".cache/manyarms/{NAME}.tar.xz.part").stat().st_size >= 50_000
    assert not (machine.home / "CoppeliaSim").exists()
    mirror.break_off_after = None
    mirror.asked.clear()
    machine.good(INSTALL, "--url", url)
    assert len(mirror.asked) == 1
    assert mirror.asked[0][1] not in (None, "bytes=0-")
    assert (machine.home / "CoppeliaSim/libcoppeliaSim.so").is_file()


@pytest.mark.parametrize("state", ["complete", "complete, for an old curl", "not resumable"])
def test_a_part_that_cannot_be_resumed_is_no_obstacle(state: str, machine: Machine, mirror: Mirror) -> None:
    cache = machine.home / ".cache/manyarms"
    cache.mkdir(parents=True)
    content = (mirror.folder / f"{NAME}.tar.xz").read_bytes()
    (cache / f"{NAME}.tar.xz.part").write_bytes(content[:1000] if state == "not resumable" else content)
    mirror.resumes = state != "not resumable"
    if "old curl" in state:
        machine.program("curl", "exit 22")  # for the answer that newer ones understand
    machine.good(INSTALL, "--url", mirror.url(f"{NAME}.tar.xz"))
    assert (machine.home / "CoppeliaSim/libcoppeliaSim.so").is_file()


def test_without_curl_wget_is_taken(machine: Machine, mirror: Mirror) -> None:
    for tool in [*TOOLS, "wget"]:
        found = shutil.which(tool)
        assert found, f"{tool} is not installed"
        (machine.bin / tool).symlink_to(found)
    machine.env["PATH"] = str(machine.bin)
    machine.good(INSTALL, "--url", mirror.url(f"{NAME}.tar.xz"))
    assert (machine.home / "CoppeliaSim/libcoppeliaSim.so").is_file()
    shutil.rmtree(machine.home / "CoppeliaSim")
    (machine.bin / "wget").unlink()
    assert "neither curl nor wget" in machine.bad(INSTALL, "--url", mirror.url(f"{NAME}.tar.xz"))
    (machine.bin / "xz").unlink()
    assert "error: xz is not installed" in machine.bad(INSTALL)


def test_the_documented_addresses_are_tried_one_after_the_other(machine: Machine) -> None:
    machine.program("curl", f'echo "${{@: -1}}" >> {machine.folder}/asked; exit 6')
    assert "no network" in machine.bad(INSTALL, "--ubuntu", "18_04")
    name = "CoppeliaSim_Edu_V4_1_0_Ubuntu18_04.tar.xz"
    assert (machine.folder / "asked").read_text().split() == [
        f"https://downloads.coppeliarobotics.com/V4_1_0/{name}",
        f"https://www.coppeliarobotics.com/files/V4_1_0/{name}",
        f"https://www.coppeliarobotics.com/files/{name}",
    ]


def test_a_wrong_checksum_is_refused(machine: Machine, mirror: Mirror) -> None:
    tarball = mirror.folder / f"{NAME}.tar.xz"
    assert "its SHA-256 is" in machine.bad(INSTALL, "--archive", tarball, "--sha256", "0" * 64)
    assert "its SHA-256 is" in machine.bad(INSTALL, "--url", mirror.url(tarball.name), "--sha256", "0" * 64)
    assert sorted(path.name for path in machine.home.rglob("*")) == [".cache", "manyarms"], "nothing is kept of it"
    right = hashlib.sha256(tarball.read_bytes()).hexdigest().upper()
    machine.good(INSTALL, "--archive", tarball, "--sha256", right)
    assert tarball.exists(), "the user's own file is left"


@pytest.mark.parametrize(
    ("name", "number", "found"),
    [("CoppeliaSim_Edu_V4_10_0_rev0_Ubuntu22_04", 40100, "4.10.0"), (NAME, 40200, "4.2.0")],
    ids=["by its name", "by its headers"],
)
def test_another_version_is_refused(name: str, number: int, found: str, machine: Machine) -> None:
    tarball = make_tarball(machine.folder / "other", name, number)
    said = machine.bad(INSTALL, "--archive", tarball)
    assert f"holds CoppeliaSim {found}, not 4.1.0" in said
    assert '"Handle ... does not exist"' in said
    assert list(machine.home.iterdir()) == []


def test_another_version_that_is_installed_is_left_alone(machine: Machine, mirror: Mirror) -> None:
    make_coppeliasim(machine.home / "CoppeliaSim", 40900)
    before = machine.listing()
    said = machine.bad(INSTALL, "--url", mirror.url(f"{NAME}.tar.xz"))
    assert "holds CoppeliaSim 4.9.0, not 4.1.0" in said
    assert machine.listing() == before
    (machine.home / "mine").mkdir()
    (machine.home / "mine/thesis.txt").write_text("dear")
    assert "is no CoppeliaSim" in machine.bad(INSTALL, "--prefix", machine.home / "mine")


def test_what_is_no_tarball_is_refused_and_not_kept(machine: Machine, mirror: Mirror) -> None:
    (mirror.folder / "login.tar.xz").write_text("<html>please log in</html>")
    assert "no complete .tar.xz" in machine.bad(INSTALL, "--url", mirror.url("login.tar.xz"))
    assert not list(machine.home.rglob("login*"))
    with tarfile.open(machine.folder / "photos.tar.xz", "w:xz") as archive:
        archive.add(REPOSITORY / "LICENSE", arcname="photos/LICENSE")
    assert "does not hold CoppeliaSim" in machine.bad(INSTALL, "--archive", machine.folder / "photos.tar.xz")
    assert "there is no file" in machine.bad(INSTALL, "--archive", machine.folder / "nothing.tar.xz")


def test_a_full_disk_is_named(machine: Machine, mirror: Mirror, small_disk: Path) -> None:
    url = mirror.url(f"{NAME}.tar.xz")
    assert "the disk is full" in machine.bad(INSTALL, "--url", url, "--cache", small_disk)
    (small_disk / f"{NAME}.tar.xz.part").unlink()
    assert "there is no room" in machine.bad(INSTALL, "--url", url, "--prefix", small_disk / "CoppeliaSim")
    assert list(small_disk.iterdir()) == []


def test_a_read_only_prefix_is_named(machine: Machine, mirror: Mirror, request: pytest.FixtureRequest) -> None:
    if os.geteuid() == 0:  # who may write to any folder that is not on a read-only file system
        closed = request.getfixturevalue("small_disk")
        subprocess.run(["mount", "-o", "remount,ro", str(closed)], check=True)
    else:
        closed = machine.folder / "closed"
        closed.mkdir(mode=0o555)
    before = machine.listing()
    tarball = mirror.folder / f"{NAME}.tar.xz"
    said = machine.bad(INSTALL, "--archive", tarball, "--prefix", closed / "programs/CoppeliaSim")
    assert f"error: {closed}/programs/CoppeliaSim cannot be written\n  why: {closed} is read-only" in said
    assert machine.listing() == before


def test_a_dry_run_changes_nothing(machine: Machine, mirror: Mirror) -> None:
    before = machine.listing()
    said = machine.good(INSTALL, "--dry-run", "--url", mirror.url(f"{NAME}.tar.xz"))
    for command in ("+ mkdir", "+ curl", "+ tar -xJf", "+ mv -T", "+ ln -sfn", "+ write to"):
        assert command in said
    machine.good(INSTALL, "--dry-run", "--archive", mirror.folder / f"{NAME}.tar.xz", "--sha256", digest(mirror))
    assert machine.listing() == before
    assert mirror.asked == []


def digest(mirror: Mirror) -> str:
    return hashlib.sha256((mirror.folder / f"{NAME}.tar.xz").read_bytes()).hexdigest()


def test_bashrc_keeps_what_is_the_users_own(machine: Machine, mirror: Mirror) -> None:
    dotfiles = machine.folder / "dotfiles"
    dotfiles.write_text("first\n")
    dotfiles.chmod(0o600)
    (machine.home / ".bashrc").symlink_to(dotfiles)
    tarball = mirror.folder / f"{NAME}.tar.xz"
    machine.good(INSTALL, "--archive", tarball, "--prefix", machine.folder / "no bashrc", "--no-bashrc")
    assert dotfiles.read_text() == "first\n"
    machine.good(INSTALL, "--archive", tarball, "--prefix", machine.folder / "one place")
    with dotfiles.open("a") as file:
        file.write("last\n")
    machine.good(INSTALL, "--archive", tarball, "--prefix", machine.folder / "another")
    lines = dotfiles.read_text().splitlines()
    assert lines[:3] == ["first", "last", MARKER]
    assert len(lines) == 7
    assert lines[3] == f"export COPPELIASIM_ROOT={machine.folder}/another"
    assert (machine.home / ".bashrc").is_symlink()
    assert dotfiles.stat().st_mode & 0o777 == 0o600
    dotfiles.write_text(f"first\n{MARKER}\nlast\n")
    machine.good(INSTALL, "--archive", tarball, "--prefix", machine.folder / "another")
    assert dotfiles.read_text().startswith(f"first\n{MARKER}\nlast\n"), "a block without an end may hold anything"


@pytest.mark.parametrize("script", [INSTALL, REINSTALL], ids=lambda path: path.name)
def test_other_processors_are_refused(script: Path, machine: Machine) -> None:
    machine.program("uname", '[ "$1" = -m ] && echo aarch64 || echo Linux')
    said = machine.bad(script)
    assert "aarch64" in said
    assert "x86_64" in said


# -- PyRep and RLBench ----------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


@pytest.mark.slow
def test_pyrep_and_rlbench_are_built_installed_and_not_built_twice(server: Server) -> None:
    said = server.good(REINSTALL, *server.arguments)
    assert "PyRep 4.1.0.3 in " in said
    assert "RLBench 1.2.0 in " in said
    assert "manyarms doctor rlbench" in said
    assert server.versions()["pyrep"] == "4.1.0.3"
    assert server.built_against() == str(server.root)
    assert os.readlink(server.root / "libcoppeliaSim.so.1") == "libcoppeliaSim.so"
    assert list((server.folder / "tmp").iterdir()) == []
    before = server.listing()
    assert "nothing to do" in server.good(REINSTALL, *server.arguments)
    assert server.listing() == before

    other = make_coppeliasim(server.folder / "elsewhere")
    server.good(REINSTALL, *server.arguments, "--coppeliasim", other)
    assert server.built_against() == str(other), "another CoppeliaSim, another build"
    (server.rlbench / "rlbench/__init__.py").write_text('__version__ = "1.2.1"\nimport pyrep')
    assert "RLBench 1.2.1 in" in server.good(REINSTALL, *server.arguments, "--coppeliasim", other)


@pytest.mark.slow
def test_the_namesake_of_pypi_and_opencv_with_qt_are_replaced(server: Server) -> None:
    make_wheel(server.wheels, "pyrep", "3.2.0", {"pyrep/__init__.py": "", "pyrep/Repository.py": ""})
    make_wheel(server.wheels, "opencv-python", "4.10.0.84", {"cv2/__init__.py": "qt = True"})
    make_wheel(server.wheels, "opencv-python-headless", "4.10.0.84", {"cv2/__init__.py": "qt = False"})
    server.pip("install", "pyrep==3.2.0", "opencv-python")
    before = server.listing()
    said = server.good(REINSTALL, *server.arguments, "--dry-run")
    for command in ("uninstall --quiet --yes pyrep", "uninstall --quiet --yes opencv-python", "wheel --quiet"):
        assert command in said
    assert server.listing() == before, "a dry run changes nothing"
    said = server.good(REINSTALL, *server.arguments)
    assert "removing pyrep 3.2.0 of PyPI" in said
    assert not list(server.venv.glob("lib/python*/site-packages/pyrep/Repository.py"))
    versions = server.versions()
    assert (versions["pyrep"], versions["opencv-python-headless"]) == ("4.1.0.3", "4.10.0.84")
    assert "opencv-python" not in versions
    asked = [str(server.python), "-c", "import cv2; print(cv2.qt)"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.slow
def test_repositories_are_fetched_at_the_commit_that_was_asked_for(server: Server) -> None:
    commits = {}
    for folder in (server.pyrep, server.rlbench):
        git = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=n@example.com"]
        subprocess.run([*git, "init", "--quiet"], check=True)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", "one"], check=True)
        asked = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        commits[folder] = asked.stdout.strip()
        (folder / "backend.py").write_text("raise SystemExit('not this one')")
        subprocess.run([*git, "commit", "--quiet", "-am", "two"], check=True)
    arguments = [*server.arguments[:4], "--pyrep", commits[server.pyrep], "--rlbench", commits[server.rlbench]]
    arguments += ["--pyrep-url", f"file://{server.pyrep}", "--rlbench-url", f"file://{server.rlbench}"]
    server.good(REINSTALL, *arguments)
    assert "nothing to do" in server.good(REINSTALL, *arguments)
    assert "RLBench could not be fetched" in server.bad(REINSTALL, *arguments, "--rlbench", "no-such-branch")
    assert server.versions()["pyrep"] == "4.1.0.3"


@pytest.mark.slow
def test_what_was_installed_stays_when_a_build_fails(server: Server) -> None:
    server.good(REINSTALL, *server.arguments)
    (server.rlbench / "backend.py").write_text("raise RuntimeError('no space left on device')")
    said = server.bad(REINSTALL, *server.arguments)
    assert "error: building PyRep and RLBench failed\n  why: the disk is full" in said
    assert server.versions()["rlbench"] == "1.2.0"
    (server.wheels / "scipy-99.0-py3-none-any.whl").unlink()
    server.pip("uninstall", "--yes", "scipy")
    assert "why: no network, or no package index" in server.bad(REINSTALL, *server.arguments)


@pytest.mark.slow
def test_an_install_that_cannot_be_imported_is_no_success(server: Server) -> None:
    text = 'raise ImportError("libGL.so.1: cannot open shared object file")'
    (server.pyrep / "pyrep/backend/sim.py").write_text(text)
    for _ in range(2):
        said = server.bad(REINSTALL, *server.arguments)
        assert "why: ImportError: libGL.so.1" in said
        assert "scripts/setup_remote.sh" in said
        assert "manyarms doctor rlbench" in said


def test_pyrep_is_built_against_no_other_version(machine: Machine) -> None:
    machine.env["COPPELIASIM_ROOT"] = str(make_coppeliasim(machine.folder / "new", 41000))
    said = machine.bad(REINSTALL, "--python", sys.executable)
    assert "holds CoppeliaSim 4.10.0, not 4.1.0" in said
    assert "Handle ... does not exist" in said
    machine.env["COPPELIASIM_ROOT"] = str(machine.folder / "nowhere")
    assert "scripts/install_coppeliasim.sh" in machine.bad(REINSTALL, "--python", sys.executable)
    root = make_coppeliasim(machine.folder / "unmarked")
    shutil.rmtree(root / "programming")
    assert "cannot be told" in machine.bad(REINSTALL, "--coppeliasim", root, "--python", sys.executable)
    (root / "readme.txt").write_text("This is the Debian/Ubuntu release V4.2.0, 64bit\n")
    assert "holds CoppeliaSim 4.2.0" in machine.bad(REINSTALL, "--coppeliasim", root, "--python", sys.executable)


# -- the server itself ----------------------------------------------------------------------------------------------


@pytest.fixture
def debian(tmp_path: Path) -> Debian:
    return Debian(tmp_path)


def test_packages_are_chosen_by_what_the_release_offers(debian: Debian) -> None:
    debian.gone.write_text("libglib2.0-0t64\nlibxcb-util1\nlibosmesa6\nlibgl1-mesa-glx\n")
    debian.good(SETUP, "--no-python")
    update, install = debian.asked()
    assert update == "apt-get update -qq"
    names = install.split()
    assert names[:2] == ["apt-get", "install"]
    assert {"xvfb", "libgl1", "libglib2.0-0", "libxcb-util0", "libxkbcommon-x11-0", "xz-utils", "git"} <= set(names)
    assert not {"libgl1-mesa-glx", "libglib2.0-0t64", "libxcb-util1", "libosmesa6"} & set(names)
    debian.log.write_text("")
    assert "all are there" in debian.good(SETUP, "--no-python")
    assert debian.asked() == []


def test_a_package_that_apt_does_not_have_is_named(debian: Debian) -> None:
    debian.gone.write_text("xvfb\n")
    assert "apt does not offer xvfb" in debian.bad(SETUP, "--no-python")
    debian.gone.write_text("")
    debian.program("apt-get", "echo 'Temporary failure resolving' >&2; exit 100")
    assert "apt-get update failed" in debian.bad(SETUP, "--no-python")


def test_sudo_is_used_where_it_asks_for_no_password(debian: Debian) -> None:
    debian.user(1000, f'echo "sudo $*" >> {debian.log}; [ "$1" = -n ] && shift; exec "$@"')
    debian.good(SETUP, "--no-python")
    asked = debian.asked()
    assert "sudo apt-get update -qq" in asked
    assert any(line.startswith("sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y") for line in asked)


def test_without_root_the_command_is_printed_and_nothing_run(debian: Debian) -> None:
    debian.user(1000)
    done = debian.run(SETUP, "--no-python")
    assert done.returncode == 1
    assert "  sudo apt-get update && sudo apt-get install -y --no-install-recommends xvfb " in done.stderr
    assert "the system packages are not installed yet" in done.stderr
    assert debian.asked() == []


@pytest.mark.slow
def test_manyarms_of_the_checkout_is_installed_once(debian: Debian) -> None:
    """A checkout with this script and a package that needs nothing: the real one would download for minutes."""
    checkout = make_project(debian.folder / "checkout", "manyarms", "1.0", {"__init__.py": ""})
    backend = (checkout / "backend.py").read_text().replace('os.environ["COPPELIASIM_ROOT"]', '"nothing"')
    extras = "Provides-Extra: gym\\nProvides-Extra: video\\nRequires-Dist: pillow; extra == 'video'\\n"
    backend = backend.replace("Version: {version}\\n", "Version: {version}\\n" + extras)
    (checkout / "backend.py").write_text(backend + "\nbuild_editable = build_wheel\n")
    (checkout / "requirements").mkdir()
    (checkout / "requirements/dev.txt").write_text("pillow==98.0\ntorch==2.0\n")
    (checkout / "scripts").mkdir()
    script = checkout / "scripts/setup_remote.sh"
    shutil.copy(SETUP, script)
    shutil.copy(REPOSITORY / "scripts/telling.sh", script.parent)
    for name, version in (("pillow", "98.0"), ("pillow", "99.0"), ("torch", "3.0"), ("safetensors", "1.0")):
        make_wheel(debian.folder / "wheels", name, version, {f"{name}.py": f"version = '{version}'"})
    debian.env["PIP_FIND_LINKS"] = str(debian.folder / "wheels")
    arguments = ["--no-system", "--python", sys.executable, "--extras", "gym,video"]

    before = debian.listing()
    said = debian.good(script, *arguments, "--dry-run", "--torch", "cu126")
    assert "--index-url https://download.pytorch.org/whl/cu126 torch" in said
    assert debian.listing() == before
    assert "need PyTorch" in debian.good(script, *arguments)
    debian.good(script, *arguments, "--torch", "yes")
    python = checkout / ".venv/bin/python"
    code = "import manyarms, pillow, torch; print(pillow.version, torch.version)"
    assert subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout == "98.0 3.0\n"
    before = debian.listing()
    said = debian.good(script, *arguments, "--torch", "yes")
    assert "manyarms: there already" in said
    assert "torch: there already" in said
    assert debian.listing() == before


def test_an_old_python_is_refused_and_a_dry_run_changes_nothing(debian: Debian) -> None:
    before = debian.listing()
    said = debian.good(SETUP, "--dry-run", "--venv", debian.folder / "venv", "--python", sys.executable)
    assert "+ apt-get update" in said
    assert f"+ {sys.executable} -m venv" in said
    assert debian.listing() == before
    old = debian.program("python3.8", "exit 1")
    said = debian.bad(SETUP, "--no-system", "--venv", debian.folder / "venv", "--python", old)
    assert "is not Python 3.11 or later" in said
