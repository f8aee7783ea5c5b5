"""Recorded episodes as examples: what was seen at a step, and the chunk of actions that followed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from manyarms.errors import ConfigError
from manyarms.policies.base import Observations
from manyarms.reporting.recording import RecordedEpisode
from manyarms.rollout import Episode


@dataclass(frozen=True)
class Demonstrations:
    """N steps of demonstrations."""

    observations: Observations
    actions: np.ndarray  # [N, K, …]
    mask: np.ndarray  # [N, K]: 0 beyond the end of the episode

    def __len__(self) -> int:
        return len(self.actions)


def demonstrations(
    episodes: Iterable[RecordedEpisode], chunk: int, *, only_success: bool = True, fields: Iterable[str] | None = None
) -> Demonstrations:
    """Cut episodes into examples with chunks of K actions; observation fields not in `fields` are left out."""
    used = [episode for episode in episodes if len(episode) and (episode.success or not only_success)]
    if not used:
        raise ConfigError("there is no demonstration to learn from", do="record some that succeed: --policy expert")
    names = [name for name in used[0].observations if fields is None or name in set(fields)]
    starts = [np.arange(len(episode)) for episode in used]
    index = [start[:, None] + np.arange(chunk) for start in starts]  # [T, K]
    return Demonstrations(
        Observations(
            {name: np.concatenate([episode.observations[name][:-1] for episode in used]) for name in names},
            [episode.text for episode in used for _ in range(len(episode))],
            [episode.id for episode in used for _ in range(len(episode))],
            np.concatenate(starts),
        ),
        np.concatenate(
            [episode.actions[""][np.minimum(i, len(episode) - 1)] for episode, i in zip(used, index, strict=True)]
        ),
        np.concatenate([(i < len(episode)) for episode, i in zip(used, index, strict=True)]).astype(np.float32),
    )


def recorded(position: int, episode: Episode) -> RecordedEpisode:
    """Return an episode whose every decision was one action as if it had been recorded."""
    return RecordedEpisode(
        position,
        episode.id,
        episode.text,
        {
            name: np.append(seen, episode.final_observation[name][None], 0)
            for name, seen in episode.observations.items()
        },
        episode.taken_actions(),
        episode.rewards[episode.mask],
        episode.success,
        episode.terminated,
        episode.truncated,
    )
