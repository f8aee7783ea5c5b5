"""A run on two Ray nodes, one of which is lost on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from manyarms.errors import ConfigError, StartError
from manyarms.placement.cluster import living_nodes
from manyarms.placement.driver import RayBackend
from manyarms.placement.learner_group import LearnerGroup
from manyarms.placement.learners import Share
from placement import AHEAD, ONE_LEARNER, PLACED, SHARED, SMALL_STORE, Disturbed, all_gone, run, undisturbed
from training import assert_same_run, curve, ended, in_folder, lines, started, written

ray = pytest.importorskip("ray")

# One Ray after the other: each is a dozen processes.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

TWO = ["cluster.num_nodes=2", "cluster.cpu_slots=1"]
BOTH = [*TWO, f"{PLACED}env,rollout=0-1", f"{PLACED}actor=1"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster that begins with one node, on this machine."""
    from ray.cluster_utils import Cluster

    options = {
        "num_cpus": 2,
        "object_store_memory": SMALL_STORE,
        "include_dashboard": False,
        # Even small episodes then lie in the store of the node that played them, and are lost with it.
        # A node that is gone is noticed in 2.5 s, not in 15; one that is slow has as long as ever.
        "_system_config": {"max_direct_call_object_size": 100, "health_check_period_ms": 500},
    }
    found = Cluster(initialize_head=True, head_node_args=options)
    ray.init(address=found.address, log_to_driver=False, logging_level="ERROR")
    yield found
    ray.shutdown()
    found.shutdown()
    assert all_gone("raylet")


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one plain process."""
    return undisturbed(tmp_path_factory)


class SecondNode:
    """Another node, which a test may lose."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._node = cluster.add_node(wait=False, num_cpus=2, object_store_memory=SMALL_STORE)
        self.id = self._node.node_id

    def lose(self) -> None:
        self._cluster.remove_node(self._node, allow_graceful=False)

    @property
    def lost(self) -> bool:
        return self._node not in self._cluster.worker_nodes


@pytest.fixture
def second(cluster: Any) -> Iterator[SecondNode]:
    node = SecondNode(cluster)
    wait_until(lambda: any(found.id == node.id and found.answers for found in living_nodes()))
    yield node
    if not node.lost:
        node.lose()
    # Ray believes it late, and the next test would meet a node that is gone.
    wait_until(lambda: all(found.id != node.id for found in living_nodes()))


def wait_until(so: Callable[[], bool]) -> None:
    """Wait, without a deadline of its own: the test has one."""
    while not so():
        time.sleep(0.1)


def test_too_few_nodes_are_told_with_the_command_that_helps(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_nodes is 3, but 1 answered") as caught:
        run(tmp_path, *BOTH, "cluster.num_nodes=3", "cluster.wait_seconds=0.5")
    assert "ray start --address" in str(caught.value)


def test_a_cluster_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    words = [written(tmp_path), *in_folder(tmp_path), *BOTH, "cluster.address=127.0.0.1:9"]
    process = started(words)
    said = ended(process)
    assert process.returncode == 2, said
    assert "there is no Ray cluster at 127.0.0.1:9" in said
    assert "Traceback" not in said


def test_a_lost_node_costs_what_was_learnt_since_the_last_checkpoint(
    alone: Path,
    second: SecondNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Disturbed(monkeypatch, {3: second.lose})
    found = run(tmp_path, *BOTH)
    assert second.lost
    assert_same_run(found.folder, alone)
    said = capsys.readouterr().err
    assert "its node was lost" in said
    assert "was lost; its processes go on at" in said


def test_learners_on_both_nodes_go_back_to_the_last_checkpoint_when_one_is_lost(
    second: SecondNode,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = undisturbed(tmp_path_factory, *SHARED)
    ask, learns = LearnerGroup._ask, count()

    def asked(group: LearnerGroup, method: str, *arguments: Any) -> list[Any]:
        """Lose it when both hold their episodes: the other finds out in the middle of an exchange."""
        if method == "learn" and next(learns) == 2:
            second.lose()
        return ask(group, method, *arguments)

    monkeypatch.setattr(LearnerGroup, "_ask", asked)
    found = run(tmp_path, *TWO, f"{PLACED}env,rollout,actor=0-1")
    assert second.lost
    assert_same_run(found.folder, whole)
    said = capsys.readouterr().err
    assert "actor 1 (process" in said
    assert "going on from" in said


def test_episodes_that_are_lost_with_their_node_are_played_again(
    second: SecondNode,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = undisturbed(tmp_path_factory, *ONE_LEARNER, *AHEAD)
    lose_before_learning(monkeypatch, 3, second)
    found = run(tmp_path, *AHEAD, *TWO, f"{PLACED}env,rollout=0-1", f"{PLACED}actor=0")
    assert second.lost
    assert_same_run(found.folder, whole)
    assert "episodes were lost with their node: they are played again" in capsys.readouterr().err


def lose_before_learning(monkeypatch: pytest.MonkeyPatch, update: int, node: SecondNode) -> None:
    """Lose a node when all of an update is reported, and none of it is with those who learn."""
    learn, calls = LearnerGroup.learn, count(1)

    def learning(group: LearnerGroup, shares: Sequence[Share]) -> dict[str, float]:
        if next(calls) == update:
            node.lose()
        return learn(group, shares)

    monkeypatch.setattr(LearnerGroup, "learn", learning)


@pytest.mark.soak
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_lost_node_with_many_rollout_processes_changes_nothing(
    staleness: int,
    second: SecondNode,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["env.train.total_num_envs=5", "env.train.rows_per_worker=1", "runner.val_check_interval=0"]
    words += ["runner.max_steps=3", f"algorithm.max_staleness={staleness}", "runner.save_interval=-1"]
    whole = undisturbed(tmp_path_factory, *words, *([f"{PLACED}env,rollout,actor=0"] if staleness else []))
    lose_before_learning(monkeypatch, 2, second)
    found = run(tmp_path, *words, *TWO, f'{PLACED}env,rollout="0:0,1:1-4"', f"{PLACED}actor=0")
    assert curve(found.folder) == curve(whole)
    said = capsys.readouterr().err
    assert all(said.count(f"rollout {rank} is started again") == 1 for rank in range(1, 5))
    assert "rollout 0 is started again" not in said


def test_weights_that_are_lost_before_anybody_has_them_cost_what_was_learnt_since_the_last_checkpoint(
    second: SecondNode,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["runner.val_check_interval=0"]
    whole = undisturbed(tmp_path_factory, *words)
    update = RayBackend.update

    def updated(backend: RayBackend) -> dict[str, float]:
        if backend.iteration == 3 and not second.lost:
            second.lose()
        return update(backend)

    monkeypatch.setattr(RayBackend, "update", updated)
    found = run(tmp_path, *words, *TWO, f"{PLACED}env,rollout=0", f"{PLACED}actor=1")
    assert second.lost
    assert_same_run(found.folder, whole)
    assert "going on from" in capsys.readouterr().err


def test_a_lost_node_without_room_elsewhere_is_named(
    second: SecondNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=0)
    class Guest:
        def is_there(self) -> bool:
            return True

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    guest = Guest.options(num_cpus=0.5, scheduling_strategy=here).remote()
    ray.get(guest.is_there.remote())
    Disturbed(monkeypatch, {2: second.lose})
    try:
        with pytest.raises(StartError, match=r"node 1 \(.*\) was lost, and what it ran finds no room") as caught:
            run(tmp_path, *BOTH, "cluster.wait_seconds=10", "runner.max_steps=40")
    finally:
        ray.kill(guest)
    assert second.lost
    assert "--resume" in str(caught.value)
    assert 3 <= len(lines(tmp_path / "walk")) < 40
