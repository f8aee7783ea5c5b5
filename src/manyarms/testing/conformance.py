"""Each check drives a simulator through real workers, as users will, and asserts one promise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from manyarms.environments import EnvConfig, SimulatorSettings
from manyarms.errors import ActionError
from manyarms.simulators.base import flatten
from manyarms.vector import Chunk, EpisodeId, VectorEnv
from manyarms.vector.config import name_of

_SEED = 7


@dataclass(frozen=True)
class Subject:
    """The simulator under test."""

    simulator: Any
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0
    """How far two runs from the same seed may drift; 0: bit for bit."""
    steps: int = 12
    """How long each check runs; lower it for slow simulators."""
    ignore: Sequence[str] = ()
    """Observation fields that may differ between two runs, as contact forces do."""

    def make(self, num_envs: int = 2, **settings: Any) -> VectorEnv:
        """Make a vector environment of it."""
        simulator = SimulatorSettings(name_of(self.simulator))
        return EnvConfig((simulator,), {**self.options, **settings}, action_bounds="error", copy=True).make(num_envs)

    def actions(self, envs: VectorEnv, count: int, seed: int = 0) -> list[Any]:
        """Return random single actions, the same for the same seed."""
        envs.single_action_space.seed(seed)
        return [envs.single_action_space.sample() for _ in range(count)]

    def equal(self, a: Any, b: Any) -> bool:
        """Compare two observations."""
        one, two = flatten(a), flatten(b)
        if one.keys() != two.keys():
            return False
        names = [name for name in one if name not in self.ignore]
        if self.tolerance:
            return all(self.near(one[k], two[k]) for k in names)
        return all(np.array_equal(one[k], two[k]) for k in names)

    def near(self, a: Any, b: Any) -> bool:
        """Compare two arrays of one shape."""
        return np.allclose(a, b, rtol=self.tolerance, atol=self.tolerance)


def stack(actions: Sequence[Any]) -> Any:
    """Batch actions along a new first axis, in whatever structure they have."""
    if isinstance(actions[0], dict):
        return {key: stack([action[key] for action in actions]) for key in actions[0]}
    return np.stack([np.asarray(action) for action in actions])


def repeat(tree: Any, rows: int) -> Any:
    """Give every row the same actions."""
    if isinstance(tree, dict):
        return {key: repeat(branch, rows) for key, branch in tree.items()}
    return np.repeat(tree[None], rows, axis=0)


def row_of(observations: Any, row: int) -> Any:
    """Return one row's observation, copied."""
    return {name: np.copy(values[row]) for name, values in flatten(observations).items()}


def play(envs: VectorEnv, row: int, seed: int, chunks: Sequence[Any]) -> Iterator[Chunk]:
    """Run an episode in one row by itself; yield what each chunk brought."""
    envs.begin([row], EpisodeId(seed=seed))
    first = envs.recv()
    yield first
    for chunk in chunks:
        envs.send([row], repeat(chunk, 1))
        result = envs.recv()
        yield result
        if result.ended.any():
            return


def play_both(envs: VectorEnv, seed: int, chunks: Sequence[Any]) -> list[Any]:
    """Run two rows at once from neighbouring seeds; return row 0's observations."""
    envs.begin([0, 1], [EpisodeId(seed=seed), EpisodeId(seed=seed + 100)])
    live = [0, 1]
    seen = []
    for chunk in [None, *chunks]:
        if chunk is not None:
            envs.send(live, repeat(chunk, len(live)))
        result = envs.recv(min_rows=len(live))
        assert result.rows.tolist() == live
        if 0 in live:
            seen.append(row_of(result.observations, 0))
        live = result.rows[~result.ended].tolist()
        if 0 not in live:
            break
    return seen


def check_observations_match_the_spaces(subject: Subject) -> None:
    """Every observation is what the spec promised: names, shapes, dtypes, bounds."""
    with subject.make() as envs:
        observations, _ = envs.reset(seed=_SEED)
        assert observations in envs.observation_space, "the first observation is not in the observation space"
        for action in subject.actions(envs, subject.steps):
            observations, *_ = envs.step(stack([action, action]))
            assert observations in envs.observation_space, "an observation is not in the observation space"


def check_same_seed_gives_the_same_episode(subject: Subject) -> None:
    """An episode follows from its seed: in another process, after other episodes, beside other rows."""
    with subject.make(num_envs=2) as envs, subject.make(num_envs=1) as alone:
        actions = [stack([action]) for action in subject.actions(envs, subject.steps)]
        play_both(envs, _SEED + 1, actions[:3])  # an episode before it must leave no trace
        ours = play_both(envs, _SEED, actions)
        theirs = [row_of(chunk.observations, 0) for chunk in play(alone, 0, _SEED, actions)]
        assert len(ours) == len(theirs), "the episode's length differs"
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert subject.equal(a, b), f"observation {i} differs between two runs from the same seed"


def check_a_chunk_equals_its_steps(subject: Subject) -> None:
    """K actions in one call do what K calls do."""
    with subject.make(num_envs=1) as envs:
        actions = subject.actions(envs, subject.steps)
        singles = list(play(envs, 0, _SEED, [stack([action]) for action in actions]))[1:]
        singly = [row_of(chunk.observations, 0) for chunk in singles]
        rewards = [chunk.rewards[0, 0] for chunk in singles]
        whole = list(play(envs, 0, _SEED, [stack(actions)]))[-1]
        assert whole.num_steps[0] == len(singles), "a chunk runs another number of steps than single steps do"
        assert subject.near(whole.rewards[0, : len(rewards)], rewards), "rewards differ"
        assert not whole.rewards[0, len(rewards) :].any(), "rewards after the end must be zero"
        assert subject.equal(row_of(whole.observations, 0), singly[-1]), "the last observation differs"
        ends = (whole.terminated[0], whole.truncated[0])
        assert ends == (singles[-1].terminated[0], singles[-1].truncated[0]), "the end differs"


def check_time_limit_truncates(subject: Subject) -> None:
    """An episode is truncated after `max_episode_steps`, no step later."""
    limit = max(2, subject.steps // 2)
    with subject.make(num_envs=1, max_episode_steps=limit) as envs:
        actions = stack(subject.actions(envs, limit + 2))
        chunk = list(play(envs, 0, _SEED, [actions]))[-1]
        assert chunk.num_steps[0] <= limit, "the episode ran past its time limit"
        if chunk.num_steps[0] == limit:
            assert chunk.truncated[0], "the time limit did not truncate"


def check_rows_do_not_disturb_each_other(subject: Subject) -> None:
    """Rows with chunks of different lengths that end at different times each live their own episode."""
    rows = 3
    with subject.make(num_envs=rows) as envs, subject.make(num_envs=1) as alone:
        actions = [subject.actions(envs, subject.steps, seed=row) for row in range(rows)]
        lengths = [max(1, subject.steps - 4 * row) for row in range(rows)]
        envs.begin(range(rows), [EpisodeId(seed=_SEED + row) for row in range(rows)])
        envs.recv(min_rows=rows)
        envs.send(range(rows), stack([stack(row) for row in actions]), lengths)
        together = envs.recv(min_rows=rows)
        assert len(together) == rows
        for row in range(rows):
            single = list(play(alone, 0, _SEED + row, [stack(actions[row][: lengths[row]])]))[-1]
            assert together.num_steps[row] == single.num_steps[0], f"row {row} ran another number of steps"
            assert subject.equal(row_of(together.observations, row), row_of(single.observations, 0)), (
                f"row {row} differs from the same episode run alone"
            )


def check_autoreset_goes_on(subject: Subject) -> None:
    """With the default mode, the call after an end begins the next episode and steps nothing."""
    with subject.make(num_envs=2, max_episode_steps=3) as envs:
        envs.reset(seed=_SEED)
        actions = repeat(stack(subject.actions(envs, 5)), 2)
        first = envs.step_chunk(actions)
        assert first.ended.all(), "both rows must have ended by their time limit"
        second = envs.step_chunk(actions)
        assert not second.ended.any()
        assert not second.num_steps.any(), "the call after an end must reset, not step"
        assert envs.step_chunk(actions).num_steps.all(), "the new episode must run"


def check_cameras_render_only_when_asked(subject: Subject) -> None:
    """An image is left alone when its camera is not asked for."""
    with subject.make(num_envs=1) as envs:
        if not envs.simulator_spec.cameras:
            return
        names = [name for name, f in envs.simulator_spec.observations.items() if f.camera]
        envs.reset(seed=_SEED)
        views = flatten(envs.observations)
        for name in names:
            views[name][...] = 77
        action = repeat(stack(subject.actions(envs, 1)), 1)
        envs.step_chunk(action, cameras=())
        untouched = [name for name in names if (views[name] == 77).all()]
        assert untouched == names, f"rendered without being asked: {sorted(set(names) - set(untouched))}"
        envs.step_chunk(action)
        drawn = [name for name in names if not (views[name] == 77).all()]
        assert drawn == names, f"not rendered though asked: {sorted(set(names) - set(drawn))}"


def check_saved_states_replay(subject: Subject) -> None:
    """From a saved state the same actions give the same steps, in this process and in another."""
    with subject.make(num_envs=1) as envs, subject.make(num_envs=1) as other:
        if not envs.simulator_spec.can_save:
            return
        actions = [stack([action]) for action in subject.actions(envs, subject.steps)]
        middle = max(1, len(actions) // 3)
        for seed in range(_SEED, _SEED + 50):
            if not list(play(envs, 0, seed, actions[:middle]))[-1].ended[0]:
                break
        saved = envs.save_state()
        onward = stack([action[0] for action in actions[middle:]])
        results = []
        list(play(other, 0, _SEED + 1, actions[:1]))
        for target in (envs, envs, other):
            target.load_state(saved)
            target.send([0], repeat(onward, 1))
            chunk = target.recv()
            results.append((row_of(chunk.observations, 0), chunk.rewards[0].copy()))
        for observation, rewards in results[1:]:
            assert subject.equal(observation, results[0][0]), "a replay from a saved state ends elsewhere"
            assert subject.near(rewards, results[0][1]), "a replay's rewards differ"


def check_every_task_runs(subject: Subject) -> None:
    """Every task that the spec lists, or the first 20 of many, can be reset to and stepped."""
    with subject.make(num_envs=1) as envs:
        action = repeat(stack(subject.actions(envs, 1)), 1)
        for i, task in enumerate(envs.simulator_spec.tasks[:20]):
            envs.begin([0], EpisodeId(task=task.name, seed=i))
            assert row_of(envs.recv().observations, 0), f"task {task.name} gives no observation"
            envs.send([0], action)
            assert envs.recv().num_steps[0] == 1, f"task {task.name} does not step"


def check_bad_actions_never_arrive(subject: Subject) -> None:
    """NaN, infinity and wrong shapes are refused on the main side, and the rows go on."""
    with subject.make(num_envs=1) as envs:
        fields = envs.simulator_spec.actions
        envs.reset(seed=_SEED)
        good = repeat(stack(subject.actions(envs, 1)), 1)
        if "" in fields and np.dtype(fields[""].dtype).kind == "f":
            for poison in (np.nan, np.inf):
                try:
                    envs.step_chunk(np.full_like(good, poison))
                except ActionError:
                    continue
                raise AssertionError(f"an action of {poison} was let through")
        assert envs.step_chunk(good).num_steps[0] == 1, "the row does not go on after a refused action"


def check_close_leaves_no_process(subject: Subject) -> None:
    """After `close`, every worker has ended."""
    envs = subject.make(num_envs=2)
    pids = envs.worker_pids
    envs.reset(seed=_SEED)
    envs.close()
    alive = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    assert not alive, f"still running: {alive}"


CHECKS: tuple[Callable[[Subject], None], ...] = (
    check_observations_match_the_spaces,
    check_same_seed_gives_the_same_episode,
    check_a_chunk_equals_its_steps,
    check_time_limit_truncates,
    check_rows_do_not_disturb_each_other,
    check_autoreset_goes_on,
    check_cameras_render_only_when_asked,
    check_saved_states_replay,
    check_every_task_runs,
    check_bad_actions_never_arrive,
    check_close_leaves_no_process,
)


def check_simulator(simulator: Any, tolerance: float = 0.0, steps: int = 12, **options: Any) -> None:
    """Run every check; the first that fails raises AssertionError."""
    subject = Subject(simulator, options, tolerance, steps)
    for check in CHECKS:
        check(subject)
