"""A learner process: one of the ranks that learn together, with its share of every update's episodes."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from manyarms.learning import checkpoint
from manyarms.learning.assembly import learner_for, policy_for, trainer_config
from manyarms.learning.batch import EpisodeSummary
from manyarms.learning.config import TrainConfig
from manyarms.learning.course import Course, Shard
from manyarms.learning.parallel import give_weights
from manyarms.learning.ranks import Ranks, joined
from manyarms.learning.training import load_reference
from manyarms.placement.faults import Whereabouts, whereabouts
from manyarms.placement.offload import Room
from manyarms.placement.roles import Facts
from manyarms.placement.seats import Seat
from manyarms.placement.weights import Broadcast, Weights, pack


@dataclass(frozen=True)
class Standing:
    """Where training stands."""

    iteration: int
    position: int


@dataclass(frozen=True)
class Share:
    """What one rank learns an update from; episodes are references into the object store."""

    places: list[int]
    episodes: list[Any]
    starts: int
    summaries: list[EpisodeSummary]
    rejected: int
    staleness: int
    filler: list[Any]
    """One episode, where there is none of its own to learn from."""


class LearnerRole:
    """Learns with the others; the first rank writes checkpoints and gives weights away."""

    def __init__(self, config: TrainConfig, seat: Seat, checkpoints: Path) -> None:
        self._config, self._seat, self._checkpoints = config, seat, checkpoints
        self._stack = ExitStack()
        self._ranks = Ranks(seat.rank, seat.world, seat.device)
        self._held: Shard | None = None
        self._broadcast: Broadcast | None = None

    def address(self) -> str:
        """Return where others can meet at this process."""
        import ray

        with socket.socket() as found:
            found.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{found.getsockname()[1]}"

    def join(self, address: str) -> None:
        """Meet the other ranks."""
        host, _, port = address.rpartition(":")
        os.environ.update(
            RANK=str(self._seat.rank), WORLD_SIZE=str(self._seat.world), MASTER_ADDR=host, MASTER_PORT=port
        )
        self._ranks = self._stack.enter_context(joined(self._seat.device))

    def begin(self, facts: Facts, start: Path | None, first: Weights | None) -> Standing:
        """Get first weights, or go on from a checkpoint."""
        config, reference, recipe = self._config, None, facts.recipe
        self._seat.enter()
        torch.set_num_threads(config.actor.threads)
        self._recipe = replace(recipe, options={**recipe.options, "device": self._seat.device})
        batched = policy_for(self._recipe, facts.spec, config)
        policy = batched.policy
        if first is not None:
            give_weights(policy, first.tensors())
        if config.algorithm.kl_beta:
            reference = policy_for(self._recipe, facts.spec, config).policy
            reference.load_state_dict(policy.state_dict())
        learner = learner_for(config, batched, self._ranks, reference)
        time_limit = config.train.max_episode_steps or facts.spec.horizon or math.inf
        self._course = Course(learner, facts.tasks, trainer_config(config), time_limit)
        if start is not None:
            checkpoint.load(start, self._course)
            load_reference(self._checkpoints, reference)
        held = [policy] if reference is None else [policy, reference]
        self._room = Room(held, self._seat.device, shared=self._seat.offloads, optimizer=learner.optimizer)
        return Standing(self._course.iteration, self._course.position)

    # -- learning -----------------------------------------------------------------------------------------------------

    def hold(self, share: Share) -> None:
        """Fetch this rank's episodes; nothing is learnt before all ranks have theirs."""
        import ray

        found = ray.get(share.episodes)
        filler: Any = ray.get(share.filler[0]) if share.filler else None
        placed = list(zip(share.places, found, strict=True))
        self._held = Shard(placed, share.starts, share.summaries, share.rejected, filler, share.staleness)

    def learn(self) -> dict[str, float]:
        """Make an update of what is held."""
        assert self._held is not None
        held, self._held = self._held, None
        with self._room.entered():
            return self._course.learn(held)

    def weights(self) -> tuple[int, Weights | None]:
        """Return the version and, on the first rank, the weights as they stand; every rank has to be asked."""
        with self._room.entered():
            state, version = self._course.learner.parallel.state(), self._course.iteration
            return version, pack(state, version) if self._ranks.first else None

    def meet(self, address: str, others: int, seconds: float) -> None:
        """Open the group in which the first rank broadcasts new weights to `others`."""
        self._broadcast = None
        on_gpu = self._seat.device != "cpu"
        self._broadcast = Broadcast(address, 0, others + 1, on_gpu=on_gpu, seconds=seconds)

    def send(self) -> None:
        """Broadcast the weights as they stand; every rank has to be asked."""
        with self._room.entered():
            state = self._course.learner.parallel.state()
            if self._broadcast is not None:
                self._broadcast.send(state, self._course.iteration)

    def save(self) -> None:
        """Write a checkpoint; every rank has to be asked."""
        with self._room.entered():
            checkpoint.save(self._checkpoints, self._course, self._recipe)

    def whereabouts(self) -> Whereabouts:
        return whereabouts(self._seat.name)


def shares_of(places: Sequence[int], count: int, group_size: int) -> list[range]:
    """Deal episodes to ranks by their place alone: whole groups, as even as can be."""
    groups = len(places) // group_size
    bounds = [groups * rank // count * group_size for rank in range(count + 1)]
    return [range(bounds[rank], bounds[rank + 1]) for rank in range(count)]
