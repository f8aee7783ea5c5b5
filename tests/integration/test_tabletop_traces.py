"""Tabletop is what it was: every task in every action mode, against traces that an earlier commit has left.

A trace is an episode of the expert's, some actions at random, a saved state. `tests/data/tabletop_traces.json` has of
each a few numbers from its beginning and a hash of every bit of it. The bits depend on how MuJoCo, numpy and the CPU
round, so they are compared where those come to the same bits without us (`machine`); the numbers are compared always.
``python tests/integration/test_tabletop_traces.py`` writes the traces anew with whichever manyarms is imported.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyarms.simulators.tabletop.physics import mujoco
from manyarms.simulators.tabletop.simulator import TabletopSimulator
from manyarms.simulators.tabletop.task import discover

TRACES = Path(__file__).resolve().parent.parent / "data" / "tabletop_traces.json"

#: How many actions of the expert's are taken in each mode, and how many at random after them.
ACTIONS = {
    "ik": (16, 8),
    "planning": (8, 4),
    "delta_ee": (50, 20),
    "joint_position": (40, 15),
    "joint_velocity": (40, 15),
}

#: Actions before which nothing has been touched yet: how far the numbers are the same on any machine.
EARLY = {"ik": 2, "planning": 2, "delta_ee": 8, "joint_position": 8, "joint_velocity": 8}

_FALLING = """
<mujoco><option integrator="implicitfast" cone="elliptic"/><worldbody><geom type="plane" size="1 1 1"/>
<body pos="0 0 .3"><freejoint/><geom type="box" size=".1 .1 .1"/></body>
<body pos="0 0 .6" euler="20 30 0"><freejoint/><geom type="capsule" size=".05 .1"/></body></worldbody></mujoco>
"""


def machine() -> str:
    """Return a hash of what arithmetic comes to here, without anything of ours."""
    model = mujoco.MjModel.from_xml_string(_FALLING)
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, nstep=500)
    values = np.random.default_rng(0).normal(size=(64, 6, 7))
    squares = values @ values.swapaxes(1, 2) + np.eye(6)
    found = [data.qpos, squares, np.linalg.solve(squares, values[:, :, :1]), np.exp(values), np.sin(values)]
    return hashlib.sha256(b"".join(array.tobytes() for array in found)).hexdigest()[:16]


def random_action(rng: np.random.Generator, simulator: TabletopSimulator, mode: str, number: int) -> np.ndarray:
    """Return an action: small, large, without a turn, out of reach, no pose at all."""
    field = simulator.spec.actions[""]
    if mode == "delta_ee":
        action = rng.uniform(-1, 1, 7)
        action[3:6] *= number % 5 > 0
    elif mode in ("ik", "planning"):
        turn = np.array([0, 1, 0, 0]) + 0.15 * rng.normal(size=4)
        turn *= (1.1 if number % 4 == 1 else 1.0) / np.linalg.norm(turn)
        action = np.array([*rng.uniform((-0.1, -0.5, 0.78), (0.6, 0.5, 1.5)), *turn, rng.integers(2)])
        action[0] += 1.2 * (number % 4 == 2)
    else:
        action = rng.uniform(field.low, field.high)
        action[:7] *= 0.5 if mode == "joint_velocity" else 1.0
    return action.astype(np.float32)


def trace(task: str, mode: str) -> dict[str, Any]:
    """Return what an episode came to."""
    simulator = TabletopSimulator(task, cameras=(), arm_mode=mode, shaped_rewards=True, expert=True)
    out = {name: np.zeros(field.shape, field.dtype) for name, field in simulator.spec.layout().items()}
    rng, bits, early, refused, solved = np.random.default_rng(7), hashlib.sha256(), [], 0, False
    by_expert, at_random = ACTIONS[mode]
    simulator.reset(None, 3, None)
    saved = None
    for i in range(by_expert + at_random):
        simulator.observe(out, ())
        action = out["expert_action"].copy() if i < by_expert else random_action(rng, simulator, mode, i)
        result = simulator.step(action)
        solved |= bool(result.success)
        refused += "invalid_action" in simulator.info()
        bits.update(np.array([float(value) for value in result]).tobytes())
        bits.update(b"".join(out[name].tobytes() for name in sorted(out)))
        if i + 1 == EARLY[mode]:
            early = [*out["gripper_pose"], *out["joint_positions"], *out["task_low_dim_state"], result.reward]
        if i == by_expert // 2:
            saved = simulator.save_state()
    simulator.load_state(saved)
    simulator.observe(out, ())
    bits.update(b"".join(out[name].tobytes() for name in sorted(out)))
    return {
        "bits": bits.hexdigest()[:16],
        "early": [round(float(value), 5) for value in early],
        "solved": solved,
        "refused": refused,
    }


RECORDED = json.loads(TRACES.read_text()) if TRACES.exists() else {"traces": {}}


@pytest.mark.parametrize("mode", ACTIONS)
@pytest.mark.parametrize("task", sorted(discover()))
def test_episodes_come_to_what_they_came_to_before(task: str, mode: str) -> None:
    before, now = RECORDED["traces"][f"{task}/{mode}"], trace(task, mode)
    np.testing.assert_allclose(now["early"], before["early"], atol=1e-4)
    if machine() == RECORDED["machine"]:
        assert now == before


if __name__ == "__main__":
    found = {f"{task}/{mode}": trace(task, mode) for task in sorted(discover()) for mode in ACTIONS}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
    TRACES.write_text(f'{{"machine": "{machine()}", "traces": {{\n{lines}\n}}}}\n')
