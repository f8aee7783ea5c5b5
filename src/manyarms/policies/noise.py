"""Randomness that belongs to an episode: the same whichever row, batch, rank or attempt it is drawn in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from manyarms.policies.base import Observations


def generators(seed: int, observations: Observations, purpose: str = "act") -> Iterator[np.random.Generator]:
    """Yield one generator a row, keyed by policy seed, episode, step and purpose."""
    for episode, step in zip(observations.episodes, observations.steps, strict=True):
        words = hashlib.blake2b(f"{seed}/{purpose}/{int(step)}/".encode() + episode.key, digest_size=16).digest()
        yield np.random.Generator(np.random.Philox(key=int.from_bytes(words, "little")))


def normal(seed: int, observations: Observations, shape: Sequence[int], purpose: str = "act") -> np.ndarray:
    """Return standard normal noise [rows, *shape]."""
    drawn = [rng.standard_normal(tuple(shape), np.float32) for rng in generators(seed, observations, purpose)]
    return np.stack(drawn) if drawn else np.zeros((0, *shape), np.float32)


def uniform(seed: int, observations: Observations, shape: Sequence[int], purpose: str = "act") -> np.ndarray:
    """Return uniform noise [rows, *shape] in [0, 1)."""
    drawn = [rng.random(tuple(shape), np.float32) for rng in generators(seed, observations, purpose)]
    return np.stack(drawn) if drawn else np.zeros((0, *shape), np.float32)
