"""Machines to place runs on, and runs placed on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyarms.placement.environments import Totals
from manyarms.placement.plan import Plan, plan
from manyarms.placement.topology import Cluster, Node, NodeGroup

EIGHT_GPUS = Cluster((Node(accelerators=8, cpus=64),))
TWO_NODES = Cluster((Node(4, 32), Node(4, 32)), (NodeGroup("a800", (0,)), NodeGroup("4090", (1,))))
LAPTOP = Cluster((Node(cpus=2),))

SHARED = {"env,rollout,actor": "all"}
SEPARATE = {"env": "0-1", "rollout": "2-5", "actor": "6-7"}
HYBRID = {"env": "0-3", "rollout": "4-7", "actor": "0-7"}


def placed(
    component_placement: Mapping[str, Any] | None, cluster: Cluster = EIGHT_GPUS, num_envs: int = 16, **totals: Any
) -> Plan:
    return plan(component_placement, cluster, Totals(num_envs, **totals))


def devices(found: Plan, role: str) -> list[tuple[int, ...]]:
    return [process.devices for process in found.roles[role]]
