"""Machines for the scripts of this repository to set up: a home, programs, an index and a mirror of their own."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NAME = "CoppeliaSim_Edu_V4_1_0_Ubuntu20_04"


class Machine:
    """A home, a temporary folder and programs of one's own in front of the system's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home, self.bin = folder / "home", folder / "bin"
        for each in (self.home, self.bin, folder / "tmp"):
            each.mkdir()
        self.env = {
            "HOME": str(self.home),
            "TMPDIR": str(folder / "tmp"),
            "PATH": f"{self.bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_NO_CACHE_DIR": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
        }

    def program(self, name: str, script: str) -> Path:
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        return path

    def run(self, script: Path, *arguments: Any) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(script), *map(str, arguments)]
        options: Any = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": 280}
        return subprocess.run(command, env=self.env, cwd=self.folder, check=False, **options)

    def good(self, script: Path, *arguments: Any) -> str:
        done = self.run(script, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def bad(self, script: Path, *arguments: Any) -> str:
        done = self.run(script, *arguments)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "\n  why: " in done.stderr
        assert "\n  do:  " in done.stderr
        return done.stderr

    def listing(self) -> dict[str, tuple[int, int, int]]:
        """Return all files of this machine, as far as the scripts may change any."""
        found = sorted(self.folder.rglob("*"))
        return {str(path): (s.st_mode, s.st_size, s.st_mtime_ns) for path in found for s in [path.lstat()]}


def make_coppeliasim(folder: Path, number: int = 40100) -> Path:
    """Make what the scripts look at in a CoppeliaSim."""
    (folder / "programming/include").mkdir(parents=True)
    (folder / "system").mkdir()
    (folder / "libcoppeliaSim.so").write_bytes(os.urandom(200_000))
    (folder / "coppeliaSim.sh").write_text("#!/bin/sh\n")
    header = f"#if !defined(SIMCONST_INCLUDED_)\r\n#define SIM_PROGRAM_VERSION_NB {number}\r\n"
    (folder / "programming/include/simConst.h").write_text(header)
    return folder


def make_tarball(folder: Path, name: str = NAME, number: int = 40100) -> Path:
    folder.mkdir(exist_ok=True)
    made = make_coppeliasim(folder / name, number)
    tarball = folder / f"{name}.tar.xz"
    with tarfile.open(tarball, "w:xz") as archive:
        archive.add(made, arcname=name)
    shutil.rmtree(made)
    return tarball


class Mirror(ThreadingHTTPServer):
    """Serves a folder, from any byte on, and can break off."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.asked: list[tuple[str, str | None]] = []
        self.break_off_after: int | None = None
        self.resumes = True

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        mirror: Any = self.server
        ranged = self.headers.get("Range")
        mirror.asked.append((self.path, ranged))
        path = mirror.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        first = int(ranged.split("=")[1].split("-")[0]) if ranged and mirror.resumes else 0
        if first >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        self.wfile.write(content[first : mirror.break_off_after])
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name it has there)
        pass


BACKEND = """
import os, pathlib, zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    name, version, module = {name!r}, {version!r}, {module!r}
    root = os.environ["COPPELIASIM_ROOT"]
    file = f"{{name}}-{{version}}-py3-none-any.whl"
    info = f"{{name}}-{{version}}.dist-info"
    with zipfile.ZipFile(os.path.join(directory, file), "w") as wheel:
        for path in pathlib.Path(module).rglob("*.py"):
            wheel.write(path, path.as_posix())
        wheel.writestr(f"{{module}}/built_against.txt", root)
        wheel.writestr(f"{{info}}/METADATA", f"Metadata-Version: 2.1\\nName: {{name}}\\nVersion: {{version}}\\n")
        wheel.writestr(f"{{info}}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{{info}}/RECORD", "")
    return file
"""

PYREP = """
import os
if os.environ["COPPELIASIM_ROOT"] not in os.environ["LD_LIBRARY_PATH"].split(":"):
    raise ImportError("libcoppeliaSim.so.1: cannot open shared object file")
__version__ = "4.1.0.3"
"""


def make_project(folder: Path, name: str, version: str, sources: dict[str, str]) -> Path:
    """Make a package that builds without setuptools, and only with COPPELIASIM_ROOT."""
    module = name.lower()
    for path, text in sources.items():
        (folder / module / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / module / path).write_text(text)
    (folder / "backend.py").write_text(BACKEND.format(name=name, version=version, module=module))
    text = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (folder / "pyproject.toml").write_text(text)
    return folder


def make_wheel(folder: Path, name: str, version: str, files: dict[str, str] | None = None) -> None:
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in (files or {}).items():
            wheel.writestr(path, text)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def make_venv(folder: Path, only_pip: Path) -> None:
    """Make a virtual environment with the pip of this one, which takes no time."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = importlib.metadata.distribution("pip")
    only_pip.mkdir()
    for name in ("pip", f"pip-{pip.version}.dist-info"):
        (only_pip / name).symlink_to(str(pip.locate_file(name)))
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "pip.pth").write_text(f"{only_pip}\n")


class Server(Machine):
    """A machine with CoppeliaSim, a virtual environment, and an index of small packages."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.program("cc", "exit 1")  # the packages below are not compiled
        self.root = make_coppeliasim(folder / NAME)
        self.venv, self.wheels = folder / "venv", folder / "wheels"
        make_venv(self.venv, folder / "only-pip")
        self.python = self.venv / "bin/python"
        for name in ("setuptools", "wheel", "cffi", "numpy", "pillow", "pyquaternion", "scipy", "natsort", "gymnasium"):
            make_wheel(self.wheels, name, "99.0")
        self.env["PIP_FIND_LINKS"] = str(self.wheels)
        pyrep = {"__init__.py": PYREP, "backend/__init__.py": "", "backend/sim.py": ""}
        self.pyrep = make_project(folder / "PyRep", "PyRep", "4.1.0.3", pyrep)
        text = '__version__ = "1.2.0"\nimport pyrep'
        self.rlbench = make_project(folder / "RLBench", "rlbench", "1.2.0", {"__init__.py": text})
        self.arguments = ["--python", self.python, "--coppeliasim", self.root]
        self.arguments += ["--pyrep", self.pyrep, "--rlbench", self.rlbench]

    def pip(self, *arguments: str) -> str:
        command = [str(self.python), "-m", "pip", "--disable-pip-version-check", *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, check=True).stdout

    def versions(self) -> dict[str, str]:
        return dict(line.lower().split("==") for line in self.pip("list", "--format", "freeze").split())

    def built_against(self) -> str:
        (found,) = self.venv.glob("lib/python*/site-packages/pyrep/built_against.txt")
        return found.read_text()


class Debian(Machine):
    """A machine whose apt offers and installs what a test says, and writes down what it was asked."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.log, self.gone, self.there = folder / "log", folder / "gone", folder / "there"
        for each in (self.log, self.gone, self.there):
            each.write_text("")
        self.program("dpkg-query", f'grep -qx "${{@: -1}}" {self.there} && echo "install ok installed"')
        self.program(
            "apt-cache",
            f'grep -qx "$2" {self.gone} && exit; echo "$2:"; echo "  Candidate: 1.0"',
        )
        self.program(
            "apt-get",
            f'echo "apt-get $*" >> {self.log}\n[ "$1" = install ] && printf "%s\\n" "$@" >> {self.there}; true',
        )
        self.user(0)

    def user(self, number: int, sudo: str = "exit 1") -> None:
        self.program("id", f"echo {number}")
        self.program("sudo", sudo)

    def asked(self) -> list[str]:
        return self.log.read_text().splitlines()


@contextmanager
def serving(folder: Path) -> Iterator[Mirror]:
    """Serve a folder until the context is left."""
    with Mirror(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
