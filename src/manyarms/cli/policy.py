"""``manyarms policy``: what a checkpoint is, before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import tyro

from manyarms.cli.help import Guide
from manyarms.cli.options import parse
from manyarms.errors import ConfigError, UnknownName, did_you_mean
from manyarms.policies.checkpoints import Inspection
from manyarms.reporting.console import Shown, Table, Telling

SUBCOMMANDS = ("inspect",)


@dataclass(frozen=True)
class InspectConfig:
    """Tell what a folder with weights is, whether it would load, and what it needs."""

    path: tyro.conf.Positional[Path]
    """A folder with config.json and safetensors: of π0 or OpenVLA-OFT."""
    guide: ClassVar[Guide] = Guide(
        examples=("manyarms policy inspect checkpoints/pi0_libero",),
    )


@dataclass(frozen=True, repr=False)
class InspectResult(Shown, Inspection):
    """What was found, and where."""

    path: Path = Path()

    @property
    def loads(self) -> bool:
        """Whether it would load as it is."""
        return not self.problems

    def told(self) -> Telling:
        headline = f"policy: {self.kind}" + ("" if self.loads else ", but it would not load as it is")
        notes = [f"problem: {problem}" for problem in self.problems] + [f"do: {advice}" for advice in self.advice]
        return Telling(headline, [Table(self.facts, title=str(self.path))], notes)


def run(config: InspectConfig) -> InspectResult:
    """Look at a folder; nothing is loaded."""
    from manyarms.policies.checkpoints import inspect

    if not config.path.is_dir():
        raise ConfigError(f"there is no folder {config.path}", do="give a folder with config.json and safetensors")
    try:
        found = inspect(config.path)
    except ConfigError as error:
        if not (config.path / "policy.json").is_file():
            raise
        raise ConfigError(
            f"{config.path} is a checkpoint of `manyarms train`, not of pi0 or openvla_oft",
            do=f"use it as it is: --policy {config.path}",
        ) from error
    except ImportError as error:
        raise ConfigError(f"looking at it needs {error.name}", do="pip install 'manyarms[torch,vla]'") from error
    return InspectResult(found.kind, found.facts, found.problems, found.advice, config.path)


def main(arguments: Sequence[str]) -> int:
    """Parse, look, print; 1 where it would not load as it is."""
    words = list(arguments)
    if words and not words[0].startswith("-") and words[0] not in SUBCOMMANDS:
        raise UnknownName(f"there is no command 'policy {words[0]}'", do=did_you_mean(words[0], SUBCOMMANDS))
    config = parse(InspectConfig, "policy inspect", words[1:] if words[:1] == ["inspect"] else ["--help"])
    found = run(config)
    found.show()
    return 0 if found.loads else 1
