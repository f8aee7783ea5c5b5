"""``manyarms completion``: a script in which the shell finds all it needs, so that TAB starts no Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

import tyro

from manyarms import plugins
from manyarms.cli import COMMANDS, config_of, module_of, shells
from manyarms.cli.help import Flag, Guide, flags_of
from manyarms.cli.options import parse
from manyarms.cli.shells import Choices, Command, Words
from manyarms.errors import UnknownName, did_you_mean
from manyarms.learning.recipes import recipes
from manyarms.simulators import registry as simulators

Shell = Literal["bash", "zsh", "fish"]

#: Fields whose values have names: what completes them.
_BY_FIELD = {
    "simulator": "simulators",
    "simulators": "simulators",
    "tasks": "tasks",
    "policy": "policies",
    "config": "configs",
}


@dataclass(frozen=True)
class CompletionConfig:
    """Print a script that completes commands, flags, simulators, tasks, policies and recipes.

    Its head says where it goes; it knows the plug-ins that were installed when it was printed.
    """

    shell: Annotated[tyro.conf.Positional[Shell], tyro.conf.arg(metavar="SHELL")]
    """bash, zsh or fish."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "manyarms completion bash > ~/.local/share/bash-completion/completions/manyarms",
            'manyarms completion zsh > "${fpath[1]}/_manyarms"',
            "manyarms completion fish > ~/.config/fish/completions/manyarms.fish",
        ),
    )

    def __post_init__(self) -> None:
        if self.shell not in get_args(Shell):
            raise UnknownName(f"there is no script for {self.shell!r}", do=did_you_mean(self.shell, get_args(Shell)))


def run(config: CompletionConfig) -> str:
    """Return the script."""
    write = {"bash": shells.bash, "zsh": shells.zsh, "fish": shells.fish}[config.shell]
    return write([_command(name) for name in COMMANDS], _vocabulary())


def _vocabulary() -> Words:
    tasks = {name: tuple(simulators.tasks_of(name)) for name in simulators.BUILT_IN}
    return Words(
        simulators={**dict.fromkeys(plugins.plug_ins("simulators"), ()), **tasks},
        policies=tuple(plugins.names("policies")),
        configs=tuple(recipes()),
    )


def _command(name: str) -> Command:
    flags = flags_of(config_of(name))
    subcommands = getattr(module_of(name), "SUBCOMMANDS", ())
    first = (Choices("choices", subcommands),) if subcommands else ()
    return Command(
        name,
        COMMANDS[name],
        words=(*first, *(_choices(flag) for flag in flags if not flag.spellings)),
        flags=tuple((flag, _choices(flag)) for flag in flags if flag.spellings),
    )


def _choices(flag: Flag) -> Choices:
    """Return what may stand behind a flag, or in its place."""
    if not flag.metavar:
        return Choices("switch")
    if flag.choices:
        return Choices("choices", flag.choices)
    if flag.metavar.startswith(("INT", "FLOAT", "KEY=")):
        return Choices("nothing")
    return Choices(_BY_FIELD.get(flag.field, "files"))


def main(arguments: Sequence[str]) -> int:
    """Parse, print."""
    print(run(parse(CompletionConfig, "completion", arguments)), end="")
    return 0
