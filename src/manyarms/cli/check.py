"""``manyarms check``: the conformance suite on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from manyarms.cli.options import parse, parse_pairs
from manyarms.errors import ManyarmsError
from manyarms.testing import CHECKS, Subject


@dataclass(frozen=True)
class CheckConfig:
    """Hold a simulator to every promise a simulator makes."""

    simulator: tyro.conf.Positional[str]
    """<simulator>/<task>, package.module:factory or path/to/file.py:factory."""
    python: str | None = None
    """The interpreter the simulator runs in."""
    tolerance: float = 0.0
    """How far two runs from the same seed may drift; 0: bit for bit."""
    steps: int = 12
    """How long each check runs; lower it for slow simulators."""
    options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE…")] = ()
    """Further options of the simulator or of the vector environment."""


def run(config: CheckConfig) -> dict[str, str]:
    """Run every check; return what went wrong by name, nothing where all is well."""
    options = {**parse_pairs(config.options), **({"python": config.python} if config.python else {})}
    subject = Subject(config.simulator, options, config.tolerance, config.steps)
    subject.make(num_envs=1).close()  # a simulator that cannot start is one error, not one a check
    failures: dict[str, str] = {}
    for check in CHECKS:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        try:
            check(subject)
        except (AssertionError, ManyarmsError) as error:
            failures[name] = str(error)
        print(f"{'✗' if name in failures else '✓'} {name}", flush=True)
        if name in failures:
            print("    " + failures[name].replace("\n", "\n    "), flush=True)
    return failures


def main(arguments: Sequence[str]) -> int:
    """Parse, check, say how it went."""
    config = parse(CheckConfig, "check", arguments)
    failures = run(config)
    print(f"{config.simulator}: {len(CHECKS) - len(failures)} of {len(CHECKS)} checks hold")
    return 1 if failures else 0
