"""``manyarms check``: the conformance suite on the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import tyro

from manyarms.cli.help import Guide
from manyarms.cli.options import SimulatorName, parse, parse_pairs
from manyarms.errors import ManyarmsError
from manyarms.reporting.console import say
from manyarms.reporting.showing import Shown, Table, Telling
from manyarms.testing import CHECKS, Subject


@dataclass(frozen=True)
class CheckConfig:
    """Hold a simulator to every promise a simulator makes."""

    simulator: SimulatorName
    """<simulator>/<task>, package.module:factory or path/to/file.py:factory."""
    python: str | None = None
    """The interpreter the simulator runs in."""
    tolerance: float = 0.0
    """How far two runs from the same seed may drift; 0: bit for bit."""
    steps: int = 12
    """How long each check runs; lower it for slow simulators."""
    ignore: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FIELD…")] = ()
    """Observation fields that may differ between two runs, as contact forces do."""
    options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE…")] = ()
    """Further options of the simulator or of the vector environment."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "manyarms check tabletop/push_button",
            "manyarms check path/to/file.py:MySimulator --steps 4   # one that is being written",
            "manyarms check libero/libero_object/0 --python .venvs/libero",
        ),
    )


@dataclass(frozen=True, repr=False)
class CheckResult(Shown):
    """Which promises hold."""

    simulator: str
    checks: tuple[str, ...]
    failures: dict[str, str]
    """What went wrong, by check."""

    @property
    def holds(self) -> bool:
        """Whether all of them do."""
        return not self.failures

    def told(self) -> Telling:
        kept = len(self.checks) - len(self.failures)
        rows = [(_mark(name in self.failures), name) for name in self.checks]
        notes = [f"✗ {name}: {failure}" for name, failure in self.failures.items()]
        return Telling(f"{self.simulator}: {kept} of {len(self.checks)} checks hold", [Table(rows)], notes)


def run(config: CheckConfig, hear: Callable[[str, str], None] = lambda name, failure: None) -> CheckResult:
    """Run every check; `hear` gets the name of each when it is done, and what went wrong, if anything did."""
    options = {**parse_pairs(config.options), **({"python": config.python} if config.python else {})}
    subject = Subject(config.simulator, options, config.tolerance, config.steps, config.ignore)
    subject.make(num_envs=1).close()  # a simulator that cannot start is one error, not one a check
    failures: dict[str, str] = {}
    for check in CHECKS:
        name = _name(check)
        try:
            check(subject)
        except (AssertionError, ManyarmsError) as error:
            failures[name] = str(error) or type(error).__name__
        hear(name, failures.get(name, ""))
    return CheckResult(config.simulator, tuple(_name(check) for check in CHECKS), failures)


def _name(check: Callable[[Subject], None]) -> str:
    return check.__name__.removeprefix("check_").replace("_", " ")


def _mark(failed: bool) -> str:
    return "✗" if failed else "✓"


def _tell(name: str, failure: str) -> None:
    say(f"{_mark(bool(failure))} {name}", *(["    " + failure.replace("\n", "\n    ")] if failure else []))


def main(arguments: Sequence[str]) -> int:
    """Parse, check, say how it went."""
    result = run(parse(CheckConfig, "check", arguments), hear=_tell)
    say(result.told().headline)
    return 0 if result.holds else 1
