"""``manyarms policy``: what a checkpoint is, before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from manyarms.cli.options import parse
from manyarms.errors import ConfigError, UnknownName, did_you_mean
from manyarms.policies.checkpoints import Inspection
from manyarms.reporting.console import table

_COMMANDS = ("inspect",)


@dataclass(frozen=True)
class InspectConfig:
    """Tell what a folder with weights is, whether it would load, and what it needs."""

    path: tyro.conf.Positional[Path]
    """A folder with config.json and safetensors: of π0 or OpenVLA-OFT."""


def run(config: InspectConfig) -> Inspection:
    """Look at a folder; nothing is loaded."""
    from manyarms.policies.checkpoints import inspect

    try:
        return inspect(config.path)
    except ImportError as error:
        raise ConfigError(f"looking at it needs {error.name}", do="pip install 'manyarms[torch,vla]'") from error


def main(arguments: Sequence[str]) -> int:
    """Parse, look, print; 1 where it would not load as it is."""
    words = list(arguments)
    if words and not words[0].startswith("-") and words[0] not in _COMMANDS:
        raise UnknownName(f"there is no command 'policy {words[0]}'", do=did_you_mean(words[0], _COMMANDS))
    config = parse(InspectConfig, "policy inspect", words[1:] if words[:1] == ["inspect"] else ["--help"])
    found = run(config)
    print(f"policy: {found.kind}" + (", but it would not load as it is" if found.problems else ""))
    table(str(config.path), found.facts)
    for label, sentences in (("problem", found.problems), ("do", found.advice)):
        for sentence in sentences:
            print(f"{label}: {sentence}")
    return 1 if found.problems else 0
