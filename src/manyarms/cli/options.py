"""What several commands take: which simulator, where it runs, and its own options."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import tyro

from manyarms.errors import ConfigError

T = TypeVar("T")

#: A simulator, with or without a task, as the first word of a command.
SimulatorName = tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="SIMULATOR")]]


def parse(
    config: type[T], command: str, arguments: Sequence[str], *, program: str = "manyarms", speaks: bool = True
) -> T:
    """Parse flags into a config dataclass; both ``--num-envs`` and ``--num_envs`` are understood.

    ``--help`` shows the flags that the config's `guide` calls everyday, ``--help-all`` every one.
    """
    called = f"{program} {command}".strip()
    asked = [word.replace("_", "-") for word in arguments if word.startswith("-")]
    if any(word in ("-h", "--help", "--help-all") for word in asked):
        if speaks:
            from manyarms.cli.help import page

            print(page(config, called, everything="--help-all" in asked))
        sys.exit(0)
    return tyro.cli(config, prog=called, args=list(arguments), console_outputs=speaks)


def parse_pairs(pairs: Sequence[str]) -> dict[str, Any]:
    """Turn ``key=value`` words into options; values are read as YAML."""
    from manyarms.decoding import Undecodable, from_yaml

    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{pair!r} is not of the form key=value")
        try:
            options[key] = from_yaml(text)
        except Undecodable as error:
            raise ConfigError(f"the value of {key!r} cannot be read", why=str(error)) from None
    return options
