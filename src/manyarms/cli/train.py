"""``manyarms train``: post-train a policy as a config says."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from manyarms.cli.options import parse
from manyarms.errors import ConfigError
from manyarms.reporting.console import table

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


def run(command: TrainCommand) -> TrainResult | None:
    """Train; None after a dry run."""
    try:
        from manyarms.learning import settings as reading
        from manyarms.learning.plan import plan
    except ImportError as error:
        raise ConfigError(f"training needs {error.name}", do="pip install 'manyarms[torch,tensorboard]'") from error

    settings = reading.load(command.config, command.overrides)
    first = os.environ.get("RANK", "0") == "0"
    for warning in settings.warnings if first else ():
        print(f"warning: {warning}", file=sys.stderr)
    if command.dry_run:
        print(settings.text, end="")
        table("plan", plan(settings.config), ("what", "how much"))
        if settings.config.cluster.placed:
            _tell_placement(settings.config)
        return None
    from manyarms.placement.training import train

    return train(settings, resume=command.resume)


def _tell_placement(config: TrainConfig) -> None:
    """Print which process would go where, were all nodes like this one."""
    from manyarms.placement.training import plan_for, this_machine

    found = plan_for(config, [this_machine()], alike=True)
    table(*found.table())
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)


def main(arguments: Sequence[str]) -> int:
    """Parse, train, print the headline first."""
    result = run(parse(TrainCommand, "train", arguments))
    if result is None or result.report is None:
        return 0
    from manyarms.reporting.results import summarise

    if result.evaluations:
        step, results = result.evaluations[-1]
        found, first = summarise(results), summarise(result.evaluations[0][1])
        low, high = found.interval
        since = f", {100 * first.success:.1f} % at the start" if len(result.evaluations) > 1 else ""
        print(
            f"{100 * found.success:.1f} % success after {step} updates ({found.successes} of {found.episodes} held-out "
            f"episodes, 95 % interval {100 * low:.1f} to {100 * high:.1f} %){since}"
        )
    print(f"{result.updates} updates; {result.finished_because}")
    print(f"report: {result.report}")
    return 0 if not result.finished_because.endswith("asked for the end") else 130
