"""``manyarms replay``: play recorded episodes back and check that they come out the same, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import tyro

from manyarms.cli.help import Guide
from manyarms.cli.options import parse
from manyarms.environments import EnvConfig, SimulatorSettings
from manyarms.errors import ConfigError
from manyarms.policies.scripted import ReplayPolicy
from manyarms.reporting.console import Shown, Telling
from manyarms.reporting.progress import progress
from manyarms.reporting.recording import RecordedEpisode, Recording
from manyarms.rollout import Episode, Runner, RunnerConfig, Steps
from manyarms.vector import EpisodeId


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


@dataclass(frozen=True, repr=False)
class ReplayResult(Shown):
    """How episodes came out the second time."""

    recording: Path
    positions: tuple[int, ...]
    """The episodes that were played back."""
    differences: dict[int, str]
    """The first difference of each episode that has one."""

    @property
    def same(self) -> bool:
        """Whether all came out the same, bit for bit."""
        return not self.differences

    def told(self) -> Telling:
        count = len(self.positions)
        notes = [f"✗ episode {position}: {difference}" for position, difference in sorted(self.differences.items())]
        headline = f"{count - len(self.differences)} of {count} episodes came out the same, bit for bit"
        return Telling(headline, notes=notes)


class _Comparison:
    """A sink that holds every step against the recording."""

    def __init__(self, recorded: Mapping[bytes, RecordedEpisode], cameras: Sequence[str]) -> None:
        self.cameras = tuple(cameras)
        self.differences: dict[int, str] = {}
        self._recorded = recorded
        self._rows: dict[int, tuple[RecordedEpisode, int]] = {}

    def begin(self, row: int, episode: EpisodeId, text: str, observation: Mapping[str, np.ndarray]) -> None:
        recorded = self._recorded[episode.key]
        self._rows[row] = (recorded, 0)
        self._compare(recorded, 0, observation)
        if text != recorded.text:
            self._note(recorded, f"it is told {text!r}, not {recorded.text!r}")

    def advance(self, row: int, steps: Steps) -> None:
        recorded, step = self._rows[row]
        if step < len(recorded) and steps.rewards[0] != recorded.rewards[step]:
            self._note(recorded, f"reward of step {step + 1}: {steps.rewards[0]} instead of {recorded.rewards[step]}")
        self._compare(recorded, step + 1, steps.observation)
        self._rows[row] = (recorded, step + 1)

    def end(self, row: int, episode: Episode | None) -> None:
        recorded, step = self._rows.pop(row)
        if episode is not None and (step != len(recorded) or episode.success != recorded.success):
            found, wanted = (("solved" if e.success else "not solved") for e in (episode, recorded))
            self._note(recorded, f"{step} steps, {found}, instead of {len(recorded)}, {wanted}")

    def _compare(self, recorded: RecordedEpisode, step: int, observation: Mapping[str, np.ndarray]) -> None:
        for name, values in recorded.observations.items():
            if name not in observation or step >= len(values):
                continue
            seen, wanted = observation[name], values[step]
            if seen.tobytes() != wanted.tobytes():
                away = np.abs(seen.astype(np.float64) - wanted.astype(np.float64)).max()
                self._note(recorded, f"{name or 'observation'} after {step} steps is {away:.3g} away")

    def _note(self, recorded: RecordedEpisode, difference: str) -> None:
        self.differences.setdefault(recorded.position, difference)


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
        comparison = _Comparison(recorded, recording.spec.cameras)
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
