"""The learner processes as the driver sees them: one group, which lives and dies as a whole."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manyarms.errors import ManyarmsError
from manyarms.learning.config import TrainConfig
from manyarms.placement.cluster import RayCluster
from manyarms.placement.faults import (
    LearnersLost,
    ProcessLost,
    Whereabouts,
    cause_of,
    lost_on_its_way,
    never_began,
    signs_of_loss,
    unwrapped,
)
from manyarms.placement.learners import LearnerRole, Share, Standing
from manyarms.placement.plan import Plan
from manyarms.placement.roles import Facts
from manyarms.placement.rollouts import Rollouts
from manyarms.placement.seats import seat_of
from manyarms.placement.waiting import Waiting
from manyarms.placement.weights import Weights

#: How long after a rank has failed the death of another may still become known.
_DOUBT_SECONDS = 60.0
#: How long all of them have to answer until nobody is thought dead.
_CALM_SECONDS = 2.0


class EpisodesLost(ProcessLost):
    """Episodes whose node is gone before they were learnt from."""


class LearnerGroup:
    """All learner processes."""

    def __init__(
        self, cluster: RayCluster, plan: Plan, config: TrainConfig, checkpoints: Path, waiting: Waiting
    ) -> None:
        self._cluster, self._plan, self._config, self._checkpoints = cluster, plan, config, checkpoints
        self._waiting = waiting
        self._actors: list[Any] = []
        self._where: list[Whereabouts] = []

    def start(self) -> None:
        """Have all of them started, and do not wait for it."""
        import ray

        self.close()
        self._where = []
        overlapping = self._config.algorithm.max_staleness > 0
        for process in self._plan.actor:
            seat = seat_of(process, self._plan, overlapping=overlapping)
            role = ray.remote(LearnerRole).options(**self._cluster.options(process))  # type: ignore[attr-defined]
            self._actors.append(role.remote(self._config, seat, self._checkpoints))

    def begin(self, facts: Facts, start: Path | None, first: Weights | None) -> Standing:
        """Have them meet, and take up training from a checkpoint or from its first weights."""
        self._where = self._ask("whereabouts")
        self._ask("join", self._ask_first("address"))
        return self._ask("begin", facts, start.absolute() if start is not None else None, first)[0]

    def learn(self, shares: Sequence[Share]) -> dict[str, float]:
        """Give every rank its episodes; once all have theirs, learn."""
        from ray.exceptions import RayTaskError

        refs = [actor.hold.remote(share) for actor, share in zip(self._actors, shares, strict=True)]
        try:
            self._answers(refs)
        except RayTaskError as error:
            if lost_on_its_way(error):
                raise EpisodesLost("episodes were lost with their node") from None
            raise unwrapped(error, "actor") from None
        return self._ask("learn")[0]

    def weights(self) -> tuple[int, Any]:
        """Return the version of the weights as they stand, and a reference: they themselves do not come here."""
        asked = [actor.weights.options(num_returns=2).remote() for actor in self._actors]
        version, *_ = self._told([version for version, _ in asked])
        return version, asked[0][1]

    def save(self) -> None:
        self._ask("save")

    # -- broadcasts ---------------------------------------------------------------------------------------------------

    def meet(self, rollouts: Rollouts) -> None:
        """Open the group in which weights are broadcast."""
        seconds = self._config.cluster.wait_seconds
        address = self._ask_first("address")
        refs = [self._actors[0].meet.remote(address, len(rollouts), seconds)]
        refs += [rollouts.call(rank, "join", address, seconds) for rank in range(len(rollouts))]
        self._waiting.all(refs, "the group for weights")

    def broadcast(self, rollouts: Rollouts) -> None:
        """Have the first rank give its weights to all who act."""
        refs = [actor.send.remote() for actor in self._actors]
        refs += [rollouts.call(rank, "receive") for rank in range(len(rollouts))]
        self._waiting.all(refs, "the broadcast of weights")

    # -- asking -------------------------------------------------------------------------------------------------------

    def _ask_first(self, method: str, *arguments: Any) -> Any:
        return self._told([getattr(self._actors[0], method).remote(*arguments)])[0]

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        """Ask all ranks the same; return their answers."""
        return self._told([getattr(actor, method).remote(*arguments) for actor in self._actors])

    def _told(self, refs: Sequence[Any]) -> list[Any]:
        """Return all answers; an error of ours comes out as it went in."""
        from ray.exceptions import RayTaskError

        try:
            return self._answers(refs)
        except RayTaskError as error:
            raise unwrapped(error, "actor") from None

    def _answers(self, refs: Sequence[Any]) -> list[Any]:
        """Wait for all; a rank that died is the cause of whatever the others say."""
        import ray
        from ray.exceptions import RayTaskError

        answers: dict[Any, Any] = {}
        pending = list(refs)
        while pending:
            self._waiting.until_one(pending)
            done, pending = ray.wait(pending, num_returns=1, fetch_local=False)
            try:
                # Kept from here on: asked for again, it might have been lost with its node meanwhile.
                answers[done[0]] = ray.get(done[0])
            except RayTaskError as error:
                if isinstance(error.cause, ManyarmsError):
                    raise
                # Those who wait for a rank that is gone find out in their own way, and sometimes first.
                dead = self._dead()
                if dead is not None:
                    raise self._lost(*dead) from None
                raise
            except signs_of_loss() as error:
                raise self._lost(list(refs).index(done[0]), error) from None
        return [answers[ref] for ref in refs]

    def _dead(self) -> tuple[int, BaseException] | None:
        """Return a rank that is gone, and what Ray says of it; what it did to others may be known long before."""
        from ray.exceptions import ActorUnavailableError, RayActorError

        deadline, calm = time.monotonic() + _DOUBT_SECONDS, False
        while True:
            unwell = self._unwell()
            for rank, error in unwell.items():
                known = isinstance(error, RayActorError) and not isinstance(error, ActorUnavailableError)
                if known or self._is_lost_with_its_node(rank):
                    return rank, error
            if not unwell and calm:
                return None
            calm = not unwell
            if time.monotonic() > deadline:
                # One that is busy is not dead; one that cannot be reached for so long is.
                return next((pair for pair in unwell.items() if isinstance(pair[1], RayActorError)), None)
            time.sleep(_CALM_SECONDS)

    def _unwell(self) -> dict[int, BaseException]:
        """Return the ranks that do not answer, and what Ray says of each."""
        import ray
        from ray.exceptions import RayActorError

        asked = [actor.__ray_ready__.remote() for actor in self._actors]
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=_CALM_SECONDS)
        found: dict[int, BaseException] = {}
        for rank, ref in enumerate(asked):
            if ref not in ready:
                found[rank] = TimeoutError("it does not answer")
                continue
            try:
                ray.get(ref)
            except RayActorError as error:
                found[rank] = error
        return found

    def _is_lost_with_its_node(self, rank: int) -> bool:
        return bool(self._where) and self._cluster.has_lost(self._where[rank].node)

    def _lost(self, rank: int, error: BaseException) -> LearnersLost:
        if self._where:
            cause = cause_of(error, self._where[rank], node_lost=self._is_lost_with_its_node(rank))
        else:
            cause = never_began(error, f"actor {rank}")
        return LearnersLost(cause.what, why=cause.why, do=cause.do, log=cause.log)

    def close(self) -> None:
        import ray

        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
