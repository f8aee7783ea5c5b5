"""What holds for every placement, whatever is written and whichever the machines."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from clusters import EIGHT_GPUS, LAPTOP, TWO_NODES
from manyarms.errors import ManyarmsError
from manyarms.placement.environments import Totals
from manyarms.placement.plan import plan
from manyarms.placement.ranks import parse_ranks, written
from manyarms.placement.topology import Cluster, Node


@given(st.sets(st.integers(0, 99), min_size=1))
def test_numbers_are_read_as_they_are_written(numbers: set[int]) -> None:
    spans = [parse_ranks(word, "here") for word in written(sorted(numbers)).split(",")]
    assert [number for span in spans for number in span] == sorted(numbers)
    assert all(left.stop < right.start for left, right in pairwise(spans)), "neighbours are written as one range"


@st.composite
def placements(draw: st.DrawFn) -> tuple[dict[str, str], Cluster, Totals]:
    """Draw something that can be placed: env and rollout on the same nodes, actors anywhere."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    accelerated = draw(st.booleans())
    cluster = Cluster(tuple(Node(size, 8) if accelerated else Node(cpus=size) for size in sizes))
    firsts = [sum(sizes[:i]) for i in range(len(sizes))]
    nodes = draw(st.sets(st.sampled_from(range(len(sizes))), min_size=1))

    def ids(chosen: set[int]) -> list[int]:
        own = [st.sets(st.integers(firsts[n], firsts[n] + sizes[n] - 1), min_size=1) for n in sorted(chosen)]
        return draw(st.permutations([i for some in own for i in draw(some)]))

    def crowded(devices: list[int], most: int) -> str:
        """Put several processes on each device."""
        parts, first = [], 0
        for device in devices:
            count = draw(st.integers(1, most))
            parts.append(f"{device}:{first}-{first + count - 1}")
            first += count
        return ",".join(parts)

    env, rollout = crowded(ids(nodes), 3), crowded(ids(nodes), 2)
    actor = ",".join(map(str, ids(draw(st.sets(st.sampled_from(range(len(sizes))), min_size=1)))))
    unit = draw(st.integers(1, 4))
    # Enough that every node's rollout processes bring an environment for each of its places.
    least = 36 * max(1, rollout.count(",") + 1) * 2
    totals = Totals(
        unit * draw(st.integers(least, least + 40)) - draw(st.integers(0, unit - 1)),
        rows_per_worker=unit,
        lockstep=draw(st.booleans()),
        pipeline_stage_num=draw(st.integers(1, 4)),
    )
    return {"env": env, "rollout": rollout, "actor": actor}, cluster, totals


@settings(max_examples=150, deadline=None)
@given(placements())
def test_every_process_has_its_place_and_every_environment_one_owner(
    drawn: tuple[dict[str, str], Cluster, Totals],
) -> None:
    component_placement, cluster, totals = drawn
    found = plan(component_placement, cluster, totals)
    firsts = [sum(n.accelerators or n.cpus for n in cluster.nodes[:i]) for i in range(len(cluster.nodes))]
    for role, processes in found.roles.items():
        assert [process.rank for process in processes] == list(range(len(processes)))
        named = {int(part.partition(":")[0]) for part in component_placement[role].split(",")}
        assert {firsts[p.node] + device for p in processes for device in p.devices} == named
        assert all(len(process.devices) == 1 for process in processes)

    everything = list(range(totals.num_envs))
    assert [row for process in found.rollout for row in process.rows] == everything, "ranks own rows in order"
    assert sorted(row for share in found.simulators for row in share.rows) == everything
    assert sorted(row for process in found.env for row in process.rows) == everything
    for process in found.rollout:
        shares = found.simulators_of(process.rank)
        assert tuple(row for share in shares for row in share.rows) == process.rows
        assert {share.slot.node for share in shares} == {process.node}, "pixels stay on one machine"
    for share in found.simulators:
        assert share.slot in found.env[share.env].slots
        assert (share.workers - 1) * totals.rows_per_worker < len(share.rows) <= share.workers * totals.rows_per_worker


@settings(max_examples=150, deadline=None)
@given(placements())
def test_work_is_even_and_groups_stay_whole(drawn: tuple[dict[str, str], Cluster, Totals]) -> None:
    found = plan(*drawn)
    totals = found.totals
    owned = [len(process.rows) for process in found.rollout]
    assert max(owned) - min(owned) < 2 * totals.unit
    for node in {process.node for process in found.env}:
        here = [len(process.rows) for process in found.env if process.node == node]
        assert max(here) - min(here) < 2 * totals.unit
    if totals.lockstep:
        owner = {row: (share.rollout, share.env) for share in found.simulators for row in share.rows}
        assert all(owner[row] == owner[row - row % totals.unit] for row in owner)
    for process in found.rollout:
        assert process.stages == min(totals.pipeline_stage_num, -(-len(process.rows) // totals.unit))
        assert process.stage_rows * process.stages >= len(process.rows), "no row is left without a stage"
        assert process.stage_rows % totals.unit == 0 or process.stage_rows == len(process.rows)


@settings(max_examples=150, deadline=None)
@given(placements())
def test_no_device_is_used_twice_where_it_must_not_and_who_shares_is_told(
    drawn: tuple[dict[str, str], Cluster, Totals],
) -> None:
    found = plan(*drawn)
    learning = Counter((process.node, device) for process in found.actor for device in process.devices)
    assert set(learning.values()) == {1}
    by_name = {(process.role, process.rank): process for process in found.processes}
    for name, process in by_name.items():
        for other_name in process.shares_with:
            assert name in by_name[other_name].shares_with, "sharing is mutual"
    sharing = any(process.shares_with for process in found.processes)
    assert sharing == (found.layout != "separate")
    if found.layout == "shared":
        assert {role for process in found.env for role, _ in process.shares_with} == {"rollout", "actor"}

    assert [feed.rollout for feed in found.feeds] == list(range(len(found.rollout)))
    for feed in found.feeds:
        process, source = found.rollout[feed.rollout], found.actor[feed.actor]
        on_device = any(role == "actor" for role, _ in process.shares_with)
        assert (feed.way == "same device") == on_device == (("actor", feed.actor) in process.shares_with)
        assert (feed.way == "other node") == all(actor.node != process.node for actor in found.actor)
        assert (feed.way == "other node") == (source.node != process.node)
    assert len(found.table().rows) == len(found.processes)


words = st.text("0123456789-,: al", max_size=12) | st.integers(-3, 200) | st.none() | st.booleans() | st.floats()
entries = words | st.dictionaries(st.sampled_from(["node_group", "placement", "x"]), words)


@settings(max_examples=400, deadline=None)
@given(entries, st.sampled_from(["env", "rollout", "actor"]), st.sampled_from([EIGHT_GPUS, TWO_NODES, LAPTOP]))
def test_whatever_is_written_is_placed_or_refused_in_words(entry: object, role: str, cluster: Cluster) -> None:
    whole = {"env": "all", "rollout": "all", "actor": "all"} | {role: entry}
    refused = None
    try:
        assert plan(whole, cluster, Totals(1000)).table().rows
    except ManyarmsError as error:
        refused = error
    assert refused is None or refused.why or refused.do
