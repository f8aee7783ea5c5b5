"""The rollout processes as the driver sees them: started, spoken to, and started again when they die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from manyarms.learning.config import TrainConfig
from manyarms.placement.cluster import RayCluster
from manyarms.placement.faults import ProcessLost, Whereabouts, cause_of, signs_of_loss
from manyarms.placement.plan import Plan
from manyarms.placement.roles import Facts, RolloutRole
from manyarms.placement.seats import seat_of
from manyarms.placement.waiting import Waiting
from manyarms.vector import EpisodeId


class Rollouts:
    """All rollout processes."""

    def __init__(self, cluster: RayCluster, plan: Plan, config: TrainConfig, folder: Path, waiting: Waiting) -> None:
        self._cluster, self._plan, self._config, self._folder = cluster, plan, config, folder
        self._waiting = waiting
        self.say: Callable[[str], None] = print
        self._actors: list[Any] = []
        self._where: list[Whereabouts] = []
        self.lives: list[int] = []
        """How often each was started."""
        self._deaths: Counter[int] = Counter()
        """Of each, since anything was learnt. A node that is lost takes many with it, each of them once."""

    def __len__(self) -> int:
        return len(self._plan.rollout)

    def start(self) -> Facts:
        """Start all, side by side; return what the first tells of its simulator."""
        count = len(self)
        self._actors = [self._started(rank) for rank in range(count)]
        self._where = self._waiting.all([actor.whereabouts.remote() for actor in self._actors], "rollout")
        self.lives = [1] * count
        return self._waiting.all([actor.open.remote() for actor in self._actors], "rollout")[0]

    def _started(self, rank: int) -> Any:
        import ray

        process = self._plan.rollout[rank]
        overlapping = self._config.algorithm.max_staleness > 0
        role = ray.remote(RolloutRole).options(**self._cluster.options(process))  # type: ignore[attr-defined]
        return role.remote(self._config, seat_of(process, self._plan, overlapping=overlapping), self._folder)

    def restart(self, rank: int, error: BaseException) -> None:
        """Say why a process died, and start another in its place."""
        cause = self.cause(rank, error)
        self._deaths[rank] += 1
        if self._deaths[rank] > self._config.cluster.max_restarts:
            raise cause
        self.say(str(cause))
        for said in self._cluster.mend():
            self.say(said)
        self._end(self._actors[rank])  # where only its node could not be reached, it must not come back
        self._actors[rank] = actor = self._started(rank)
        self.lives[rank] += 1
        life = self.lives[rank]
        try:
            answers = self._waiting.all([actor.whereabouts.remote(), actor.open.remote()], f"rollout {rank}")
        except signs_of_loss() as again:
            if self.lives[rank] == life:  # or whoever had given it something to do has heard of it first
                self.restart(rank, again)
            return
        self._where[rank] = answers[0]
        self.say(f"rollout {rank} is started again; its episodes are played again")

    def cause(self, rank: int, error: BaseException) -> ProcessLost:
        where = self._where[rank]
        return cause_of(error, where, node_lost=self._cluster.has_lost(where.node))

    def lost(self) -> list[int]:
        """Return which of them were on nodes that are gone, also where nobody has spoken to them since."""
        living = self._cluster.living()
        return [rank for rank, where in enumerate(self._where) if where.node not in living]

    def all_is_well(self) -> None:
        """Hear that something was learnt: deaths are counted anew."""
        self._deaths.clear()

    def play(
        self, rank: int, version: int, weights: Sequence[Any], episodes: Sequence[EpisodeId], film: int | None
    ) -> list[Any]:
        """Have a process play; return references to its report and to each episode. They are the driver's own.

        So what was played outlives the process that played it.
        """
        method = self._actors[rank].play.options(num_returns=1 + len(episodes))
        return method.remote(version, weights, episodes, film)

    def judge(self, rank: int, version: int, weights: Sequence[Any], step: int) -> Any:
        """Have a process play its share of the held-out episodes."""
        return self._actors[rank].judge.remote(version, weights, step)

    def call(self, rank: int, method: str, *arguments: Any) -> Any:
        return getattr(self._actors[rank], method).remote(*arguments)

    def close(self) -> None:
        """End all, simulators first."""
        import ray

        closing = [actor.close.remote() for actor in self._actors]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=5.0)
        for actor in self._actors:
            self._end(actor)
        self._actors = []

    def _end(self, actor: Any) -> None:
        import ray

        ray.kill(actor)
