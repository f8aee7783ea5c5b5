"""Help: it fits a screen, its examples can be typed, and it hides nothing."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import pytest

from manyarms import cli
from manyarms.cli.help import Guide, guide_of, page
from manyarms.cli.options import parse

RLBENCH = Path(__file__).parents[2] / "examples" / "rlbench"
SCRIPTS = {"mp_rlbench_env_test": "TestFlags", "rlbench_vec_env": "BenchFlags", "rl_vec_env": "RunFlags"}


def script_flags(name: str) -> Any:
    spec = importlib.util.spec_from_file_location("flags_of_scripts", RLBENCH / "flags.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def asked(arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "100")
    try:
        status = cli.run(arguments)
    except SystemExit as done:
        status = done.code
    assert status == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_fits_a_screen_and_has_examples(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = asked([command, "--help"], capsys, monkeypatch)
    assert len(text.splitlines()) <= 40
    assert "\nexamples:\n  manyarms " in text
    assert "all flags: " not in text or text.rstrip().endswith("--help-all")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_all_has_every_flag(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = asked([command, "--help-all"], capsys, monkeypatch)
    for entry in fields(cli.config_of(command)):
        positional = f"\n  {entry.name.upper()}" in text or "\n  KEY=VALUE" in text or "[SIMULATOR…]" in text
        assert f"--{entry.name.replace('_', '-')}" in text or positional, entry.name


@dataclass(frozen=True)
class Made:
    """Something to ask for."""

    count: int = 3
    """How many."""
    words: tuple[str, ...] = ("a", "b")
    """What to say."""
    told: int = 4
    """How often; default: as often as needed."""
    forgotten: str = ""
    """In no group."""
    guide: ClassVar[Guide] = Guide(groups={"numbers": ("count", "words", "told")})


def test_help_tells_defaults_once_and_what_is_in_no_group() -> None:
    text = page(Made, "made", everything=True)
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  --")}
    assert lines["--count"].endswith("How many. (default: 3)")
    assert lines["--words"].endswith("What to say. (default: a b)")
    assert lines["--told"].endswith("How often; default: as often as needed.")
    assert "\nmore:\n  --forgotten" in text


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_examples_can_be_typed(command: str) -> None:
    typed = [shlex.split(line, comments=True) for line in guide_of(cli.config_of(command)).examples]
    ours = [words[: words.index(">")] if ">" in words else words for words in typed if words[0] == "manyarms"]
    assert ours
    for _, name, *arguments in ours:
        skipped = len(getattr(cli.module_of(name), "SUBCOMMANDS", ()))
        parse(cli.config_of(name), name, arguments[skipped:])


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_of_the_scripts_for_rlbench_is_like_that(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    kind = script_flags(SCRIPTS[script])
    text, everything = (page(kind, f"python {script}.py", everything=each) for each in (False, True))
    assert len(text.splitlines()) <= 40
    assert text.endswith(f"all flags: python {script}.py --help-all")
    for entry in fields(kind):
        name = entry.name.replace("_", "-")
        assert f"--{name}" in everything or f"--no-{name}" in everything, entry.name
    for line in guide_of(kind).examples:
        words = shlex.split(line, comments=True)
        place = next(i for i, word in enumerate(words) if word.endswith(f"{script}.py"))
        parse(kind, script, words[place + 1 :]).resolved()


def test_a_script_for_rlbench_answers_help() -> None:
    done = subprocess.run(
        [sys.executable, str(RLBENCH / "rl_vec_env.py"), "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "torchrun --nproc_per_node=4" in done.stdout


def test_the_list_of_commands_has_examples_and_needs_nothing_heavy() -> None:
    code = (
        "import sys; from manyarms.cli import run; assert run(['--help']) == 0; "
        "assert not {'torch', 'mujoco', 'gymnasium', 'ray'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 40
    for line in lines[lines.index("examples:") + 1 :]:
        words = shlex.split(line, comments=True)
        if not words:
            break
        parse(cli.config_of(words[1]), words[1], words[2:])


@pytest.mark.parametrize("spelling", ["--num-envs", "--num_envs"])
def test_both_spellings_are_understood(spelling: str) -> None:
    assert parse(cli.config_of("bench"), "bench", ["gym/CartPole-v1", spelling, "3"]).num_envs == 3


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(["eval", "tabletop", "--polcy", "random"], "--policy"), (["train", "pixel_grpo", "--dryrun"], "--dry-run")],
)
def test_a_wrong_flag_is_told_shortly_with_the_near_one(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as done:
        cli.run(arguments)
    assert done.value.code == 2
    said = capsys.readouterr()
    assert meant in said.out + said.err
    assert len((said.out + said.err).splitlines()) <= 16
