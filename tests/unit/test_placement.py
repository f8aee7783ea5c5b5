"""Placement: what the documents write is understood, and every process has its place."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusters import EIGHT_GPUS, HYBRID, LAPTOP, SEPARATE, SHARED, TWO_NODES, devices, placed
from manyarms.errors import ConfigError, ManyarmsError
from manyarms.learning.settings import load, recipes
from manyarms.placement.environments import Totals
from manyarms.placement.plan import plan
from manyarms.placement.seats import Seat, seat_of
from manyarms.placement.topology import Cluster, Node, NodeGroup, cluster_from
from manyarms.reporting.console import table

# --- what the documents write


@pytest.mark.parametrize(
    ("layout", "component_placement"), [("shared", SHARED), ("separate", SEPARATE), ("hybrid", HYBRID)]
)
@pytest.mark.parametrize("cluster", [EIGHT_GPUS, LAPTOP], ids=["gpus", "cpus"])
def test_the_three_layouts_are_told_apart_with_and_without_accelerators(
    layout: str, component_placement: dict[str, str], cluster: Cluster
) -> None:
    assert placed(component_placement, cluster).layout == layout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (3, [(3,)]),
        ("3", [(3,)]),
        ("0-0", [(0,)]),
        ("0-3", [(0,), (1,), (2,), (3,)]),
        ("0,2,4-7", [(0,), (2,), (4,), (5,), (6,), (7,)]),
        (" 0 - 1 , 3 ", [(0,), (1,), (3,)]),
        ("4-5,0-1", [(4,), (5,), (0,), (1,)]),
        ("all", [(i,) for i in range(8)]),
        ("ALL", [(i,) for i in range(8)]),
        ("0-1:0-3", [(0,), (0,), (1,), (1,)]),
        ("0-3:0-1", [(0, 1), (2, 3)]),
        ("all:0", [tuple(range(8))]),
        ("0:0", [(0,)]),
        ("0-1:0-3,3-5,6-7:7-10", [(0,), (0,), (1,), (1,), (3,), (4,), (5,), (6,), (6,), (7,), (7,)]),
        ("4-5:2-3,0-1:0-1", [(0,), (1,), (4,), (5,)]),
        ({"placement": "2-3"}, [(2,), (3,)]),
    ],
)
def test_every_way_to_write_ids_names_the_devices_it_says(text: object, expected: list[tuple[int, ...]]) -> None:
    assert devices(placed({"env": text, "rollout,actor": "all"}), "env") == expected


def test_roles_in_one_key_may_stand_in_any_order_and_with_spaces() -> None:
    assert placed({"actor, env, rollout": "0-3"}).layout == "shared"


def test_without_a_placement_one_process_of_each_role_has_the_first_device() -> None:
    found = placed(None)
    assert [len(processes) for processes in found.roles.values()] == [1, 1, 1]
    assert {process.devices for process in found.processes} == {(0,)}


@pytest.mark.parametrize("name", recipes())
@pytest.mark.parametrize("cluster", [EIGHT_GPUS, LAPTOP], ids=["gpus", "cpus"])
def test_every_recipe_can_be_placed_as_it_says_and_in_every_layout(name: str, cluster: Cluster) -> None:
    raw = yaml.safe_load((resources.files("manyarms") / "recipes" / f"{name}.yaml").read_text())
    config = load(name).config
    totals = Totals(
        config.train.total_num_envs,
        rows_per_worker=config.train.rows_per_worker,
        pipeline_stage_num=config.rollout.pipeline_stage_num,
        starts_per_step=config.episodes_per_step // config.algorithm.group_size,
    )
    own = plan(raw.get("cluster", {}).get("component_placement"), cluster, totals)
    assert sum(len(process.rows) for process in own.rollout) == totals.num_envs
    for component_placement in (SHARED, SEPARATE, HYBRID):
        assert plan(component_placement, cluster, replace(totals, num_envs=max(8, totals.num_envs))).processes


# --- nodes and groups of them


def test_ids_count_through_all_nodes_and_become_local() -> None:
    found = placed({"env,rollout,actor": "2-5"}, TWO_NODES)
    assert [(process.node, process.devices) for process in found.actor] == [(0, (2,)), (0, (3,)), (1, (0,)), (1, (1,))]


def test_a_node_group_has_ids_of_its_own() -> None:
    found = placed({"env,rollout": {"node_group": "4090", "placement": "0-1"}, "actor": "0-3"}, TWO_NODES)
    assert {process.node for process in found.env + found.rollout} == {1}
    assert devices(found, "rollout") == [(0,), (1,)]
    assert {process.node for process in found.actor} == {0}
    assert {feed.way for feed in found.feeds} == {"other node"}


@pytest.mark.parametrize("label", ["4090,a800", ["4090", "a800"]])
def test_several_node_groups_follow_one_another_in_the_order_given(label: object) -> None:
    found = placed({"env,rollout,actor": {"node_group": label, "placement": "3-4"}}, TWO_NODES)
    assert [(process.node, process.devices) for process in found.actor] == [(1, (3,)), (0, (0,))]


def test_a_label_that_yaml_reads_as_a_number_is_found() -> None:
    entry = yaml.safe_load("env,rollout,actor: {node_group: 4090, placement: 1}")
    assert placed(entry, TWO_NODES).env[0].node == 1


def test_the_group_called_node_has_one_place_a_node_and_no_device() -> None:
    found = placed({"env": {"node_group": "node", "placement": "0-1:0-3"}, "rollout,actor": "all"}, TWO_NODES)
    assert [(process.node, process.devices, process.kind) for process in found.env] == [
        (0, (), "cpu"),
        (0, (), "cpu"),
        (1, (), "cpu"),
        (1, (), "cpu"),
    ]
    assert not any(process.shares_with for process in found.env)


def test_whole_nodes_hold_several_processes_of_a_role_and_nobody_has_to_make_room() -> None:
    found = placed({"env,rollout,actor": {"node_group": "node", "placement": "0-1:0-3"}}, TWO_NODES)
    assert [process.node for process in found.actor] == [0, 0, 1, 1]
    assert not any(process.shares_with or process.offloads for process in found.processes)
    assert {feed.way for feed in found.feeds} == {"same node"}


def test_a_group_that_ignores_its_hardware_is_placed_on_cpu_slots() -> None:
    cluster = replace(TWO_NODES, node_groups=(NodeGroup("hosts", (0, 1), ignore_hardware=True),))
    found = placed({"env": {"node_group": "hosts", "placement": "0,32"}, "rollout,actor": "0,4"}, cluster)
    assert [(process.node, process.kind, process.devices) for process in found.env] == [
        (0, "cpu", (0,)),
        (1, "cpu", (0,)),
    ]
    assert found.layout == "hybrid", "a CPU slot is no GPU of the same number"
    assert not found.env[0].shares_with


def test_a_cluster_is_what_its_section_says() -> None:
    section = yaml.safe_load(
        "{num_nodes: 3, node_groups: [{label: train, node_ranks: 0-1}, {label: 4090, node_ranks: [2]}], "
        "component_placement: {}}"
    )
    found = cluster_from(section, [Node(8)] * 3)
    assert [(group.label, group.node_ranks) for group in found.node_groups] == [("train", (0, 1)), ("4090", (2,))]
    assert len(cluster_from({}, [Node(8)] * 3).nodes) == 1
    assert cluster_from({"cpu_slots": 4}, [Node(cpus=2)]).nodes[0].cpu_slots == 4


def test_nodes_that_are_not_there_yet_can_be_taken_for_alike() -> None:
    assert cluster_from({"num_nodes": 2}, [Node(8)], alike=True).nodes == (Node(8), Node(8))
    with pytest.raises(ConfigError, match="num_nodes is 2, but 1 answered"):
        cluster_from({"num_nodes": 2}, [Node(8)])


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"num_node": 1}, "did you mean num_nodes"),
        ({"num_nodes": 0}, "num_nodes is 0"),
        ({"num_nodes": "two"}, "num_nodes is 'two'"),
        ({"cpu_slots": True}, "cpu_slots is True"),
        ({"node_groups": "a800"}, "no list"),
        ({"node_groups": ["a800"]}, "a label and node_ranks"),
        ({"node_groups": [{"label": "a"}]}, "a label and node_ranks"),
        ({"node_groups": [{"label": "a", "node_ranks": "0", "nodes": 1}]}, "did you mean node_ranks"),
        ({"node_groups": [{"label": "a", "node_ranks": "0", "hardware": {}}]}, "no robots"),
        ({"node_groups": [{"label": "a", "node_ranks": "0", "env_configs": []}]}, "env.train.python"),
        ({"node_groups": [{"label": "a", "node_ranks": "0,0"}]}, "twice"),
        ({"node_groups": [{"label": "a", "node_ranks": "1"}]}, "holds node 1"),
        ({"node_groups": [{"label": "node", "node_ranks": "0"}]}, "cannot be called 'node'"),
        ({"node_groups": [{"label": "a", "node_ranks": "0"}] * 2}, "two node groups"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_with_the_reason(section: dict[str, Any], reason: str) -> None:
    with pytest.raises(ManyarmsError, match=reason):
        cluster_from(section, [Node(8)])


# --- environments: who acts for them, where they render, in which stages


def test_separate_devices_render_for_the_rollout_processes_of_their_node() -> None:
    found = placed(SEPARATE)
    assert [(share.rollout, share.slot.device, share.rows) for share in found.simulators] == [
        (0, 0, (0, 1, 2, 3)),
        (1, 0, (4, 5, 6, 7)),
        (2, 1, (8, 9, 10, 11)),
        (3, 1, (12, 13, 14, 15)),
    ]
    assert found.env[1].rows == tuple(range(8, 16))


def test_a_rollout_process_may_own_simulators_on_several_devices() -> None:
    found = placed({"env": "0-2", "rollout": "3-4", "actor": "5"}, num_envs=12, rows_per_worker=4)
    assert [(share.slot.device, share.rows, share.workers) for share in found.simulators_of(0)] == [
        (0, (0, 1, 2, 3), 1),
        (1, (4, 5), 1),
    ]
    assert [len(process.rows) for process in found.env] == [4, 4, 4], "every device renders as much as the next"


def test_an_environment_process_with_several_devices_renders_on_all_of_them() -> None:
    found = placed({"env": "0-3:0-1", "rollout,actor": "4"}, num_envs=8)
    assert [(share.env, share.slot.device, len(share.rows)) for share in found.simulators] == [
        (0, 0, 2),
        (0, 1, 2),
        (1, 2, 2),
        (1, 3, 2),
    ]


def test_every_worker_renders_on_the_gpu_that_has_its_rows() -> None:
    found = placed({"env": "0-2", "rollout": "3-4", "actor": "5"}, num_envs=12, rows_per_worker=2)
    assert [seat_of(process, found, overlapping=False).egl_devices for process in found.rollout] == [
        (0, 0, 1),
        (1, 2, 2),
    ]
    assert not any(seat_of(process, found, overlapping=False).egl_devices for process in found.env + found.actor)


def test_lock_step_groups_stay_whole_and_stages_hold_whole_groups() -> None:
    found = placed({"env,rollout,actor": "0-1"}, num_envs=20, rows_per_worker=4, lockstep=True)
    assert [process.rows for process in found.rollout] == [tuple(range(8)), tuple(range(8, 20))]
    assert [(process.stages, process.stage_rows) for process in found.rollout] == [(2, 4), (2, 8)]
    with pytest.raises(ConfigError, match="in lock-step groups of 8\n  why: a lock-step group stays whole"):
        placed({"env,rollout,actor": "0-3"}, num_envs=16, rows_per_worker=8, lockstep=True)


def test_stages_that_cannot_overlap_are_told() -> None:
    (warning,) = placed(None, num_envs=4, rows_per_worker=4, lockstep=True).warnings
    assert "pipeline_stage_num is 2, but rollout 0 has 1 lock-step group" in warning
    assert not placed(None, num_envs=4, rows_per_worker=4).warnings


def test_isaac_is_warned_of_where_environments_begin_above_gpu_0() -> None:
    above = {"env": "4-7", "rollout": "0-3", "actor": "all"}
    assert "env begins at GPU 4 of node 0" in placed(above, renders_from_gpu_0=True).warnings[0]
    assert not placed(above).warnings
    assert not placed(HYBRID, renders_from_gpu_0=True).warnings
    assert "Isaac" not in "".join(placed(above, LAPTOP, renders_from_gpu_0=True).warnings)


def test_workers_know_whether_a_plan_has_chosen_their_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANYARMS_PLACED", "")
    monkeypatch.chdir(tmp_path)
    Seat("rollout", 1, 4, "cpu", tmp_path, ()).enter()
    assert not os.environ["MANYARMS_PLACED"]
    Seat("rollout", 1, 4, "cpu", tmp_path, (), egl_devices=(1,)).enter()
    assert os.environ["MANYARMS_PLACED"]


def test_environments_that_nodes_share_unevenly_are_told() -> None:
    found = placed({"env": "0,4-7", "rollout": "0-3,4", "actor": "all"}, TWO_NODES, num_envs=20)
    assert found.warnings == ("environments are spread unevenly: from 1 to 16 a device",)


# --- CPU slots


def test_a_machine_without_accelerators_has_as_many_slots_as_are_named_and_says_so() -> None:
    found = placed(HYBRID, LAPTOP)
    assert {process.kind for process in found.processes} == {"cpu"}
    assert found.warnings == ("8 CPU slots (0-7) share the 2 CPUs of node 0",)
    assert len(placed(SHARED, LAPTOP).actor) == 2, "all are the CPUs there are"
    assert not placed(SHARED, LAPTOP).warnings


def test_slots_that_were_counted_are_not_exceeded() -> None:
    with pytest.raises(ConfigError, match="there is no device 4"):
        placed(HYBRID, Cluster((Node(cpus=2, slots=4),)))


# --- sharing and weights


def test_roles_that_take_turns_on_a_device_make_room_for_each_other() -> None:
    hybrid = placed(HYBRID)
    assert [process.offloads for process in hybrid.env] == [False] * 4, "simulators keep what they hold"
    assert [process.offloads for process in hybrid.rollout] == [True] * 4
    assert hybrid.actor[0].shares_with == (("env", 0),)
    assert hybrid.rollout[0].shares_with == (("actor", 4),)
    assert all(process.offloads for process in hybrid.actor)
    assert not any(process.offloads or process.shares_with for process in placed(SEPARATE).processes)
    beside = placed({"env,rollout": "0-3", "actor": "4-7"})
    assert not any(process.offloads for process in beside.processes), "rendering and acting go on at the same time"


def test_weights_come_from_the_nearest_actor_and_no_actor_has_more_to_do_than_it_must() -> None:
    assert [(feed.actor, feed.way) for feed in placed(HYBRID).feeds] == [(i, "same device") for i in range(4, 8)]
    assert [(feed.actor, feed.way) for feed in placed(SEPARATE).feeds] == [(i % 2, "same node") for i in range(4)]
    found = placed({"env,rollout": "all", "actor": "3,7"}, TWO_NODES)
    assert [feed.actor for feed in found.feeds] == [0] * 4 + [1] * 4


# --- what people see


def test_the_table_says_where_everything_is(capsys: pytest.CaptureFixture[str]) -> None:
    table(*placed({"env": "0", "rollout": "1", "actor": "0-1"}, num_envs=4).table())
    said = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    lines = [[cell.strip() for cell in line if cell.strip()] for line in said]
    assert lines[0] == ["placement: hybrid, 1 node with 8 GPUs"]
    assert lines[2:] == [
        ["env 0", "0", "gpu 0", "0-3 of rollout 0", "actor 0"],
        [
            "rollout 0",
            "0",
            "gpu 1",
            "0-3 on gpu 0",
            "2, 2 at once",
            "actor 1",
            "off-loads",
            "from actor 1, same device",
        ],
        ["actor 0", "0", "gpu 0", "env 0", "off-loads"],
        ["actor 1", "0", "gpu 1", "rollout 0", "off-loads", "to rollout 0"],
    ]


def test_a_plan_is_made_without_ray_or_torch() -> None:
    code = (
        "import sys, manyarms.placement.plan; sys.exit(bool({'ray', 'torch', 'rich', 'omegaconf'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
