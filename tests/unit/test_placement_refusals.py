"""Placements that cannot be, refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from clusters import SHARED, TWO_NODES, placed
from manyarms.errors import ConfigError, ManyarmsError
from manyarms.placement.topology import Cluster, Node, NodeGroup


@pytest.mark.parametrize(
    ("component_placement", "reason"),
    [
        ({"env": "8"}, "env is '8': there is no device 8\n  why: the cluster has 0-7"),
        ({"env": "6-12"}, "there is no device 8"),
        ({"env": yaml.safe_load("1:0")}, "if you wrote 1:0, put it in quotes"),
        ({"env": "0-1,1-2"}, "id 1 stands there twice"),
        ({"env": "all,0"}, "id 0 stands there twice"),
        ({"env": "0-2:0-1"}, "3 devices cannot be dealt to 2 processes"),
        ({"env": "0-1:0-2"}, "2 devices cannot be dealt to 3 processes"),
        ({"env": "0:0,1:2"}, "there is no process 1"),
        ({"env": "0:1"}, "there is no process 0"),
        ({"env": "0:0,1:0"}, "process 0 stands there twice"),
        ({"env": "0:all"}, "processes cannot be `all`"),
        ({"env": "0:0:0"}, "'0:0:0' cannot be read"),
        ({"env": "0:"}, "'0:' cannot be read"),
        ({"env": "0,,1"}, "'' cannot be read"),
        ({"env": "3-0"}, "runs backwards\n  do:  write 0-3"),
        ({"env": "-1"}, "'-1' cannot be read"),
        ({"env": "0-3-5"}, "'0-3-5' cannot be read"),
        ({"env": "gpu0"}, "'gpu0' cannot be read"),
        ({"env": "²"}, "'²' cannot be read"),
        ({"env": "0-99999999999"}, "more than any cluster has"),
        ({"env": ""}, "env is ''"),
        ({"env": None}, "env is None"),
        ({"env": True}, "env is True"),
        ({"env": 1.5}, "env is 1.5"),
        ({"env": [0, 1]}, r"env is \[0, 1\]\n  do:  write ids such as"),
        ({"env": {"node_group": "a800"}}, "env has no placement"),
        ({"env": {"node_groups": "a800", "placement": 0}}, "did you mean node_group"),
        ({"env": {"node_group": "a80", "placement": 0}}, "no node group 'a80'"),
        ({"env": {"node_group": "node,node", "placement": 0}}, "a group stands there twice"),
        ({"env": {"node_group": "cluster,cluster", "placement": 0}}, "a group stands there twice"),
        ({"envs": "0"}, "did you mean env"),
        ({"reward": "0"}, "rewards come from the simulator"),
        ({"env,env": "0"}, "names env twice"),
        ({"rollout": "0-3:0-1"}, "rollout 0 is placed on 2 devices"),
        ({"actor": "all:0"}, "actor 0 is placed on 8 devices"),
        ({"actor": "0-3:0-7"}, "actor 0 and actor 1 are both on gpu 0 of node 0"),
    ],
)
def test_a_placement_that_cannot_be_is_refused_with_the_reason(
    component_placement: dict[str, Any], reason: str
) -> None:
    whole = {"env": "all", "rollout": "all", "actor": "all"} | component_placement
    if next(iter(component_placement)) == "env,env":
        del whole["env"]
    with pytest.raises(ManyarmsError, match=reason):
        placed(whole)


@pytest.mark.parametrize(
    ("component_placement", "reason"),
    [
        ({}, "says nothing of env and rollout and actor"),
        ({"env,rollout": "all"}, "says nothing of actor"),
        ({"env": "all", "rollout": "0-3", "actor": "all"}, "node 1 has env processes, but no rollout process"),
        ({"env": "0", "rollout": "all", "actor": "all"}, "node 1 has rollout processes, but no env process"),
        ({"env": "2-5:0", "rollout,actor": "all"}, "process 0 would run on nodes 0-1"),
        ({"env,rollout,actor": {"node_group": "a800,cluster", "placement": 0}}, "a800 and cluster share a node"),
        ({"env,rollout,actor": {"node_group": "a800", "placement": "0-4"}}, "a800 has 0-3"),
    ],
)
def test_a_placement_over_nodes_that_cannot_be_is_refused_with_the_reason(
    component_placement: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        placed(component_placement, TWO_NODES)


def test_actors_do_not_learn_partly_on_cpus() -> None:
    cluster = Cluster((Node(4), Node(cpus=4)), (NodeGroup("gpus", (0,)), NodeGroup("hosts", (1,))))
    everywhere = {"node_group": "gpus,hosts", "placement": "all"}
    with pytest.raises(ConfigError, match="some actor processes are on GPUs, others on CPUs"):
        placed({"env,rollout": "all", "actor": everywhere}, cluster)
    assert len(placed({"env,rollout": everywhere, "actor": "all"}, cluster).rollout) == 8


def test_ids_stay_those_of_accelerators_where_some_node_has_none() -> None:
    cluster = Cluster((Node(cpus=4), Node(2)))
    assert {process.node for process in placed(SHARED, cluster).processes} == {1}


def test_too_few_environments_for_the_processes_are_refused() -> None:
    with pytest.raises(ConfigError, match="8 rollout processes, but only 7 environments"):
        placed(SHARED, num_envs=7)
    with pytest.raises(ConfigError, match="node 0 has 8 places for simulators, but only 7 environments"):
        placed({"env": "all", "rollout,actor": "0"}, num_envs=7)
    with pytest.raises(ConfigError, match="8 rollout processes, but an update plays only 4 groups"):
        placed(SHARED, starts_per_step=4)
