"""What comes back from rows: a chunk of steps each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from manyarms.workers.wire import encode


@dataclass(frozen=True)
class EpisodeId:
    """What an episode is: all of its randomness follows from this."""

    task: str | None = None
    seed: int | None = None
    init_state: Any = None
    """An index into the task's fixed initial states, a saved state, or what else a simulator knows."""
    index: int = 0
    """Tells repetitions of the same start apart."""

    @classmethod
    def of(cls, known: Any) -> EpisodeId:
        """Return an identity that somebody else has written or sent; what is none is a ValueError."""
        words = [each.name for each in fields(cls)]
        if not isinstance(known, dict) or any(name not in words for name in known):
            raise ValueError(f"must be a dict of {', '.join(words)}")
        found = cls(**known)
        counts = (0 if found.seed is None else found.seed, found.index)
        if not isinstance(found.task, str | None) or not all(map(is_count, counts)):
            raise ValueError(f"needs a name as task and whole numbers as seed and index, not {known!r:.200}")
        return found

    @cached_property
    def key(self) -> bytes:
        """A fingerprint, the same in every process: what randomness is keyed by."""
        words = encode({"task": self.task, "seed": self.seed, "init_state": self.init_state, "index": self.index})
        return hashlib.blake2b(words, digest_size=16).digest()


def is_count(value: Any) -> bool:
    """Tell whether a value is a whole number, 0 or more."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 0


@dataclass(frozen=True)
class ChunkTiming:
    """Where one call's time went, in seconds; the worker's part is that of the slowest, which everyone waited for."""

    build: float
    """Main side: from the last result to this call, where actions are made."""
    env_call: float
    """Main side: inside the call."""
    exec: float
    """Slowest worker: from doorbell to bell."""
    sim: float
    obs: float
    vid: float
    toggle: float
    cpu: float
    """Processor time the slowest worker spent."""
    row: int
    """The row that was slowest."""

    @property
    def other(self) -> float:
        """What the worker did besides simulating, observing, filming and toggling cameras."""
        return max(0.0, self.exec - self.sim - self.obs - self.vid - self.toggle)

    @property
    def ipc(self) -> float:
        """What the hand-over cost: the call less the work."""
        return max(0.0, self.env_call - self.exec)


@dataclass(frozen=True)
class Chunk:
    """The result of up to K actions in each of R rows. A row stops at its first end."""

    rows: np.ndarray  # [R]
    observations: Any
    """After the last action: arrays [R, …] in the structure of the observation space."""
    rewards: np.ndarray  # [R, K], 0 after the end
    num_steps: np.ndarray  # [R]
    terminated: np.ndarray  # [R]
    truncated: np.ndarray  # [R]
    aborted: np.ndarray  # [R]
    success: np.ndarray  # [R], in any step of the chunk
    infos: dict[str, Any]
    """Of the last step, as Gymnasium batches them."""
    frames: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """With `render_every`: for each camera field, one array [F, H, W, C] a row, of the steps inside the chunk."""
    timing: ChunkTiming | None = None

    @property
    def ended(self) -> np.ndarray:
        """Rows whose episode is over, however it ended."""
        return self.terminated | self.truncated | self.aborted

    def __len__(self) -> int:
        return len(self.rows)
