"""What is written over many worlds says of each what it says of that world alone, in numpy and in torch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from manyarms.simulators.base import SpecError
from manyarms.simulators.tabletop.control import Controller
from manyarms.simulators.tabletop.expert import Expert
from manyarms.simulators.tabletop.observation import ROBOT_FIELDS, observe_robot
from manyarms.simulators.tabletop.planning import Planner
from manyarms.simulators.tabletop.scene import TABLE_HEIGHT, block, model_xml
from manyarms.simulators.tabletop.simulator import TabletopSimulator
from manyarms.simulators.tabletop.task import TabletopTask, begin, discover
from manyarms.simulators.tabletop.world import World
from manyarms.simulators.tabletop.worlds import STATE, BatchOfOne, Worlds

TASKS = discover()
NAMESPACES = {"numpy": np, "torch": torch}


class Several(Worlds):
    """Worlds whose physics runs one by one, in one batch whose arrays are its own, of numpy or torch."""

    def __init__(self, worlds: list[World], xp: Any = np, waits: bool = True) -> None:
        """Say of no mask that it holds for all, as a device that does not wait, unless it `waits`."""
        self.xp, self._waits = xp, waits
        self._worlds, self._ones = worlds, [BatchOfOne(world) for world in worlds]
        super().__init__(worlds[0])
        self.rows = self.integers(range(len(worlds)))
        self.look()

    def look(self) -> None:
        for name in STATE:
            setattr(self, name, self._gathered([getattr(one, name) for one in self._ones]))

    def _gathered(self, rows: list[Any]) -> Any:
        return self.array(np.concatenate(rows))

    def _each(self, operation: str, *arrays: Any) -> Any:
        """Return what an operation gives for each world alone."""
        rows = [[np.asarray(array[i : i + 1]) for array in arrays] for i in range(len(self._ones))]
        return self._gathered([getattr(one, operation)(*row) for one, row in zip(self._ones, rows, strict=True)])

    @property
    def remembered(self) -> dict[str, Any]:
        names = self._worlds[0].remembered
        return {name: self.integers([world.remembered[name][0] for world in self._worlds]) for name in names}

    def advance(self, busy: Any = None) -> None:
        for i, world in enumerate(self._worlds):
            if busy is None or busy[i]:
                world.data.ctrl[:] = np.asarray(self.ctrl[i])
                world.advance()
        self.look()

    def tip_at(self, joints: Any) -> tuple[Any, Any, Any]:
        found = [one.tip_at(np.asarray(joints[i : i + 1])) for i, one in enumerate(self._ones)]
        position, rotation, jacobian = (self._gathered(list(rows)) for rows in zip(*found, strict=True))
        return position, rotation, jacobian

    def touching(self, first: str, second: str) -> Any:
        found = [world.touching(first, second) for world in self._worlds]
        return np.array(found) if self.xp is np else torch.tensor(found)

    def touch_forces(self) -> Any:
        return self._each("touch_forces")

    def array(self, values: Any) -> Any:
        array = np.asarray(values, np.float64)
        return array if self.xp is np else torch.as_tensor(array)

    def integers(self, values: Any) -> Any:
        array = np.asarray(list(values))
        return array if self.xp is np else torch.as_tensor(array)

    def all_set(self, mask: Any) -> bool:
        return self._waits and bool(mask.all())

    def solve(self, matrices: Any, columns: Any) -> Any:
        return self.xp.linalg.solve(matrices, columns)

    def largest(self, values: Any) -> Any:
        return self.xp.amax(values, axis=1, keepdims=True)

    def copy(self, array: Any) -> Any:
        return array.copy() if self.xp is np else array.clone()

    def quat_to_matrix(self, quats: Any) -> Any:
        return self._each("quat_to_matrix", quats)

    def matrix_to_quat(self, matrices: Any) -> Any:
        return self._each("matrix_to_quat", matrices)

    def rotation_matrix(self, vectors: Any) -> Any:
        return self._each("rotation_matrix", vectors)

    def rotation_vector(self, matrices: Any) -> Any:
        return self._each("rotation_vector", matrices)


def started(task: TabletopTask, episodes: range) -> list[World]:
    """Return a world per episode, laid out."""
    worlds = []
    for episode in episodes:
        world = World(task.xml())
        begin(task, world, episode)
        worlds.append(world)
    return worlds


def played(task: TabletopTask, episode: int, share: float) -> World:
    """Return a world in which the expert has come so far on its way."""
    world = World(task.xml())
    variation = begin(task, world, episode)
    controller, expert = Controller(BatchOfOne(world), "ik"), Expert(task, world, variation, "ik")
    for _ in range(int(share * 16)):
        controller.apply(expert.act()[None])
    return world


def seen(worlds: Worlds) -> dict[str, np.ndarray]:
    """Return what is observed of the robot."""
    count = len(worlds.rows)
    out = {name: worlds.array(np.zeros((count, *shape))) for name, shape in ROBOT_FIELDS.items()}
    observe_robot(worlds, out)
    return {name: np.asarray(value) for name, value in out.items()}


@pytest.mark.parametrize("task", sorted(TASKS))
def test_goals_and_observations_of_many_worlds_are_those_of_each(task: str) -> None:
    chosen = TASKS[task]()
    worlds = [played(chosen, episode, share) for episode, share in enumerate((0.0, 0.3, 0.6, 0.8, 1.0, 1.0))]
    ones = [BatchOfOne(world) for world in worlds]
    solved = [bool(chosen.succeeded(one)[0]) for one in ones]
    assert len({int(one.variation[0]) for one in ones}) > 1 or len(chosen.variations) == 1
    assert any(solved)
    assert not all(solved)
    for xp in NAMESPACES.values():
        batch = Several(worlds, xp)
        for name in ("succeeded", "progress", "state"):
            expected = np.concatenate([getattr(chosen, name)(one) for one in ones])
            np.testing.assert_allclose(np.asarray(getattr(chosen, name)(batch)), expected, atol=1e-12, err_msg=name)
        observed = seen(batch)
        for i, one in enumerate(ones):
            for name, value in seen(one).items():
                np.testing.assert_allclose(observed[name][i], value[0], atol=1e-12, err_msg=name)


def actions(mode: str, step: int) -> np.ndarray:
    """Return an action for each of four worlds: two move, the third grips as well, and the fourth's is refused."""
    rng = np.random.default_rng(step)
    if mode == "delta_ee":
        chosen = rng.uniform(-0.5, 0.5, (4, 7))
    elif mode in ("ik", "planning"):
        places = rng.uniform((0.0, -0.3, 1.1), (0.4, 0.3, 1.4), (4, 3))
        chosen = np.concatenate([places, np.tile([0.0, 1.0, 0.0, 0.0, 1.0], (4, 1))], axis=1)
        # Not a rotation, outside, out of reach: another one at each step.
        chosen[3, :3], chosen[3, 4] = [((0.2, 0.0, 1.2), 0.5), ((2.0, 0.0, 1.2), 1.0), ((0.7, 0.6, 1.7), 1.0)][step % 3]
        chosen[2, 7] = step % 2
    else:
        low, high = (-0.4, 0.4) if mode == "joint_velocity" else (-0.3, -0.1)
        chosen = np.append(rng.uniform(low, high, (4, 7)), np.ones((4, 1)), axis=1)
        chosen[2, 7] = step % 2
    return chosen.astype(np.float32)


#: Modes and namespaces; paths are planned on the host.
WAYS = [*itertools.product(("ik", "delta_ee", "joint_position", "joint_velocity"), NAMESPACES), ("planning", "numpy")]


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "does_not_wait"])
@pytest.mark.parametrize(("mode", "namespace"), WAYS)
def test_actions_move_each_of_many_worlds_as_they_move_it_alone(mode: str, namespace: str, waits: bool) -> None:
    task = TASKS["reach_target"]()
    together, alone = started(task, range(4)), started(task, range(4))
    batch = Several(together, NAMESPACES[namespace], waits)
    controller = Controller(batch, mode, [Planner(world) for world in together])
    single = [Controller(BatchOfOne(world), mode, [Planner(world)]) for world in alone]
    for step in range(3):
        chosen = actions(mode, step)
        refused = controller.apply(chosen)
        expected = [one.apply(chosen[i : i + 1]) for i, one in enumerate(single)]
        if refused is not None:
            assert refused.tolist() == [int(each[0]) for each in expected if each is not None]
            assert refused.tolist() == [0, 0, 0, step % 3 + 1]
        for world, other in zip(together, alone, strict=True):
            assert world.data.time == pytest.approx(other.data.time)
            np.testing.assert_allclose(world.data.qpos, other.data.qpos, atol=1e-7)
            np.testing.assert_allclose(world.data.ctrl, other.data.ctrl, atol=1e-7)


def test_a_layout_is_all_that_an_episode_begins_from() -> None:
    for task in (TASKS[name]() for name in ("close_drawer", "slide_block_to_target", "stack_blocks")):
        (world,), other = started(task, range(5, 6)), World(task.xml())
        layout = world.layout()
        begin(task, other, 6)
        for name, rows in layout.model.items():
            getattr(other.model, name)[:] = rows[0]
        other.data.qpos[:], other.data.ctrl[:] = layout.qpos[0], layout.ctrl[0]
        other.remembered = layout.remembered
        other.forward()
        first, second = BatchOfOne(world), BatchOfOne(other)
        assert task.state(first).tobytes() == task.state(second).tobytes()
        assert task.progress(first).tobytes() == task.progress(second).tobytes()
        assert (world.model.geom_rgba == other.model.geom_rgba).all()


class Remembering(TabletopTask):
    """Lift the block to a height that stands nowhere in the scene."""

    name = "remembering"

    def xml(self) -> str:
        return model_xml(block("block", 0.025))

    def lay_out(self, world: World, rng: np.random.Generator, variation: int) -> None:
        world.place("block", (0.3, 0.0, TABLE_HEIGHT + 0.025))
        world.remember(height=rng.uniform(0.05, 0.2), corner=rng.uniform(-1, 1, 2))

    def succeeded(self, worlds: Worlds) -> Any:
        return worlds.position("block")[:, 2] - TABLE_HEIGHT > worlds.remembered["height"]

    def state(self, worlds: Worlds) -> Any:
        return worlds.remembered["corner"]

    def expert(self, world: World, variation: int) -> Any:
        yield from ()


class OfOneWorld(Remembering):
    """A goal as it was written before there were many worlds."""

    def succeeded(self, worlds: Worlds) -> Any:
        return bool(worlds.position("block")[0, 2] > 1.0)


class Chooses(Remembering):
    """A goal that `and` makes one of all worlds."""

    def succeeded(self, worlds: Worlds) -> Any:
        return worlds.position("block")[:, 2] > 1.0 and worlds.grasped("block")


class Flat(Remembering):
    """A state without a row for each world."""

    def state(self, worlds: Worlds) -> Any:
        return worlds.position("block")[0]


def test_numbers_of_an_episode_are_remembered_until_the_next() -> None:
    simulator = TabletopSimulator("test_worlds:Remembering", cameras=())
    first, second = [], []
    for seed, found in ((0, first), (1, second), (0, first)):
        simulator.reset(None, seed, None)
        out = {name: np.zeros(field.shape, field.dtype) for name, field in simulator.spec.layout().items()}
        simulator.observe(out, ())
        found.append(out["task_low_dim_state"].tolist())
    assert first[0] == first[1] != second[0]


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("OfOneWorld", r"remembering.succeeded\(\) .* of two worlds it returned the shape \(\)"),
        ("Chooses", r"remembering.succeeded\(\) .* it raised ValueError\('The truth value"),
        ("Flat", r"remembering.state\(\) .* of two worlds it returned the shape \(3,\)"),
    ],
)
def test_a_task_that_answers_for_one_world_only_is_refused_in_words(task: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        TabletopSimulator(f"test_worlds:{task}", cameras=())
