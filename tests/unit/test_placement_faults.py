"""What the driver of a placed run does about deaths and signals, without a Ray: answers come when a test says so."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clusters import placed
from manyarms.errors import ConfigError, LearningError, StartError
from manyarms.learning.batch import EpisodeSummary
from manyarms.learning.config import ClusterSettings
from manyarms.learning.interrupts import Interrupts, Stopped
from manyarms.learning.settings import Settings, from_mapping
from manyarms.placement import cluster as clusters
from manyarms.placement import driver, learner_group, training
from manyarms.placement.cluster import RayCluster, RayNode
from manyarms.placement.driver import RayBackend
from manyarms.placement.faults import LearnersLost, ProcessLost, RayLost, Whereabouts
from manyarms.placement.learner_group import LearnerGroup
from manyarms.placement.learners import Standing
from manyarms.placement.plan import Plan
from manyarms.placement.roles import Facts, Report
from manyarms.placement.rollouts import Rollouts
from manyarms.placement.topology import Cluster, Node
from manyarms.placement.waiting import Waiting

ray = pytest.importorskip("ray")
exceptions = pytest.importorskip("ray.exceptions")


class Ref:
    """An answer that is there, or is not there yet; an error is raised."""

    def __init__(self, answer: Any = None, *, there: bool = True) -> None:
        self.answer, self.there = answer, there


class StandIn:
    """Waits and gets as Ray does; nobody sleeps, but `passing` is called where somebody would."""

    def __init__(self) -> None:
        self.passing: Callable[[], None] = lambda: pytest.fail("it would wait for ever")
        self.waits: list[list[Ref]] = []
        """What was waited for, with patience."""

    def wait(self, refs: list[Ref], num_returns: int = 1, timeout: float | None = None, **_: Any) -> tuple[Any, Any]:
        if timeout != 0:
            self.waits.append(list(refs))
        if timeout != 0 and not any(ref.there for ref in refs):
            self.passing()
        ready = [ref for ref in refs if ref.there][:num_returns]
        return ready, [ref for ref in refs if ref not in ready]

    def get(self, refs: Any) -> Any:
        if isinstance(refs, list):
            return [self.get(ref) for ref in refs]
        if isinstance(refs.answer, BaseException):
            raise refs.answer
        return refs.answer


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn()
    monkeypatch.setattr(ray, "wait", found.wait)
    monkeypatch.setattr(ray, "get", found.get)
    monkeypatch.setattr(ray, "kill", lambda actor: None)
    return found


def failed_with(cause: BaseException) -> Exception:
    """Return what Ray raises for a task that raised something."""
    return exceptions.RayTaskError("play", f"a traceback\n{cause}", cause).as_instanceof_cause()


LOST = exceptions.ObjectLostError("a ref", None, "")


class Actor:
    """Answers every method in the same way."""

    def __init__(self, answer: Callable[[str], Ref]) -> None:
        self._answer = answer

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._answer(method))


def where(rank: int, node: str = "n", role: str = "rollout") -> Whereabouts:
    return Whereabouts(f"{role} {rank}", 1, node, "a", "")


def settings_of(tmp_path: Path, **algorithm: Any) -> Settings:
    return from_mapping(
        {
            "runner": {"max_steps": 6, "logger": {"log_path": str(tmp_path), "logger_backends": []}},
            "algorithm": {"episodes_per_step": 8, **algorithm},
            "env": {"train": {"simulator": "standins:Walker", "total_num_envs": 4, "max_episode_steps": 4}},
            "cluster": {"component_placement": {"env,rollout": "0-1", "actor": 2}},
        },
        "the test",
    )


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_nobody_is_waited_for_who_has_answered(standin: StandIn) -> None:
    early, late = Ref(), Ref(there=False)
    standin.passing = lambda: setattr(late, "there", True)
    Waiting(Interrupts()).ready([early, late])
    assert standin.waits == [[late]], "anything else returns at once, again and again"


def test_a_signal_ends_waiting_only_where_nothing_is_lost_by_it(standin: StandIn) -> None:
    interrupts = Interrupts()
    waiting = Waiting(interrupts)
    interrupts.stop = "SIGINT"
    late = Ref(3, there=False)
    with pytest.raises(Stopped), waiting.stoppable():
        waiting.all([late], "somebody")
    standin.passing = lambda: setattr(late, "there", True)
    assert waiting.all([late], "somebody") == [3]


# -- rollout processes ------------------------------------------------------------------------------------------------


@pytest.fixture
def rollouts(standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rollouts:
    """Eight on a node that is gone; others are started elsewhere at once."""
    cluster: Any = SimpleNamespace(has_lost=lambda node: node == "n", mend=list, living=lambda: {"other"})
    config = settings_of(tmp_path).config
    found = Rollouts(cluster, cast(Any, SimpleNamespace(rollout=[None] * 8)), config, tmp_path, Waiting(Interrupts()))
    monkeypatch.setattr(found, "_started", lambda rank: Actor(lambda method: Ref(where(rank, "other"))))
    found._actors = [Actor(lambda method: Ref())] * 8
    found.lives, found._where = [1] * 8, [where(rank) for rank in range(8)]
    found.say = lambda line: None
    return found


def test_a_node_with_many_rollout_processes_can_be_lost(rollouts: Rollouts) -> None:
    assert rollouts.lost() == list(range(8))
    for rank in range(8):
        rollouts.restart(rank, exceptions.ActorDiedError())
    assert rollouts.lives == [2] * 8
    assert rollouts.lost() == []


def test_one_that_dies_again_and_again_is_started_so_often_and_no_more(rollouts: Rollouts) -> None:
    for _ in range(3):
        rollouts.restart(5, exceptions.ActorDiedError())
    with pytest.raises(ProcessLost, match="rollout 5"):
        rollouts.restart(5, exceptions.ActorDiedError())
    rollouts.all_is_well()
    rollouts.restart(5, exceptions.ActorDiedError())


def test_one_that_dies_while_it_starts_is_replaced_once_whoever_hears_of_it(
    rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def started(rank: int) -> Actor:
        begun.append(rank)
        if len(begun) > 1:
            return Actor(lambda method: Ref(where(rank, "other")))

        def answer(method: str) -> Ref:
            if method == "open":
                # It was given something to do already, and who gave it hears of its death before we do.
                rollouts.restart(rank, exceptions.ActorDiedError())
            return Ref(exceptions.ActorDiedError())

        return Actor(answer)

    monkeypatch.setattr(rollouts, "_started", started)
    rollouts.restart(0, exceptions.ActorDiedError())
    assert begun == [0, 0]
    assert rollouts.lives[0] == 3


# -- learners ---------------------------------------------------------------------------------------------------------


class LearnerActor:
    """A rank; what Ray says of it when asked whether it is there comes from a list, the last again and again."""

    def __init__(self, answer: Any, *there: Any) -> None:
        self._answer, self._there = answer, list(there)

    def __getattr__(self, method: str) -> Any:
        if method == "__ray_ready__":
            said = self._there.pop(0) if len(self._there) > 1 else self._there[0]
            return SimpleNamespace(remote=lambda: Ref(said, there=said != "silence"))
        return SimpleNamespace(remote=lambda *arguments: Ref(self._answer))


GLOO = failed_with(RuntimeError("Connection closed by peer"))


@pytest.fixture
def learners(standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LearnerGroup:
    """Two of them, of which the first finds that the other does not answer any more."""
    monkeypatch.setattr(learner_group, "_CALM_SECONDS", 0.001)
    standin.passing = lambda: None
    lost: set[str] = set()
    cluster: Any = SimpleNamespace(has_lost=lambda node: node in lost, lost_nodes=lost)
    found = LearnerGroup(cluster, cast(Any, None), settings_of(tmp_path).config, tmp_path, Waiting(Interrupts()))
    found._where = [where(rank, f"n{rank}", "actor") for rank in range(2)]
    return found


@pytest.mark.parametrize(
    "there",
    [
        [True, exceptions.ActorDiedError()],
        ["silence", "silence", exceptions.ActorDiedError()],
        [exceptions.ActorUnavailableError("gone?", b"1" * 16), exceptions.ActorDiedError()],
    ],
    ids=["it seems to live", "it is silent", "it cannot be reached"],
)
def test_a_death_that_becomes_known_late_is_the_cause_of_what_others_say(
    there: list[Any], learners: LearnerGroup
) -> None:
    learners._actors = [LearnerActor(GLOO, True), LearnerActor(None, *there)]
    with pytest.raises(LearnersLost, match="actor 1"):
        learners.save()


def test_a_rank_is_dead_whose_node_is_gone(learners: LearnerGroup) -> None:
    cast(Any, learners._cluster).lost_nodes.add("n1")
    learners._actors = [LearnerActor(GLOO, True), LearnerActor(None, "silence")]
    with pytest.raises(LearnersLost, match="actor 1"):
        learners.save()


def test_a_rank_that_cannot_be_reached_for_long_is_dead(
    learners: LearnerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_group, "_DOUBT_SECONDS", 0.01)
    learners._actors = [LearnerActor(GLOO, True), LearnerActor(None, exceptions.ActorUnavailableError("", b"1" * 16))]
    with pytest.raises(LearnersLost, match="actor 1"):
        learners.save()


@pytest.mark.parametrize("other", [True, "silence"], ids=["it answers", "it is busy"])
def test_an_error_where_nobody_died_is_told_as_it_is(
    other: Any, learners: LearnerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_group, "_DOUBT_SECONDS", 0.01)
    learners._actors = [LearnerActor(failed_with(ValueError("no such thing")), True), LearnerActor(None, other)]
    with pytest.raises(LearningError, match="no such thing"):
        learners.save()
    ours = failed_with(ConfigError("a word is missing"))
    learners._actors = [LearnerActor(ours, exceptions.ActorDiedError()), LearnerActor(None, other)]
    with pytest.raises(ConfigError, match="a word is missing"):
        learners.save()


def test_a_learner_that_dies_while_it_is_started_is_lost_like_any(learners: LearnerGroup) -> None:
    dead = LearnerActor(exceptions.ActorDiedError(), exceptions.ActorDiedError())
    learners._actors, learners._where = [LearnerActor(where(0), True), dead], []
    with pytest.raises(LearnersLost, match="actor 1 died while it was started"):
        learners.begin(cast(Any, None), None, None)


# -- the driver -------------------------------------------------------------------------------------------------------


class Asked:
    """A call to a rollout process."""

    def __init__(self, rank: int, life: int, weights: Sequence[Any], refs: list[Ref]) -> None:
        self.rank, self.life, self.weights, self.refs = rank, life, weights, refs


class RolloutsStandIn:
    """Rollout processes whose every answer is a test's to give."""

    def __init__(self, *_: Any) -> None:
        self.lives = [1, 1]
        self.ended: list[tuple[int, int]] = []
        self.played: list[Asked] = []
        self.judged: list[Asked] = []
        self.gone: list[int] = []
        self.say: Any = None

    def __len__(self) -> int:
        return len(self.lives)

    def start(self) -> Facts:
        return Facts(cast(Any, None), [None], cast(Any, None))

    def play(self, rank: int, version: int, weights: Sequence[Any], episodes: Sequence[Any], film: Any) -> list[Ref]:
        refs = [Ref(there=False) for _ in range(1 + len(episodes))]
        self.played.append(Asked(rank, self.lives[rank], weights, refs))
        return refs

    def judge(self, rank: int, version: int, weights: Sequence[Any], step: int) -> Ref:
        ref = Ref([f"judged by {rank}, life {self.lives[rank]}"])
        self.judged.append(Asked(rank, self.lives[rank], weights, [ref]))
        return ref

    def restart(self, rank: int, error: BaseException) -> None:
        self.ended.append((rank, self.lives[rank]))
        self.lives[rank] += 1

    def lost(self) -> list[int]:
        return self.gone

    def all_is_well(self) -> None:
        pass

    def answer(self, asked: Asked, answer: Any = None) -> None:
        summary = EpisodeSummary("", success=False, total_reward=1.0, length=4)
        report = Report(0, [summary] * (len(asked.refs) - 1), 1.0, 0.5, 0.0, 9)
        asked.refs[0].answer, asked.refs[0].there = report if answer is None else answer, True


class LearnersStandIn:
    """Learners at some version, whose weights are numbered as they are asked for."""

    def __init__(self, *_: Any) -> None:
        self.version = 0
        self.given: list[str] = []
        self.learns: Callable[[], None] = lambda: None

    def start(self) -> None:
        pass

    def begin(self, *_: Any) -> Standing:
        return Standing(self.version, 0)

    def weights(self) -> tuple[int, Any]:
        self.given.append(f"weights {len(self.given)} of version {self.version}")
        return self.version, self.given[-1]

    def learn(self, shares: Any) -> dict[str, float]:
        self.learns()
        self.version += 1
        return {}

    def meet(self, *_: Any) -> None:
        pass

    def broadcast(self, *_: Any) -> None:
        pass


class Stage:
    """A driver with stand-ins all around it."""

    def __init__(self, tmp_path: Path, standin: StandIn, **algorithm: Any) -> None:
        plan: Any = SimpleNamespace(rollout=[None] * 2, actor=[None])
        folder: Any = SimpleNamespace(path=tmp_path)
        self.interrupts = Interrupts()
        settings = settings_of(tmp_path, **algorithm)
        cluster: Any = SimpleNamespace(check_at_times=lambda: None)
        self.backend = RayBackend(settings, plan, cluster, folder, self.interrupts)
        self.rollouts = cast(RolloutsStandIn, self.backend._rollouts)
        self.learners = cast(LearnersStandIn, self.backend._learners)
        self.said: list[str] = []
        self.answered = 0
        standin.passing = self.answer_next

    def begin(self) -> None:
        self.backend.begin(None, self.said.append)

    def answer_next(self) -> None:
        """Have the oldest call that nobody has answered end well."""
        self.rollouts.answer(next(asked for asked in self.rollouts.played if not asked.refs[0].there))


@pytest.fixture
def stage(tmp_path: Path, standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    monkeypatch.setattr(driver, "Rollouts", RolloutsStandIn)
    monkeypatch.setattr(driver, "LearnerGroup", LearnersStandIn)

    def made(*, broadcasts: bool = False, **algorithm: Any) -> Stage:
        monkeypatch.setattr(driver, "_broadcasts", lambda plan, settings: broadcasts)
        found = Stage(tmp_path, standin, **algorithm)
        found.begin()
        return found

    return made


def test_a_death_is_one_death_whoever_hears_of_it(stage: Callable[..., Stage]) -> None:
    now = stage(max_staleness=1)
    now.backend.update()
    ahead = next(asked for asked in now.rollouts.played if not asked.refs[0].there)
    real = now.rollouts.judge

    def judge(rank: int, version: int, weights: Sequence[Any], step: int) -> Ref:
        """One that is playing ahead is asked to judge, and dies: both calls fail, that of judging last."""
        ref = real(rank, version, weights, step)
        if rank == ahead.rank and now.rollouts.lives[ahead.rank] == 1:
            ref.answer, ref.there = exceptions.ActorDiedError(), False
            late.append(ref)
            now.rollouts.answer(ahead, exceptions.ActorDiedError())
        return ref

    def restart(rank: int, error: BaseException) -> None:
        RolloutsStandIn.restart(now.rollouts, rank, error)
        late[0].there = True

    late: list[Ref] = []
    now.rollouts.judge, now.rollouts.restart = judge, restart
    found = now.backend.evaluate()
    assert now.rollouts.ended == [(ahead.rank, 1)]
    assert sorted(map(str, found)) == sorted(
        f"judged by {rank}, life {2 if rank == ahead.rank else 1}" for rank in range(2)
    )
    now.backend.update()
    assert now.rollouts.ended == [(ahead.rank, 1)], "and what it was playing is played by the new one"


def test_the_death_of_an_earlier_life_ends_no_later_one(stage: Callable[..., Stage]) -> None:
    now = stage()
    playing = now.backend._playing
    playing.allow(0, ["weights"])
    part = playing._parts[now.rollouts.played[0].refs[0]]
    now.rollouts.lives[0] = 2  # somebody else has heard of it first
    now.rollouts.answer(now.rollouts.played[0], exceptions.ActorDiedError())
    playing.heard(part.refs[0])
    assert not now.rollouts.ended
    assert (now.rollouts.played[-1].rank, now.rollouts.played[-1].life) == (0, 2)


def test_all_who_were_on_a_lost_node_are_replaced_once_and_play_again(stage: Callable[..., Stage]) -> None:
    now = stage(max_staleness=1)
    losses = [learner_group.EpisodesLost("episodes were lost with their node")]

    def learns() -> None:
        if losses:
            now.rollouts.gone = [0, 1]
            raise losses.pop()

    def restart(rank: int, error: BaseException) -> None:
        RolloutsStandIn.restart(now.rollouts, rank, error)
        if rank == 0:  # meanwhile the other's death is heard of
            now.backend._playing.replace(1, 1, error)

    now.learners.learns, now.rollouts.restart = learns, restart
    now.backend.update()
    assert now.rollouts.ended == [(0, 1), (1, 1)]


@pytest.mark.parametrize("gone", [[0], [0, 1]])
def test_who_was_not_there_at_a_broadcast_is_given_weights(gone: list[int], stage: Callable[..., Stage]) -> None:
    now = stage(broadcasts=True)
    losses = [learner_group.EpisodesLost("episodes were lost with their node")]

    def learns() -> None:
        if losses:
            now.rollouts.gone = gone
            raise losses.pop()

    now.learners.learns = learns
    now.backend.update()
    again = [asked for asked in now.rollouts.played if asked.life == 2]
    assert [asked.rank for asked in again] == gone
    assert all(asked.weights == ["weights 0 of version 0"] for asked in again), "fetched once, for all of them"


def test_weights_that_were_lost_on_their_way_are_fetched_anew(stage: Callable[..., Stage], standin: StandIn) -> None:
    now = stage()

    def answer() -> None:
        first, second, *_ = now.rollouts.played
        if not (first.refs[0].there or second.refs[0].there):
            now.rollouts.answer(first, failed_with(LOST))
            now.rollouts.answer(second, failed_with(LOST))
        else:
            now.answer_next()

    standin.passing = answer
    now.backend.update()
    assert not now.rollouts.ended, "who plays is well"
    assert [asked.weights for asked in now.rollouts.played] == [
        *[["weights 0 of version 0"]] * 2,
        *[["weights 1 of version 0"]] * 2,
    ]


def test_weights_that_nobody_has_any_more_cost_what_was_learnt_since_the_last_checkpoint(
    stage: Callable[..., Stage],
) -> None:
    now = stage(max_staleness=1)
    now.backend.update()
    now.backend._playing.allow(1, now.backend._weights)
    old = next(asked for asked in now.rollouts.played if not asked.refs[0].there)
    assert old.weights == ["weights 0 of version 0"]
    now.rollouts.answer(old, failed_with(LOST))
    with pytest.raises(LearnersLost, match="version 0 of the weights was lost"):
        now.backend._playing.heard(old.refs[0])


def test_weights_that_are_lost_again_and_again_end_it(stage: Callable[..., Stage], standin: StandIn) -> None:
    now = stage()
    standin.passing = lambda: now.rollouts.answer(now.rollouts.played[-1], failed_with(LOST))
    with pytest.raises(LearnersLost, match="again and again"):
        now.backend.update()


def test_judging_survives_lost_weights(stage: Callable[..., Stage]) -> None:
    now = stage()
    real = now.rollouts.judge

    def judge(rank: int, version: int, weights: Sequence[Any], step: int) -> Ref:
        ref = real(rank, version, weights, step)
        if weights == ["weights 0 of version 0"]:
            ref.answer = failed_with(LOST)
        return ref

    now.rollouts.judge = judge
    assert len(now.backend.evaluate()) == 2
    assert now.learners.given == ["weights 0 of version 0", "weights 1 of version 0"]
    assert not now.rollouts.ended


def test_other_errors_of_those_who_play_come_out_as_they_went_in(stage: Callable[..., Stage]) -> None:
    now = stage()
    now.backend._playing.allow(0, ["weights"])
    now.rollouts.answer(now.rollouts.played[0], failed_with(StartError("no such scene")))
    with pytest.raises(StartError, match="no such scene"):
        now.backend._playing.heard(now.rollouts.played[0].refs[0])


@pytest.mark.parametrize("fast", [False, True], ids=["who plays is slow", "who plays is fast"])
def test_groups_are_played_with_the_same_weights_however_fast_who_plays_is(
    fast: bool, stage: Callable[..., Stage]
) -> None:
    group = {"adv_type": "grpo", "loss_type": "actor", "group_size": 2, "dynamic_sampling": False}
    now = stage(max_staleness=2, **group)

    if fast:  # all that may be played is played while the others learn
        now.learners.learns = lambda: now.backend._waiting.until(lambda: not now.backend._playing.pending)
    for _ in range(5):
        now.backend.update()
    assert [asked.weights[0].rpartition(" ")[2] for asked in now.rollouts.played if asked.rank == 0][:5] == list(
        "00012"
    )


def test_a_signal_ends_a_run_where_all_that_was_learnt_is_written_down(
    stage: Callable[..., Stage], standin: StandIn
) -> None:
    now = stage(broadcasts=True)
    waiting = now.backend._waiting
    late: list[Ref] = []

    def broadcast(*_: Any) -> None:
        late.append(Ref(there=False))
        waiting.all(late[-1:], "the broadcast of weights")

    def answer() -> None:
        missing = [ref for ref in late if not ref.there]
        if missing:
            missing[0].there = True
        else:
            now.answer_next()

    def judge(rank: int, version: int, weights: Sequence[Any], step: int) -> Ref:
        late.append(Ref([f"judged by {rank}"], there=False))
        return late[-1]

    standin.passing = answer
    now.learners.broadcast = broadcast
    now.learners.learns = lambda: setattr(now.interrupts, "stop", "SIGINT")
    now.backend.update()
    assert now.backend.iteration == 1
    now.rollouts.judge = judge
    assert now.backend.evaluate() == ["judged by 0", "judged by 1"]
    with pytest.raises(Stopped):
        now.backend.update()
    assert now.backend.iteration == 1


# -- Ray itself -------------------------------------------------------------------------------------------------------


@contextmanager
def listening() -> Iterator[int]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen()
        yield found.getsockname()[1]


def cluster_on(raylet: int, head: int, *, is_local: bool = True) -> RayCluster:
    found = RayCluster(ClusterSettings())
    patience = 0.0 if is_local else 30.0
    found._pillars = [
        clusters._Pillar("the raylet", "127.0.0.1", raylet, "raylet.out"),
        clusters._Pillar("the GCS", "127.0.0.1", head, "gcs.out", patience),
    ]
    return found


def test_who_waits_hears_of_the_death_of_ray_itself() -> None:
    with listening() as head:
        with listening() as raylet:
            cluster = cluster_on(raylet, head)
            cluster.check()
        with pytest.raises(RayLost, match=r"the raylet at 127\.0\.0\.1:\d+ died"):
            Waiting(Interrupts(), cluster.check_at_times).until(lambda: False, lambda: [object()])
        with pytest.raises(RayLost):
            cluster.lost()


def test_a_head_that_others_may_start_again_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(clusters.time, "monotonic", lambda: now)
    with listening() as raylet:
        with listening() as head:
            cluster = cluster_on(raylet, head, is_local=False)
        cluster.check()
        now = 29.0
        cluster.check()
        now = 31.0
        with pytest.raises(RayLost, match="the GCS"):
            cluster.check()


# -- room -------------------------------------------------------------------------------------------------------------


class Machines:
    """Machines as Ray tells of them, and the room that was asked for on each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *found: Node) -> None:
        self.alive = [RayNode(f"id{i}", f"10.0.0.{i}", 1, node) for i, node in enumerate(found)]
        self.asked: list[tuple[str, dict[str, float]]] = []
        monkeypatch.setattr(clusters, "living_nodes", lambda: list(self.alive))
        monkeypatch.setattr(RayNode, "answers", True)
        monkeypatch.setattr(clusters, "_free", lambda node: {"CPU": 64.0, "GPU": 8.0})
        monkeypatch.setattr(clusters, "_group", self._group)
        monkeypatch.setattr("ray.util.remove_placement_group", lambda group: None)

    def _group(self, bundle: dict[str, float], labels: dict[str, str]) -> Any:
        self.asked.append((labels["ray.io/node-id"], bundle))
        return SimpleNamespace(wait=lambda seconds: True)


def reserved(machines: Machines, placement: dict[str, Any]) -> RayCluster:
    found = RayCluster(ClusterSettings(num_nodes=2, wait_seconds=0.01))
    found.nodes = list(machines.alive)
    found.reserve(placed(placement, Cluster(tuple(node.node for node in found.nodes[:2]))))
    return found


def test_processes_of_a_lost_node_go_where_none_of_ours_has_their_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = Machines(monkeypatch, Node(4, 32), Node(4, 32), Node(2, 32), Node(4, 32))
    cluster = reserved(machines, {"env,rollout,actor": "all"})
    del machines.alive[1]
    said = cluster.mend()
    assert cluster.nodes[1].id == "id3", "not beside node 0's, and not where there are two GPUs only"
    assert machines.asked[-1] == ("id3", {"CPU": 8.0, "GPU": 4.0})
    assert said == ["node 1 (10.0.0.1) was lost; its processes go on at 10.0.0.3"]


def test_rather_no_room_than_two_processes_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = Machines(monkeypatch, Node(4, 32), Node(4, 32))
    cluster = reserved(machines, {"env,rollout,actor": "0-1,4-5"})
    del machines.alive[1]
    with pytest.raises(StartError, match="finds no room elsewhere"):
        cluster.mend()


def test_processes_ask_for_no_more_than_was_kept_for_them_wherever_they_go(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = Machines(monkeypatch, Node(cpus=64), Node(cpus=2, slots=64))
    cluster = reserved(machines, {"env,rollout": "0-1,64-67", "actor": "0"})
    before = machines.asked[-1][1]["CPU"]
    del machines.alive[1]
    cluster.mend()
    moved = [process for process in cluster._plan.rollout if process.node == 1]  # type: ignore[union-attr]
    monkeypatch.setattr("ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy", lambda *_: None)
    assert cluster.nodes[1].id == "id0"
    assert sum(cluster.options(process)["num_cpus"] for process in moved) <= before


def test_the_plan_and_its_warnings_are_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(RayCluster):
        """One CPU, and no room on it."""

        def __enter__(self) -> Full:
            self.nodes = [RayNode("id", "10.0.0.1", 1, Node(cpus=1))]
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def reserve(self, plan: Plan) -> None:
            raise StartError("there is no room")

    monkeypatch.setattr(training, "RayCluster", Full)
    with pytest.raises(StartError, match="there is no room"):
        training.train(settings_of(tmp_path))
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "warning: 3 CPU slots (0-2) share the 1 CPUs of node 0"
    assert said[1].startswith("placement: hybrid")
    assert [line.split()[:2] for line in said[3:]] == [
        *(["env", str(rank)] for rank in range(2)),
        *(["rollout", str(rank)] for rank in range(2)),
        ["actor", "0"],
    ]
