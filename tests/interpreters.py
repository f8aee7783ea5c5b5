"""Other Pythons on this machine, each with an environment of its own for workers to run in."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import libero_assets

REPOSITORY = Path(__file__).resolve().parent.parent
ENVIRONMENTS = REPOSITORY / ".venvs"

#: What the workers' environments hold, pinned; an older Python gets the newest that still supports it.
REQUIREMENTS = {
    "3.8": ["numpy==1.24.4", "gymnasium==1.1.1"],
    "3.9": ["numpy==2.0.2", "gymnasium==1.1.1"],
    "3.10": ["numpy==2.2.6", "gymnasium==1.3.0"],
    "3.12": ["numpy==2.4.6", "gymnasium==1.4.0"],
    "3.13": ["numpy==2.4.6", "gymnasium==1.4.0"],
    "3.14": ["numpy==2.4.6", "gymnasium==1.4.0"],
}

ROBOTICS = ["gymnasium-robotics==1.4.2", "gymnasium==1.4.0", "mujoco==3.3.7", "numpy==2.4.6"]


def version_of(python: str) -> str:
    """Return "3.9", or nothing when this is no Python that runs (a shim without a version behind it, say)."""
    command = [python, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


@cache
def find(version: str) -> str | None:
    """Return an interpreter of this version, from the path or from pyenv."""
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    candidates = [shutil.which(f"python{version}"), *sorted(glob.glob(f"{root}/versions/{version}.*/bin/python"))]
    return next((c for c in candidates if c and version_of(c) == version), None)


def available() -> list[str]:
    """Return the versions other than this one that are on this machine."""
    this = f"{sys.version_info.major}.{sys.version_info.minor}"
    return [version for version in REQUIREMENTS if version != this and find(version)]


@cache
def environment(version: str) -> Path:
    """Return a virtual environment of this version with numpy and Gymnasium, made once."""
    base = find(version)
    assert base is not None
    return make(f"py{version}", base, REQUIREMENTS[version])


@cache
def robotics() -> Path:
    """Return an environment with gymnasium-robotics, which wants an older MuJoCo than ours."""
    return make("robotics", sys.executable, ROBOTICS)


@cache
def libero() -> Path:
    """Return an environment with LIBERO (1.4 GB), on stand-ins for its assets."""
    assets = libero_assets.write(ENVIRONMENTS / "libero-assets")
    python = {"PYTHON": sys.executable} if sys.version_info < (3, 14) else {}
    command = [str(REPOSITORY / "scripts/install_libero.sh"), str(ENVIRONMENTS / "libero"), str(assets)]
    with open(ENVIRONMENTS / "libero.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        variables = {**os.environ, **python, "PIP_COMPILE": "0"}  # most of it is never imported
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=variables)
    return ENVIRONMENTS / "libero"


def make(name: str, base: str, requirements: list[str]) -> Path:
    """Make a virtual environment, unless it is there with just these requirements."""
    directory = ENVIRONMENTS / name
    done = directory / "requirements.txt"
    wanted = "\n".join(requirements)
    if not done.exists() or done.read_text() != wanted:
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run([base, "-m", "venv", str(directory)], check=True)
        pip = [str(directory / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-compile", *requirements], check=True)
        done.write_text(wanted)
    return directory


if __name__ == "__main__":
    for each in available():
        print(f"Python {each}: {environment(each)}")
    print(f"gymnasium-robotics: {robotics()}")
    print(f"LIBERO: {libero()}")
