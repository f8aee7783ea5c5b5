"""What several commands take: which simulator, where it runs, and its own options."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from manyarms.errors import ConfigError

T = TypeVar("T")


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


def options_of(given: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Return options that a caller has given as a mapping, or in the words of the command line."""
    if not isinstance(given, Mapping):
        return parse_pairs(given)
    return {name: _plain(value, name) for name, value in given.items()}


def _plain(value: Any, name: str) -> Any:
    """Return a value as YAML would give it: paths are text, arrays and tuples are lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, name) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, name) for inner in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(f"{name} cannot be {value!r}", why=f"{type(value).__name__} is no plain value")


def names_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return names that a caller has given one by one, or separated by commas."""
    names = given.split(",") if isinstance(given, str) else given
    return tuple(name.strip() for name in names if name.strip())


#: A simulator, with or without a task, as the first word of a command.
SimulatorName = tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="SIMULATOR")]]

#: Options of a simulator or of a policy.
Options = Annotated[
    Mapping[str, Any],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="KEY=VALUE…",
        instance_from_str=parse_pairs,
        is_instance=lambda given: isinstance(given, Mapping),
        str_from_instance=lambda given: [f"{name}={value}" for name, value in given.items()],
    ),
]

#: Names with commas between them.
Names = Annotated[
    tuple[str, ...],
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="TEXT",
        instance_from_str=lambda words: names_of(words[0]),
        is_instance=lambda given: isinstance(given, tuple),
        str_from_instance=lambda given: [",".join(given)],
    ),
]
