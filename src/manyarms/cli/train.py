"""``manyarms train``: post-train a policy as a config says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro

from manyarms.cli.help import Guide
from manyarms.cli.options import parse
from manyarms.errors import ConfigError
from manyarms.reporting.console import Shown, Table, Telling, say

if TYPE_CHECKING:
    from manyarms.learning.config import TrainConfig
    from manyarms.learning.loop import TrainResult


@dataclass(frozen=True)
class TrainCommand:
    """Post-train a policy with PPO, GRPO or RLOO, as a config says."""

    config: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="CONFIG")]]
    """A YAML file, or a recipe: reach_target_ppo, push_button_ppo, pixel_grpo, pixel_rloo, four_tasks_grpo."""
    overrides: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE…")]] = ()
    """Settings that replace the config's: algorithm.gamma=0.95 runner.max_steps=50."""
    dry_run: bool = False
    """Print the whole config and what would be done, and stop."""
    resume: bool = False
    """Go on from the run's newest checkpoint, if it has one."""
    trust_code: bool = False
    """As runner.trust_code=true: let a checkpoint named as a policy bring code that is not installed."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "manyarms train reach_target_ppo   # a recipe: manyarms list configs",
            "manyarms train pixel_grpo runner.max_steps=50 env.train.total_num_envs=16",
            "manyarms train examples/embodiment/config/libero_ppo_pi0.yaml --dry-run",
        ),
    )


@dataclass(frozen=True, repr=False)
class TrainPlan(Shown):
    """What would be done."""

    config: str
    """All of it as YAML, defaults filled in."""
    rows: list[tuple[str, str]]
    placement: Table | None = None
    """Which process would go where, were all nodes like this one."""

    def told(self) -> Telling:
        tables = [Table(self.rows, ("what", "how much"))]
        return Telling("plan", [*tables, self.placement] if self.placement else tables)


def run(command: TrainCommand, values: Mapping[str, Any] | None = None) -> TrainResult | TrainPlan:
    """Train, or tell what would be done; `values` replace the config's by their dotted keys."""
    try:
        from manyarms.learning import settings as reading
        from manyarms.learning.plan import plan
    except ImportError as error:
        raise ConfigError(f"training needs {error.name}", do="pip install 'manyarms[torch,tensorboard]'") from error

    trusted = ("runner.trust_code=true",) if command.trust_code else ()
    settings = reading.load(command.config, (*command.overrides, *trusted), values)
    first = os.environ.get("RANK", "0") == "0"
    for warning in settings.warnings if first else ():
        say(f"warning: {warning}", stderr=True)
    if command.dry_run:
        from manyarms.learning.foresight import lacks

        for lack in lacks(settings.config):
            say(f"warning: this would fail here: {lack}", stderr=True)
        placement = _placement(settings.config) if settings.config.cluster.placed else None
        return TrainPlan(settings.text, plan(settings.config), placement)
    from manyarms.placement.training import train

    return train(settings, resume=command.resume)


def _placement(config: TrainConfig) -> Table:
    """Return which process would go where, were all nodes like this one."""
    from manyarms.placement.training import plan_for, this_machine

    found = plan_for(config, [this_machine()], alike=True)
    for warning in found.warnings:
        say(f"warning: {warning}", stderr=True)
    title, rows, header = found.table()
    return Table(rows, header, title)


def main(arguments: Sequence[str]) -> int:
    """Parse, train, print the headline first."""
    # Settings may stand before and after flags, none of which takes a value; the parser wants them in one piece.
    result = run(parse(TrainCommand, "train", sorted(arguments, key=lambda word: word.startswith("-"))))
    if isinstance(result, TrainPlan):
        say(result.config.rstrip("\n"))
        result.show()
        return 0
    if os.environ.get("RANK", "0") != "0":
        return 0  # the first rank tells
    from manyarms.reporting.runs import StopReason

    result.show()
    if result.stop_reason is not StopReason.INTERRUPTED:
        return 0
    print("the same command with --resume goes on")
    return 130
