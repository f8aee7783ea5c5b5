"""``manyarms replay``: play recorded episodes back and check that they come out the same, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import tyro

from manyarms.cli.help import Guide
from manyarms.cli.options import parse
from manyarms.environments import EnvConfig, SimulatorSettings
from manyarms.errors import ConfigError
from manyarms.policies.scripted import ReplayPolicy
from manyarms.reporting.progress import progress
from manyarms.reporting.recording import Comparison, Recording, ReplayResult
from manyarms.rollout import Runner, RunnerConfig


@dataclass(frozen=True)
class ReplayConfig:
    """Play a recording back and compare every observation and reward."""

    recording: tyro.conf.Positional[Path]
    """A folder that `manyarms record` wrote."""
    episodes: tuple[int, ...] = ()
    """Which, by position; default: all."""
    num_envs: int = 4
    """Environments side by side."""
    python: str | None = None
    """The interpreter the simulator runs in; default: this one, or the recording's with --trust-code."""
    trust_code: bool = False
    """Let the recording name code and an interpreter that are not installed here: for your own, never a stranger's."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "manyarms replay drawers",
            "manyarms replay drawers --episodes 0 3 --num-envs 1",
        ),
    )


def run(config: ReplayConfig) -> ReplayResult:
    """Play back and compare."""
    recording = Recording(config.recording)
    positions = list(config.episodes) or recording.positions
    unknown = [position for position in positions if position not in recording.positions]
    if unknown or not positions:
        raise ConfigError(
            f"{config.recording} has no episode {unknown[0] if unknown else ''}".rstrip(),
            do=f"it has {len(recording)}"
            + (f", {recording.positions[0]} to {recording.positions[-1]}" if positions else ""),
        )
    recorded = {episode.id.key: episode for episode in map(recording.load, positions)}
    simulator, options = recording.source(trust_code=config.trust_code, python=config.python)
    env = EnvConfig((SimulatorSettings(simulator),), {**options, "copy": False, "action_bounds": "ignore"})
    with env.open(min(config.num_envs, len(positions))) as envs:
        policy = ReplayPolicy(envs.simulator_spec, {key: episode.actions for key, episode in recorded.items()})
        comparison = Comparison(recorded, recording.spec.cameras)
        runner = Runner(envs, policy, RunnerConfig(steps_per_call=1, keep=()), sinks=[comparison])
        with progress("replaying", len(positions)) as advance:
            for _ in runner.play([episode.id for episode in recorded.values()]):
                advance(1, "")
    return ReplayResult(config.recording, tuple(positions), comparison.differences)


def main(arguments: Sequence[str]) -> int:
    """Parse, replay, say what differs."""
    result = run(parse(ReplayConfig, "replay", arguments))
    result.show()
    return 0 if result.same else 1
