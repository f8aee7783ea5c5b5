"""``manyarms check``: the conformance suite on the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

import tyro

from manyarms.cli.help import Guide
from manyarms.cli.options import Options, SimulatorName, options_of, parse
from manyarms.errors import ManyarmsError
from manyarms.reporting.console import Shown, Table, Telling, say
from manyarms.simulators.base import Spec
from manyarms.testing import CHECKS, Subject


@dataclass(frozen=True)
class CheckConfig:
    """Hold a simulator, or a policy that learns, to every promise it makes."""

    simulator: SimulatorName
    """<simulator>/<task>, package.module:factory or path/to/file.py:factory."""
    policy: str | None = None
    """Check this policy instead, as it sees and moves what the simulator has."""
    policy_options: Options = field(default_factory=dict)
    """Its options."""
    python: str | None = None
    """The interpreter the simulator runs in."""
    tolerance: float = 0.0
    """How far two runs from the same seed may drift; 0: bit for bit."""
    steps: int = 12
    """How long each check runs; lower it for slow simulators."""
    ignore: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FIELD…")] = ()
    """Observation fields that may differ between two runs, as contact forces do."""
    options: Options = field(default_factory=dict)
    """Further options of the simulator or of the vector environment."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "manyarms check tabletop/push_button",
            "manyarms check path/to/file.py:MySimulator --steps 4   # one that is being written",
            "manyarms check tabletop/reach_target --policy path/to/file.py:MyPolicy",
            "manyarms check libero/libero_object/0 --python .venvs/libero",
        ),
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", options_of(self.options))
        object.__setattr__(self, "policy_options", options_of(self.policy_options))


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
    options = {**config.options, **({"python": config.python} if config.python else {})}
    subject = Subject(config.simulator, options, config.tolerance, config.steps, config.ignore)
    with subject.make(num_envs=1) as envs:  # a simulator that cannot start is one error, not one per check
        spec = envs.simulator_spec
    checks = (
        {_name(check): partial(check, subject) for check in CHECKS}
        if config.policy is None
        else _of_policy(config, spec)
    )
    failures: dict[str, str] = {}
    for name, check in checks.items():
        try:
            check()
        except (AssertionError, ManyarmsError) as error:
            failures[name] = str(error) or type(error).__name__
        hear(name, failures.get(name, ""))
    return CheckResult(config.policy or config.simulator, tuple(checks), failures)


def _of_policy(config: CheckConfig, spec: Spec) -> dict[str, Callable[[], None]]:
    """Return the checks of a policy."""
    from manyarms.testing.policies import policy_checks

    assert config.policy is not None
    return policy_checks(config.policy, spec, config.tolerance or 1e-3, **config.policy_options)


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
