"""The page about placement: what was measured, and what it says of a cluster."""

from __future__ import annotations

from typing import Any

#: What machines of a cluster usually have.
_NETWORK = 1.25e9  # bytes a second: 10 Gbit/s
_ENVS = 64  # a node
_MODEL = 14e9  # bytes of a VLA's weights


def page(found: dict[str, Any], num_envs: int, image_size: int, chunk: int, rounds: int, machine: str) -> str:
    """Write it."""
    path, overlap = found["path"], found["overlap"]
    weights = "\n".join(
        f"| {size} MB | {1e3 * times['object_store']:.1f} ms | {1e3 * times['broadcast']:.1f} ms |"
        for size, times in found["weights"].items()
    )
    ways = ("loop", "plain", "placed")
    chunks = " | ".join(f"{path[f'{way}_chunk_ms']:.2f} ms" for way in ways)
    episodes = " | ".join(f"{path[f'{way}_episode_ms']:.1f} ms" for way in ways)
    against_loop = _percent(path["loop_ratio"], path["loop_worst"], path["loop_best"])
    against_plain = _percent(path["ratio"], path["worst"], path["best"])
    return f"""# Roles in processes of their own

{num_envs} environments (tabletop/push_button, two cameras of {image_size}×{image_size}), chunks of {chunk} actions, a
convolutional policy; {machine}. Medians of {rounds} rounds, in turn. Made with `python benchmarks/placement.py`.

## The way of an episode

The same environments and policy: in a loop of one process, which steps one simulator after the other and then asks the
policy; in one plain process with workers; and in a rollout process whose episodes are fetched by another:

| | a loop, no workers | one plain process | placed |
|---|---:|---:|---:|
| a chunk's round trip | {chunks} |
| an episode, from its start to where it is learnt from | {episodes} |
| placed against it, by pairs | {against_loop} | {against_plain} | 100 % |

An episode weighs {path["episode_kb"]:,.0f} kB and travels once: from the process that played it into its node's object
store, from which the one learner that it is dealt to reads it. Pixels on their way from simulator to policy travel
nowhere: a rollout process shares memory with its simulators.

## New weights

Packed, and given to two processes of the same node:

| weights | object store | broadcast (gloo) |
|---|---:|---:|
{weights}

## Playing and learning at once

Simulation and learning that sleep for 0.64 s an update each:

| | an update |
|---|---:|
| in turn (`max_staleness: 0`) | {overlap["turns"]:.2f} s |
| at once (`max_staleness: 1`) | {overlap["at_once"]:.2f} s |
| faster by | {overlap["turns"] / overlap["at_once"]:.2f} |

## Hundreds of nodes

{_extrapolated(found, num_envs)}"""


def _extrapolated(found: dict[str, Any], num_envs: int) -> str:
    path, driver, weights = found["path"], found["driver"], found["weights"]
    call = driver["call_ms"]
    fetched = _NETWORK / (1e3 * path["episode_kb"])
    played = _ENVS * 1e3 / path["placed_episode_ms"] / num_envs
    largest = max(weights)
    copy = 1e3 * weights[largest]["object_store"] / largest
    once = _MODEL / _NETWORK
    return f"""Not measured, but worked out from the numbers above, for nodes of {_ENVS} environments and a network of
10 Gbit/s.

- **The driver** holds the schedule and sees reports, never episodes. A call that plays {driver["episodes_a_call"]:.0f}
  episodes costs it {call:.2f} ms of CPU. A rollout process needs one call an update (two or three where groups are
  played in vain): with 500 processes, {500 * call / 1e3:.2f} s an update. Nobody notices where an update takes a
  minute; where it takes a second or two, the driver is the limit, and an update should play more episodes.
- **Learners** fetch {path["episode_kb"]:,.0f} kB an episode: the network of a node brings {fetched:,.0f} a second,
  while {_ENVS} environments as fast as these play {played:,.0f} a second. A learner node is fed by about
  {max(1, fetched / played):,.0f} such nodes before its network is the limit. Beyond that, place more learners: each
  fetches only its share. Bigger images move the limit in proportion.
- **Weights** go out once an update, come to a node once, whatever the number of its rollout processes, and cost
  {copy:.1f} ms a MB there. Between nodes a model of {_MODEL / 1e9:.0f} GB takes {once:.0f} s. Nodes fetch from any
  that has it already, so that 256 of them need about eight times that, {8 * once:.0f} s, not 256 times.
  `max_staleness: 1` hides it behind learning where that takes longer; a faster network shortens it.
- **A round ends with its slowest process.** Each process plays its share of the schedule; with hundreds, the slowest
  decides when all are there. `max_staleness: 1` lets the others play on.
- **Deaths** become usual. A rollout process or its node costs what it had under way. The learners are one group: when
  one dies, all go back to the last checkpoint, so save often where there are many.
"""


def _percent(median: float, worst: float, best: float) -> str:
    return f"{100 * median:.0f} % ({100 * worst:.0f} to {100 * best:.0f} %)"
