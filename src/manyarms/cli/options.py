"""What several commands take: which simulator, where it runs, and its own options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from manyarms.errors import ConfigError

T = TypeVar("T")


def parse(config: type[T], command: str, arguments: Sequence[str]) -> T:
    """Parse flags into a config dataclass; both ``--num-envs`` and ``--num_envs`` are understood."""
    import tyro

    return tyro.cli(config, prog=f"manyarms {command}", args=list(arguments))


def parse_pairs(pairs: Sequence[str]) -> dict[str, Any]:
    """Turn ``key=value`` words into options; values are read as YAML."""
    import yaml

    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{pair!r} is not of the form key=value")
        try:
            options[key] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of {key!r} cannot be read", why=str(error)) from None
    return options
