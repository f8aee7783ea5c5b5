"""Driver of a Ray run: moves episodes from rollout workers to learners and weights back, and restarts what dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyarms.errors import ConfigError, ManyarmsError
from manyarms.learning.folder import RunFolder
from manyarms.learning.interrupts import Interrupts
from manyarms.learning.settings import Settings
from manyarms.placement.cluster import RayCluster
from manyarms.placement.faults import LearnersLost, lost_on_its_way, signs_of_loss, unwrapped
from manyarms.placement.learner_group import EpisodesLost, LearnerGroup
from manyarms.placement.plan import Plan
from manyarms.placement.playing import PlayedBatch, Playing
from manyarms.placement.roles import Facts
from manyarms.placement.rollouts import Rollouts
from manyarms.placement.waiting import Waiting
from manyarms.reporting.results import EpisodeResult


@dataclass(frozen=True)
class _Judging:
    """What was asked of a process, in which life of it."""

    rank: int
    life: int
    weights: Sequence[Any]
    ref: Any


class RayBackend:
    """Processes all over a cluster: rollout workers play, learners learn, and this says which does what."""

    def __init__(
        self, settings: Settings, plan: Plan, cluster: RayCluster, folder: RunFolder, interrupts: Interrupts
    ) -> None:
        config = settings.config
        self._config, self._plan, self._folder, self._cluster = config, plan, folder, cluster
        self._waiting = Waiting(interrupts, cluster.check_at_times)
        path = folder.path.absolute()
        self._rollouts = Rollouts(cluster, plan, config, path, self._waiting)
        self._learners = LearnerGroup(cluster, plan, config, path / "checkpoints", self._waiting)
        self._broadcasts = _broadcasts(plan, settings)
        self._lives_in_group: list[int] = []
        """Of each rollout process, which life of it is in the group of the broadcast."""
        self._facts: Facts | None = None
        self._weights: Sequence[Any] = ()
        """A reference to the newest, or none where they were broadcast."""
        self._weights_lost = 0
        """How often, since anything was learnt."""
        self.iteration = 0

    @property
    def tasks(self) -> list[str | None]:
        assert self._facts is not None
        return self._facts.tasks

    def begin(self, start: Path | None, say: Callable[[str], None]) -> None:
        """Start the processes, or those of them that are gone; get first weights, or go on from a checkpoint."""
        self._rollouts.say = self._say = say
        with self._waiting.stoppable():
            self._begin(start)

    def _begin(self, start: Path | None) -> None:
        self._waiting.others = list
        self._learners.start()
        if self._facts is None:
            self._facts = self._rollouts.start()
        first = None
        if start is None and (self._config.runner.ckpt_path or self._config.cloning.wanted):
            self._say("warm start: rollout 0 gets the first weights")
            first = self._waiting.all([self._rollouts.call(0, "first_weights")], "rollout 0")[0]
        standing = self._learners.begin(self._facts, start, first)
        self.iteration = standing.iteration
        self._playing = Playing(self._rollouts, self._config, self.tasks, standing, self._fetch)
        self._waiting.others, self._waiting.heard = lambda: self._playing.pending, self._playing.heard
        self._lives_in_group = []
        self._publish()

    # -- an update ----------------------------------------------------------------------------------------------------

    def update(self) -> dict[str, float]:
        """Have an update's episodes played, and learn from them; meanwhile those of the next ones may be played."""
        began = time.perf_counter()
        self._playing.allow(self.iteration, self._weights)
        batch = self._playing.batch(self.iteration)
        self._wait_for(batch)
        between = time.perf_counter()
        metrics = self._learn(batch)
        learnt = time.perf_counter()
        self._playing.learnt(self.iteration)
        self.iteration += 1
        self._rollouts.all_is_well()
        self._weights_lost = 0
        self._publish()
        ended = time.perf_counter()
        return {
            **metrics,
            **_times(batch, len(self._plan.rollout)),
            "time/actor": learnt - between,
            "time/sync": ended - learnt,
            "time/wait": between - began,
            **self._staleness(batch),
            "throughput/env_steps_per_s": batch.env_steps / (ended - began),
        }

    def _staleness(self, batch: PlayedBatch) -> dict[str, float]:
        """Return how far behind the weights were that played, where they may be."""
        if not self._config.algorithm.max_staleness:
            return {}
        return {"rollout/staleness": float(batch.update - min(report.version for report in batch.reports))}

    def _wait_for(self, batch: PlayedBatch) -> None:
        """Wait until all of it is played; a signal ends it, for what was learnt is whole and written down."""
        with self._waiting.stoppable():
            self._waiting.until(lambda: batch.ready)

    def _learn(self, batch: PlayedBatch) -> dict[str, float]:
        while True:
            try:
                return self._learners.learn(batch.shares(len(self._plan.actor)))
            except EpisodesLost as lost:
                lives = list(self._rollouts.lives)
                for rank in self._rollouts.lost():
                    self._playing.replace(rank, lives[rank], lost)
                if not self._playing.replay_lost(batch):
                    raise
                self._say(f"{lost.what}: they are played again")
                self._wait_for(batch)

    # -- weights ------------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Give the newest weights to those who act, or lay them where they find them."""
        self._weights = () if self._broadcasts and self._broadcast() else [self._learners.weights()[1]]

    def _broadcast(self) -> bool:
        """Tell whether all who act have got the newest weights."""
        from ray.exceptions import RayError

        try:
            if self._lives_in_group != self._rollouts.lives:
                self._learners.meet(self._rollouts)
                self._lives_in_group = list(self._rollouts.lives)
            self._learners.broadcast(self._rollouts)
        except (RayError, ManyarmsError) as error:
            # Who died is found out by the next who asks it; until then there is the other way.
            self._say(f"weights go through the object store this time: {str(error).splitlines()[0]}")
            self._lives_in_group = []
            return False
        return True

    def _fetch(self, version: int, lost: Sequence[Any] | None = None) -> Sequence[Any]:
        """Return a reference to a version of the weights, other than one that is `lost`."""
        if version == self.iteration and self._weights and self._weights is not lost:
            return self._weights
        self._weights_lost += lost is not None
        found, ref = self._learners.weights()
        if found != version or self._weights_lost > self._config.cluster.max_restarts:
            raise LearnersLost(
                f"version {version} of the weights was lost before all who play had it",
                why=f"those who learn hold version {found}" if found != version else "it was lost again and again",
            )
        self._weights = [ref]
        return self._weights

    # -- evaluating, saving --------------------------------------------------------------------------------------------

    def evaluate(self) -> list[EpisodeResult]:
        """Have the held-out episodes played, each process its share."""
        asked = [self._ask_to_judge(rank, self._weights) for rank in range(len(self._rollouts))]
        # Before anything is learnt nothing is lost when it ends here; later an update waits to be written down.
        with self._waiting.stoppable(when=not self.iteration):
            return [result for call in asked for result in self._judged(call)]

    def _ask_to_judge(self, rank: int, weights: Sequence[Any]) -> _Judging:
        ref = self._rollouts.judge(rank, self.iteration, weights, self.iteration)
        return _Judging(rank, self._rollouts.lives[rank], weights, ref)

    def _judged(self, asked: _Judging) -> list[EpisodeResult]:
        """Return what a process found; where it died, what the next one found."""
        import ray
        from ray.exceptions import RayTaskError

        while True:
            lost = None
            self._waiting.ready([asked.ref])
            try:
                return ray.get(asked.ref)
            except RayTaskError as error:
                if not lost_on_its_way(error):
                    raise unwrapped(error, f"rollout {asked.rank}") from None
                lost = asked.weights
            except signs_of_loss() as error:
                self._playing.replace(asked.rank, asked.life, error)
            asked = self._ask_to_judge(asked.rank, self._fetch(self.iteration, lost))

    def save(self) -> None:
        """Have the first learner write a checkpoint, which must be seen from here."""
        self._learners.save()
        written = self._folder.checkpoints / f"global_step_{self.iteration}"
        if not written.is_dir():
            raise ConfigError(
                f"actor 0, on node {self._plan.actor[0].node}, has written {written}, which cannot be seen from here",
                do="put runner.logger.log_path on a file system that all nodes share",
            )

    def recover(self, lost: LearnersLost) -> None:
        """Say why the learners are gone, and find room for others."""
        self._say(f"{lost}\nthose who learn are started again")
        for said in self._cluster.mend():
            self._say(said)

    def close(self) -> None:
        """End all processes."""
        self._learners.close()
        self._rollouts.close()


def _broadcasts(plan: Plan, settings: Settings) -> bool:
    """Tell whether weights are broadcast: where it was asked for, or where all are GPUs of their own in one node."""
    config = settings.config
    wanted = config.cluster.weight_sync
    one_node = len({process.node for process in (*plan.rollout, *plan.actor)}) == 1
    kinds = {process.kind for process in (*plan.rollout, *plan.actor)}
    apart = not any(
        process.beside(other)
        for process in plan.rollout
        for other in (*plan.actor, *plan.rollout)
        if other is not process
    )
    if wanted == "broadcast":
        if config.algorithm.max_staleness:
            raise ConfigError(
                "cluster.weight_sync: broadcast has all processes meet, but with max_staleness nobody waits",
                do="weight_sync: object_store",
            )
        if len(kinds) > 1 or ("gpu" in kinds and not apart):
            raise ConfigError(
                "cluster.weight_sync: broadcast needs a device of its own for every process, all of one kind",
                do="weight_sync: object_store",
            )
        return True
    return wanted == "auto" and one_node and kinds == {"gpu"} and apart and not config.algorithm.max_staleness


def _times(batch: PlayedBatch, processes: int) -> dict[str, float]:
    """Return where the time of playing went, as a mean over the processes that play."""
    seconds = sum(report.seconds for report in batch.reports)
    policy = sum(report.policy_seconds for report in batch.reports)
    overlap = sum(report.overlap_seconds for report in batch.reports)
    return {
        "time/env": (seconds - policy) / processes,
        "time/rollout": policy / processes,
        "throughput/rollout_env_steps_per_s": batch.env_steps * processes / seconds,
        "throughput/overlap": overlap / policy if policy else 0.0,
    }
