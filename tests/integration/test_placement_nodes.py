"""A run on two Ray nodes, one of which is lost on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manyarms.errors import ConfigError, StartError
from manyarms.learning.settings import load
from manyarms.learning.training import train as train_in_this_process
from placement import PLACED, SMALL_STORE, Disturbed, all_gone, run
from training import assert_same_run, ended, in_folder, lines, started, written

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
        "_system_config": {"max_direct_call_object_size": 100},
    }
    found = Cluster(initialize_head=True, head_node_args=options)
    ray.init(address=found.address, log_to_driver=False, logging_level="ERROR")
    yield found
    ray.shutdown()
    found.shutdown()
    assert all_gone("raylet")


@pytest.fixture
def second(cluster: Any) -> Iterator[Any]:
    """Another node, which a test may remove."""
    node = cluster.add_node(num_cpus=2, object_store_memory=SMALL_STORE)
    yield node
    if node in cluster.worker_nodes:
        cluster.remove_node(node, allow_graceful=False)


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
    cluster: Any, second: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = train_in_this_process(load(written(tmp_path), in_folder(tmp_path, "alone")))
    deed = Disturbed(tmp_path / "walk", 3, lambda: cluster.remove_node(second, allow_graceful=False))
    found = run(tmp_path, *BOTH)
    assert deed.done
    assert_same_run(found.folder, alone.folder)
    said = capsys.readouterr().err
    assert "its node was lost" in said
    assert "was lost; its processes go on at" in said


def test_episodes_that_are_lost_with_their_node_are_played_again(
    cluster: Any, second: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["algorithm.max_staleness=2", "runner.val_check_interval=0", "actor.model.model_type=placement:Slow"]
    whole = run(tmp_path, *words, f"{PLACED}env,rollout,actor=0", name="whole")
    deed = Disturbed(tmp_path / "walk", 1, lambda: cluster.remove_node(second, allow_graceful=False))
    found = run(tmp_path, *words, *TWO, f"{PLACED}env,rollout=0-1", f"{PLACED}actor=0")
    assert deed.done
    assert_same_run(found.folder, whole.folder)
    assert "episodes were lost with their node: they are played again" in capsys.readouterr().err


def test_a_lost_node_without_room_elsewhere_is_named(cluster: Any, second: Any, tmp_path: Path) -> None:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=0)
    class Guest:
        def is_there(self) -> bool:
            return True

    def lose() -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        guest = Guest.options(num_cpus=0.5, scheduling_strategy=here).remote()
        ray.get(guest.is_there.remote())
        guests.append(guest)
        cluster.remove_node(second, allow_graceful=False)

    guests: list[Any] = []
    deed = Disturbed(tmp_path / "walk", 2, lose)
    with pytest.raises(StartError, match=r"node 1 \(.*\) was lost, and what it ran finds no room") as caught:
        run(tmp_path, *BOTH, "cluster.wait_seconds=3", "runner.max_steps=40")
    assert deed.done
    assert "--resume" in str(caught.value)
    assert 3 <= len(lines(tmp_path / "walk")) < 40
    for guest in guests:
        ray.kill(guest)
