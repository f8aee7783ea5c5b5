"""Recordings as LeRobotDatasets (format v3.0): tables of numbers, videos of cameras, statistics of both.

A frame is what was seen, the action taken on it and what came of it. So an episode of T actions has T frames; what was
seen after the last action is left out, and so are depth images and masks.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path

from av.error import FFmpegError

from manyarms.errors import ConfigError
from manyarms.reporting.lerobot.dataset import Dataset
from manyarms.reporting.lerobot.files import arrow
from manyarms.reporting.recording import RecordedEpisode, Recording


def write_dataset(folder: Path, recording: Recording, *, only_success: bool = False, robot_type: str = "panda") -> int:
    """Write a recording as a LeRobotDataset, whole or not at all; return the number of episodes."""
    arrow()  # says now what is missing
    target = folder.resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{folder} is not empty", why="a dataset is written as a whole", do="choose another folder")
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        beside.mkdir(parents=True)
        with closing(Dataset(beside, recording.spec, _rate(recording), robot_type)) as dataset:
            for episode in _chosen(recording, only_success):
                dataset.add(episode)
        beside.replace(target)
    except (OSError, FFmpegError) as error:
        raise ConfigError(f"{folder} cannot be written", why=str(error)) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return dataset.episodes


def _chosen(recording: Recording, only_success: bool) -> Iterator[RecordedEpisode]:
    """Load the episodes to write, one at a time."""
    found = 0
    for episode in recording:
        if len(episode) and (episode.success or not only_success):
            found += 1
            yield episode
    if not found:
        kind = "solved episode" if only_success else "episode"
        raise ConfigError(f"{recording.folder} has no {kind}, and a dataset needs one", do="record more of them")


def _rate(recording: Recording) -> Fraction:
    """Return the frames a second."""
    rate = recording.spec.control_rate
    if not rate or rate <= 0:
        raise ConfigError(
            "a dataset needs a frame rate, and the simulator does not tell its own",
            do=f"write it into {recording.folder / 'recording.json'}, at spec.control_rate",
        )
    return Fraction(rate).limit_denominator(1000)


__all__ = ["write_dataset"]
