"""What the documentation shows works as shown."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from manyarms import cli, plugins
from manyarms.plugins import load_file
from manyarms.simulators import registry

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("example", sorted((REPOSITORY / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    words = [str(example), *(["--updates", "1"] if example.stem == "training" else [])]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """Do what a guide says, in a folder that Python looks into, as it does where a command is typed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def done(guide: str) -> str:
        scripts, commands = laid_out(REPOSITORY / f"docs/add/{guide}.md", tmp_path)
        for name in scripts:
            subprocess.run([sys.executable, name], check=True)
        for command in commands:
            assert cli.run(command.split()[1:]) == 0, command
        return capfd.readouterr().out

    return done


def laid_out(page: Path, folder: Path) -> tuple[list[str], list[str]]:
    """Write the files of a guide that have a title; return its scripts and its commands."""
    titled = re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', page.read_text(), re.DOTALL)
    for name, text in titled:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    scripts = [name for name, _ in titled if name.startswith("try_")]
    commands = [line.partition(" #")[0] for block in blocks(page, "bash") for line in block.splitlines()]
    assert commands, f"{page.name} has nothing to run"
    return scripts, [command for command in commands if command]


@pytest.mark.slow
def test_the_simulator_of_the_guide_runs_and_conforms(follow: Callable[[str], str]) -> None:
    said = follow("simulator")
    assert "(8, 2) (8, 5)" in said
    assert "11 of 11 checks hold" in said
    assert "of 8 episodes" in said


def test_what_the_guide_says_that_a_simulator_needs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out(REPOSITORY / "docs/add/simulator.md", tmp_path)
    info = tmp_path / "pendulum-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pendulum\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[manyarms.simulators]\npendulum = my_package.swinging\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_package", raising=False)
    about = registry.about("pendulum/upright")
    assert about.evaluation_options == {"gravity": 9.81}
    assert registry.resolve("pendulum/upright")[0](about.task).task == "upright"
    assert [finding.name for finding in plugins.import_object(about.findings)("python")] == ["licence"]


@pytest.mark.slow
def test_the_task_of_the_guide_is_solved_by_its_expert(follow: Callable[[str], str]) -> None:
    said = follow("task")
    assert "100.0 % success (10 of 10 episodes" in said
    assert "11 of 11 checks hold" in said


@pytest.mark.slow
def test_the_policies_of_the_guide_play_and_learn(follow: Callable[[str], str]) -> None:
    said = follow("policy")
    assert "100.0 % success (10 of 10 episodes" in said
    assert "3 updates; all updates were made" in said


@pytest.mark.slow
def test_the_algorithm_of_the_guide_conforms_and_learns(follow: Callable[[str], str]) -> None:
    said = follow("algorithm")
    assert "it holds to everything" in said
    assert "3 updates; all updates were made" in said


def test_plug_ins_of_the_guides_name_groups_that_are_looked_at() -> None:
    for page, group in (("simulator", "simulators"), ("policy", "policies"), ("algorithm", "algorithms")):
        (text,) = re.findall(
            r'title="pyproject.toml"\n(.*?)```', (REPOSITORY / f"docs/add/{page}.md").read_text(), re.DOTALL
        )
        assert list(tomllib.loads(text)["project"]["entry-points"]) == [f"manyarms.{group}"]
        assert group in plugins.GROUPS


@pytest.mark.parametrize("name", ["tabletop", "rlbench", "libero", "behavior"])
def test_every_option_of_a_simulator_is_on_its_page(name: str) -> None:
    options = importlib.import_module(f"manyarms.simulators.{name}.simulator").Options
    table = (REPOSITORY / f"docs/simulators/{name}.md").read_text().partition("## Options")[2].partition("\n## ")[0]
    missing = [field.name for field in dataclasses.fields(options) if f"`{field.name}`" not in table]
    assert not missing


@pytest.mark.slow
@pytest.mark.parametrize("snippet", range(2))
def test_the_snippets_of_the_readmes_are_the_same_and_run(snippet: int, tmp_path: Path) -> None:
    english, chinese = (blocks(REPOSITORY / name, "python") for name in ("README.md", "README.zh-CN.md"))
    assert [re.sub(r" *#.*", "", code) for code in english] == [re.sub(r" *#.*", "", code) for code in chinese]
    less = '"runner.max_steps": 1, "env.eval.episodes": 4, "algorithm.episodes_per_step": 16'
    code = english[snippet].replace('"runner.max_seconds": 20', less).replace("episodes=20", "episodes=4")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


#: Python blocks of the guides that cannot be run as they stand, and why: page and place on it.
NOT_RUN = {
    ("docs/coming_from/rlbench.md", 0): "RLBench's own code, to compare with",
    ("docs/coming_from/rlbench.md", 1): "needs CoppeliaSim",
    ("docs/rollouts.md", 1): "an outline of a policy",
    ("docs/rollouts.md", 2): "needs a reward model",
    ("docs/simulators/behavior.md", 0): "needs Isaac Sim",
    (
        "docs/simulators/libero.md",
        0,
    ): "needs LIBERO in an environment of the reader's; tests/integration/test_libero.py",
    ("docs/simulators/rlbench.md", 0): "needs CoppeliaSim",
}

#: The same, sooner: what is documented, and what a test has the time for.
_SOONER = {
    "runner.max_steps=80": 'runner.max_steps=1", "env.eval.episodes=4',
    "runner.max_seconds=5": "runner.max_seconds=2 env.eval.episodes=4",
    "runner.max_seconds=10 env.eval.episodes=10": "runner.max_seconds=2 env.eval.episodes=4",
    "expert --episodes 100": "expert --episodes 8",
}

REFERENCE = REPOSITORY / "docs/reference"  # signatures, and examples of one line


def documented_python() -> list[tuple[str, int]]:
    """Return where the guides have Python: page and place on it."""
    pages = [page for page in (REPOSITORY / "docs").rglob("*.md") if REFERENCE not in page.parents]
    return [
        (str(page.relative_to(REPOSITORY)), i) for page in sorted(pages) for i in range(len(blocks(page, "python")))
    ]


def sooner(shown: str) -> str:
    for long, short in _SOONER.items():
        shown = shown.replace(long, short)
    return shown


def run_python(code: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", sooner(code)], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_not_run_is_still_there() -> None:
    assert NOT_RUN.keys() <= set(documented_python())


@pytest.mark.slow
@pytest.mark.parametrize(("page", "place"), [where for where in documented_python() if where not in NOT_RUN])
def test_documented_python_runs(page: str, place: int, tmp_path: Path) -> None:
    run_python(blocks(REPOSITORY / page, "python")[place], tmp_path)


@pytest.mark.slow
def test_the_examples_of_the_reference_run(tmp_path: Path) -> None:
    """In their order: what one records, the next replays. Those that need files of the reader's or minutes are left."""
    found = [code for code in blocks(REFERENCE / "api.md", "python") if re.match(r"(with )?manyarms\.", code)]
    left = ("my_package", "checkpoints/", "manyarms.demo", "manyarms.train", "manyarms.watch")
    run = [code for code in found if not any(word in code for word in left)]
    assert len(run) == len(found) - len(left)
    run_python("import manyarms\n" + "\n".join(run), tmp_path)


#: Commands that do nothing but what another documented one does too.
INCLUDED = {
    "manyarms doctor gym": "manyarms doctor gym tabletop",
    "manyarms doctor tabletop": "manyarms doctor gym tabletop",
}


def documented_commands() -> list[list[str]]:
    """Return the commands of every block that has some, in their order."""
    found = []
    guides = REPOSITORY / "docs/add"  # what they run needs the files they show
    for block in (block for page in PAGES if guides not in page.parents for block in blocks(page, "bash")):
        lines = [line.partition(" #")[0].strip() for line in block.splitlines()]
        commands = [line for line in lines if line.startswith("manyarms ") and "my_package" not in line]
        commands = [command for command in commands if command not in INCLUDED]
        if commands and commands not in found:
            found.append(commands)
    return found


def test_there_are_documented_commands() -> None:
    found = {command for commands in documented_commands() for command in commands}
    assert any(command.startswith("manyarms bench") for command in found)
    assert found.issuperset(INCLUDED.values())


@pytest.mark.slow
@pytest.mark.parametrize("commands", documented_commands(), ids=lambda commands: commands[0])
def test_documented_commands_run(commands: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which has imported what they need, but for what goes on in the background."""
    background: list[subprocess.Popen[str]] = []
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))  # the doctor looks there for what others left
    monkeypatch.chdir(tmp_path)
    try:
        for command in commands:
            words = sooner(command).split()[1:]
            if words[0] == "train" and "--dry-run" not in words:
                words.append("algorithm.episodes_per_step=16")
            if words[-1] == "&":
                process = subprocess.Popen([BIN / "manyarms", *words[:-1]], stdout=subprocess.PIPE, text=True)
                background.append(process)
                assert process.stdout is not None
                assert process.stdout.readline(), "it says when it is up"
            else:
                assert cli.run(words) == 0, command
    finally:
        for process in background:
            process.terminate()
            process.communicate()
            assert process.returncode == 0


def test_make_targets_that_are_documented_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE):
            assert target in targets, f"{page.name} says make {target}"


def test_figures_of_the_readmes_are_those_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    report = importlib.import_module("report")
    found = json.loads((REPOSITORY / "docs/benchmarks/vector.json").read_text())
    assert (REPOSITORY / "docs/benchmarks/vector.md").read_text() == report.markdown(found)
    algorithms = load_file(str(REPOSITORY / "benchmarks/algorithms.py"))
    runs = algorithms.by_algorithm(json.loads((REPOSITORY / "docs/results/algorithms.json").read_text())["runs"])
    assert (REPOSITORY / "docs/results/algorithms.md").read_text() == algorithms.page(runs)
    libero = load_file(str(REPOSITORY / "benchmarks/libero.py"))  # not by its name, which is LIBERO's own
    found = json.loads((REPOSITORY / "docs/benchmarks/libero.json").read_text())
    assert (REPOSITORY / "docs/benchmarks/libero.md").read_text() == libero.markdown(found), "libero.py --no-measure"
    for page, text in importlib.import_module("readme").pages().items():
        assert page.read_text() == text, f"{page.name}: python benchmarks/readme.py"


@pytest.mark.slow
@pytest.mark.soak
def test_the_benchmark_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(REPOSITORY / "benchmarks/vector.py"), "--out", str(tmp_path), "--no-plot"]
    quick = ["--cases", "mujoco:2", "--seconds", "0.2", "--chunks", "4", "--rounds", "1"]
    peers = ["--peers", "copy=False", "send and recv", "a simulator"]
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
