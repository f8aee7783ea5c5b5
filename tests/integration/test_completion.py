"""Completion, in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from manyarms.cli.completion import CompletionConfig, run
from manyarms.errors import UnknownName

#: What is typed -> what must and must not be offered.
CASES = [
    ("manyarms ev", "eval", "bench"),
    ("manyarms eval tabletop/op", "tabletop/open_drawer", "rlbench/open_drawer"),
    ("manyarms eval tabletop --policy ra", "random", "expert"),
    ("manyarms eval --seed 3 tabletop/open_", "tabletop/open_drawer", "tabletop/turn_tap"),
    ("manyarms eval tabletop --tasks st", "stack_blocks", "open_drawer"),
    ("manyarms eval tabletop --num", "--num-envs", "--policy"),
    ("manyarms train re", "reach_target_ppo", "pixel_grpo"),
    ("manyarms list si", "simulators", "tasks"),
    ("manyarms list tasks tabletop/tu", "tabletop/turn_tap", "tabletop/open_drawer"),
    ("manyarms policy in", "inspect", "eval"),
    ("manyarms completion f", "fish", "bash"),
    ("manyarms eval tabletop --out here_is_a", "here_is_a_file", "eval"),
    ("manyarms train here_is_a", "here_is_a_file", "reach_target_ppo"),
]

BASH = """
manyarms() { echo "TAB started manyarms"; }
source ./script
words=($1)
[[ $1 == *" " ]] && words+=("")
COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1))
_manyarms
printf '%s\\n' "${COMPREPLY[@]}"
"""

ZSH = """
rm -f result
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'dump() { print -r -- "$BUFFER" > result; exit }; zle -N dump; bindkey "^X^D" dump; PS1='
zpty -w shell 'autoload -U compinit; compinit -u -D; source ./script'
# Only when the line editor is up are keys its own.
zpty -w shell 'zle-line-init() { print REA""DY }; zle -N zle-line-init'
zpty -r shell out '*READY*'
zpty -w -n shell "$1"$'\\t\\x18\\x04'
while zpty -t shell; do zpty -r shell out; done
cat result
"""


@pytest.fixture(scope="module", params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name = str(request.param)
    if name != "bash" and shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    folder = tmp_path_factory.mktemp(name)
    (folder / "script").write_text(run(CompletionConfig(name)))  # type: ignore[arg-type]
    (folder / "here_is_a_file").touch()
    return name, folder


def offered(shell: tuple[str, Path], line: str) -> list[str]:
    name, folder = shell
    command = {
        "bash": ["bash", "--norc", "-c", BASH, "bash", line],
        "zsh": ["zsh", "-f", "-c", ZSH, "zsh", line],
        "fish": ["fish", "--no-config", "-c", "source ./script; complete -C $argv[1]", line],
    }[name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=True)
    assert not done.stderr
    return [word for line in done.stdout.splitlines() for word in line.partition("\t")[0].split()]


@pytest.mark.parametrize(("line", "wanted", "unwanted"), CASES)
def test_completes(shell: tuple[str, Path], line: str, wanted: str, unwanted: str) -> None:
    found = offered(shell, line)
    if shell[0] == "zsh":  # which shows the completed line, in which what was typed stands as well
        assert wanted in [word.rstrip(",") for word in found]
    else:
        assert wanted in found
        assert unwanted not in found


@pytest.mark.parametrize("shell", ["bash"], indirect=True)  # others do it by themselves
def test_bash_offers_simulators_first_and_then_their_tasks(shell: tuple[str, Path]) -> None:
    assert offered(shell, "manyarms eval ") == ["behavior/", "gym/", "libero/", "rlbench/", "tabletop/"]
    assert offered(shell, "manyarms eval tabletop --tasks open_drawer,st") == ["open_drawer,stack_blocks"]
    assert offered(shell, "manyarms eval tabletop --seed ") == []


def test_a_script_says_how_to_install_it(shell: tuple[str, Path]) -> None:
    name, folder = shell
    comments = [line for line in (folder / "script").read_text().splitlines() if line.startswith("# ")]
    assert f"manyarms completion {name} > " in comments[0]


def test_an_unknown_shell_gets_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="bash"):
        CompletionConfig("bsh")  # type: ignore[arg-type]
