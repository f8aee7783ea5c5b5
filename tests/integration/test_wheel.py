"""What users install: a wheel, in an environment that has never seen the repository."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from conftest import REPOSITORY, away_from_the_tree

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(REPOSITORY)]
    subprocess.run(build, check=True, capture_output=True)
    return next(out.glob("*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"manyarms"}
    beside_the_code = {"manyarms/recipes/reach_target_ppo.yaml", "manyarms/reporting/page/run.html"}
    assert beside_the_code <= set(names)
    assert not [name for name in names if "__pycache__" in name]


def test_the_wheel_alone_runs_the_demo(wheel: Path, tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    constraints = ["--constraint", str(REPOSITORY / "requirements/dev.txt")]
    subprocess.run([python, "-m", "pip", "install", "--no-compile", "--quiet", *constraints, str(wheel)], check=True)
    away = tmp_path / "elsewhere"
    away.mkdir()
    demo = [python.with_name("manyarms"), "demo", "--seconds", "0.3", "--num-envs", "2", "--steps", "8"]
    options: Any = {"cwd": away, "env": away_from_the_tree(), "capture_output": True, "text": True}
    done = subprocess.run(demo, check=False, **options)
    assert done.returncode == 0, done.stderr
    assert "manyarms step_chunk, 16 actions" in done.stdout
    assert next((away / "demo").glob("many-arms*.mp4")).stat().st_size > 1000
    assert "training is left out: it needs torch" in done.stderr
    where = [python, "-c", "import manyarms; print(manyarms.__file__)"]
    assert str(tmp_path) in subprocess.run(where, check=True, **options).stdout
