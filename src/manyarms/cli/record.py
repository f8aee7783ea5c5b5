"""``manyarms record``: episodes to disk, to play back or to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from manyarms.cli.help import Guide
from manyarms.cli.options import parse
from manyarms.cli.playing import PLAYED, PLAYING, PlayConfig, opened, policy_for
from manyarms.errors import ConfigError
from manyarms.reporting.console import say
from manyarms.reporting.files import check_goes_on_inside
from manyarms.reporting.progress import Scoreboard
from manyarms.reporting.recording import Recorder, Recording, recorded_already
from manyarms.rollout import Runner


@dataclass(frozen=True)
class RecordConfig(PlayConfig):
    """Play episodes and write down every step; with --policy expert, demonstrations."""

    out: Path = Path("recording")
    """Where episodes go."""
    lerobot: Path | None = None
    """Also write a LeRobotDataset (v3.0) here."""
    only_success: bool = False
    """Leave episodes that failed out of the LeRobotDataset."""
    resume: bool = False
    """Go on with what --out holds."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "manyarms record tabletop/open_drawer --policy expert --episodes 50 --out drawers",
            "manyarms record tabletop --tasks push_button,turn_tap --policy expert --lerobot dataset",
            "manyarms record tabletop/open_drawer --policy expert --episodes 50 --out drawers --resume",
        ),
        everyday=(
            "tasks",
            "policy",
            "episodes",
            "seed",
            "num_envs",
            "out",
            "lerobot",
            "only_success",
            "resume",
            "python",
            "options",
        ),
        groups={**PLAYED, "what is written": ("out", "lerobot", "only_success", "resume"), **PLAYING},
    )


def run(config: RecordConfig) -> Recording:
    """Record what is not recorded yet."""
    if (config.out / "recording.json").exists() and not config.resume:
        raise ConfigError(f"{config.out} holds a recording already", do="--resume to go on, or another --out")
    if not config.trust_code:
        check_goes_on_inside(config.out, trusted="--trust-code")
    env = config.environments()
    with opened(config, env) as envs:
        episodes = env.held_out(envs)
        source = {"simulator": config.simulator, "options": _simulator_options(config), "python": config.python}
        done = recorded_already(config.out, source, episodes)
        recorder = Recorder(config.out, envs.simulator_spec, source, episodes)
        missing = [episode for i, episode in enumerate(episodes) if i not in done]
        runner = Runner(envs, policy_for(config, envs), config.runner(keep=(), steps_per_call=1), sinks=[recorder])
        try:
            with Scoreboard(len(missing)) as board:
                for episode in runner.play(missing):
                    board.add(episode.id.task or "", episode.success)
        except KeyboardInterrupt:
            say(f"what was finished is in {config.out}; --resume goes on with the others", stderr=True)
            raise
        finally:
            recorder.close()
    recording = Recording(config.out)
    if config.lerobot is not None:
        from manyarms.reporting.lerobot import write_dataset

        write_dataset(config.lerobot, recording, only_success=config.only_success)
    return recording


def _simulator_options(config: RecordConfig) -> dict[str, object]:
    """Return what a replay must give the simulator; the expert's hints are left out."""
    options = {**config.options, "max_episode_steps": config.max_episode_steps}
    if config.tasks:
        options["tasks"] = list(config.tasks)
    return {name: value for name, value in options.items() if value is not None}


def _trusted(recording: Recording) -> str:
    """Return the flag that replaying needs where the recording names code that is not installed."""
    try:
        recording.source()
    except ConfigError:
        return " --trust-code"
    return ""


def main(arguments: Sequence[str]) -> int:
    """Parse, record, say what there is."""
    config = parse(RecordConfig, "record", arguments)
    recording = run(config)
    say(recording.told().headline)
    if config.lerobot is not None:
        print(f"LeRobotDataset v3.0: {config.lerobot}")
    print(f"next: manyarms replay {config.out}{_trusted(recording)}")
    return 0
