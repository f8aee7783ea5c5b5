"""What the documentation shows works as shown."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")), REPOSITORY / "CONTRIBUTING.md"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("example", sorted((REPOSITORY / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_simulator_of_the_guide_conforms(tmp_path: Path) -> None:
    code = blocks(REPOSITORY / "docs/simulators.md", "python")[0]
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package/pendulum.py").write_text(code)
    command = [str(BIN / "manyarms"), "check", "my_package.pendulum:Pendulum", "--steps", "6"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_snippet_of_the_readme_runs() -> None:
    code = blocks(REPOSITORY / "README.md", "python")[0]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def documented_commands() -> list[list[str]]:
    """Return the commands of every block that has some, in their order."""
    found = []
    for block in (block for page in PAGES for block in blocks(page, "bash")):
        lines = [line.partition(" #")[0].strip() for line in block.splitlines()]
        commands = [line for line in lines if line.startswith("manyarms ") and "my_package" not in line]
        if commands and commands not in found:
            found.append(commands)
    return found


def test_there_are_documented_commands() -> None:
    assert any(commands[0].startswith("manyarms bench gym/CartPole-v1") for commands in documented_commands())


@pytest.mark.parametrize("commands", documented_commands(), ids=lambda commands: commands[0])
def test_documented_commands_run(commands: list[str], tmp_path: Path) -> None:
    background: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            words = command.replace("manyarms", str(BIN / "manyarms"), 1).split()
            if words[-1] == "&":
                background.append(subprocess.Popen(words[:-1], cwd=tmp_path))
                continue
            done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
            assert done.returncode == 0, done.stderr
    finally:
        for process in background:
            process.terminate()
            assert process.wait() == 0


def test_every_page_that_is_linked_is_there() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_targets_that_are_documented_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE):
            assert target in targets, f"{page.name} says make {target}"


def test_figures_of_the_readme_are_those_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    report = importlib.import_module("report")
    found = json.loads((REPOSITORY / "docs/benchmarks/vector.json").read_text())
    assert report.readme_table(found) in (REPOSITORY / "README.md").read_text()
    assert (REPOSITORY / "docs/benchmarks/vector.md").read_text() == report.markdown(found)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_benchmark_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(REPOSITORY / "benchmarks/vector.py"), "--out", str(tmp_path), "--no-plot"]
    quick = ["--cases", "null_state:2", "mujoco:2", "--seconds", "0.2", "--chunks", "1", "4", "--rounds", "1"]
    peers = ["--peers", "copy=False", "send and recv", "pipe and pickle", "a simulator"]
    done = subprocess.run([*command, *quick, *peers, "--startup", "2"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "vector.json").read_text())
    assert set(found["results"]["mujoco:2"]["4"]) >= {"manyarms, send and recv", "manyarms, a simulator"}
    assert "left out" not in done.stderr


@pytest.mark.slow
def test_the_scaling_benchmark_runs() -> None:
    command = [sys.executable, str(REPOSITORY / "benchmarks/scaling.py"), "--seconds", "0.2", "--repetitions", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "efficiency" in done.stdout
