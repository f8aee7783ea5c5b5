"""The loop: whichever rows are ready get their next actions, the policy is asked for those that have none left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from manyarms.errors import ConfigError, RolloutError
from manyarms.policies.base import Observations, Policy
from manyarms.rollout.episode import Episode, EpisodeBuilder, Steps
from manyarms.rollout.memory import MemoryPlan, plan_memory
from manyarms.rollout.queues import ActionQueues
from manyarms.rollout.rewards import Judge, RewardHook, Scene
from manyarms.rollout.schedule import Schedule, Turn, describe
from manyarms.rollout.words import text_of
from manyarms.simulators.base import flatten, nest
from manyarms.vector import Chunk, EpisodeId, VectorEnv
from manyarms.vector.memory import check_room


class Sink(Protocol):
    """Hears what happens: videos, datasets, counters. One with a list `cameras` has those rendered; default: none."""

    def begin(self, row: int, episode: EpisodeId, text: str, observation: Mapping[str, np.ndarray]) -> None:
        """An episode begins; arrays are valid during the call."""
        ...

    def advance(self, row: int, steps: Steps) -> None:
        """A row has taken some actions."""
        ...

    def end(self, row: int, episode: Episode | None) -> None:
        """An episode is over; None: it was aborted and will be played again, or is not wanted any more."""
        ...


@dataclass(frozen=True)
class RunnerConfig:
    """How one policy serves many rows."""

    replan_horizon: int | None = None
    """How many actions of a chunk are taken before the policy is asked again; default: all."""
    steps_per_call: int | None = None
    """How many actions a row is sent at once; default: all it has. A row is observed after each call."""
    pipeline_stage_num: int = 2
    """In how many parts the rows take turns at the policy: while it serves one, the others simulate."""
    min_rows: int | None = None
    """Ask the policy for so many rows at once, fewer only when no others can come; default: those of one stage."""
    keep: tuple[str, ...] | None = None
    """Observation fields that episodes keep; default: all."""
    max_ahead: int | None = None
    """How many episodes may be under way or wait for an earlier one; default: four times the rows."""
    max_attempts: int = 3
    """How often an episode whose worker dies is tried."""
    vary_descriptions: bool = False
    """Where a task has several descriptions, draw one by the episode's identity; default: the first."""

    def __post_init__(self) -> None:
        for name in ("replan_horizon", "steps_per_call", "pipeline_stage_num", "min_rows", "max_ahead"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")


@dataclass
class RolloutTimes:
    """What the policy took of the time of playing, in seconds since the beginning."""

    policy: float = 0.0
    """Spent choosing actions."""
    overlap: float = 0.0
    """Of these, while rows were simulating."""


class Runner:
    """Plays episodes with one policy in a vector environment."""

    def __init__(
        self,
        envs: VectorEnv,
        policy: Policy,
        config: RunnerConfig | None = None,
        *,
        sinks: Sequence[Sink] = (),
        rewards: Sequence[RewardHook] = (),
    ) -> None:
        self.envs, self.policy, self.config = envs, policy, config or RunnerConfig()
        self._sinks = list(sinks)
        self._judges = [Judge(hook, envs.num_envs) for hook in rewards]
        self._queues = ActionQueues(envs.num_envs)
        self._turns: dict[int, Turn] = {}
        self._builders: dict[int, EpisodeBuilder] = {}
        self._sent: dict[int, dict[str, np.ndarray]] = {}
        self.cameras = self._watched_cameras(rewards)
        """Those that someone looks at; no others are rendered."""
        self._fields = self._seen_fields()
        self._hungry: list[int] = []
        self._out: set[int] = set()
        """Rows that are at work."""
        self.times = RolloutTimes()

    def watch(self, sinks: Sequence[Sink]) -> None:
        """Have other sinks hear of the episodes that are played from now on."""
        self._sinks = list(sinks)
        self.cameras = self._watched_cameras([judge.hook for judge in self._judges])
        self._fields = self._seen_fields()

    def play(self, episodes: Iterable[EpisodeId], enough: Callable[[Episode], bool] | None = None) -> Iterator[Episode]:
        """Play episodes, which may be endless; yield them in the order given, whichever ends first.

        `enough` hears of each as it is yielded, and returns True when no more are wanted.
        """
        needed = self.memory.total_bytes
        if needed is not None:
            check_room(needed, "the episodes under way", "keep fewer observation fields, or lower max_ahead")
        attempts = self.config.max_attempts
        return self.run(Schedule(episodes, enough=enough, max_ahead=self.memory.episodes, max_attempts=attempts))

    @property
    def time_limit(self) -> float:
        """Actions after which an episode is cut short; inf: none."""
        return self.envs.config.max_episode_steps or self.envs.simulator_spec.horizon or math.inf

    @property
    def memory(self) -> MemoryPlan:
        """What episodes under way will take; print it before a run."""
        config, envs = self.config, self.envs
        return plan_memory(
            self._fields,
            envs.simulator_spec.actions,
            keep=config.keep,
            chunk=getattr(self.policy, "chunk", 1),
            horizon=config.replan_horizon,
            time_limit=envs.config.max_episode_steps or envs.simulator_spec.horizon,
            episodes=max(config.max_ahead or 4 * envs.num_envs, envs.num_envs),
        )

    def run(self, schedule: Schedule[Episode]) -> Iterator[Episode]:
        """Play a schedule; yield its episodes in its order."""
        try:
            self._begin(schedule, range(self.envs.num_envs))
            while not schedule.done:
                ready = self._receive(schedule)
                yield from self._finish_ended(schedule, ready)
                self._begin(schedule, self._free_rows())
                self._send(self._rows_with_actions(ready))
                while self._is_time_to_infer():
                    hungry = self._next_batch()
                    self._infer(hungry)
                    self._send(hungry)
        finally:
            self._abandon()

    # -- the parts of the loop ----------------------------------------------------------------------------------------

    def _begin(self, schedule: Schedule[Episode], rows: Sequence[int]) -> None:
        """Hand the next episodes to free rows."""
        turns: dict[int, Turn] = {}
        for row in rows:
            turn = schedule.next(self.envs.row_tasks[row])
            if turn is not None:
                turns[row] = turn
        if turns:
            self._turns.update(turns)
            self._out.update(turns)
            self.envs.begin(list(turns), [turn.episode for turn in turns.values()], cameras=self.cameras)

    def _receive(self, schedule: Schedule[Episode]) -> Chunk:
        """Wait for enough rows to go on with; note what they did."""
        if not self._out:
            stranded = [describe(episode) for episode in schedule.stranded()[:3]]
            raise RolloutError(f"no row can play {'; '.join(stranded) or 'what is left'}", do="give its task some rows")
        wanted = max(1, self._batch() - len(self._hungry))
        ready = self.envs.recv(min_rows=min(wanted, len(self._out)))
        self._out.difference_update(ready.rows.tolist())
        self._note(ready)
        return ready

    def _note(self, ready: Chunk) -> None:
        """Begin or continue the books of every row that has come back."""
        moved = [i for i, row in enumerate(ready.rows.tolist()) if row in self._builders and not ready.aborted[i]]
        if self._judges and moved:
            self._add_rewards(ready, moved)
        for i, row in enumerate(ready.rows.tolist()):
            if ready.aborted[i]:
                continue
            observation = self._observation(row)
            builder = self._builders.get(row)
            if builder is None:
                self._open(row, observation, info_of(ready.infos, i))
                continue
            taken = ready.rewards[i, : ready.num_steps[i]]
            builder.advance(taken, bool(ready.success[i]))
            if self._sinks:
                frames = {name: per_row[i] for name, per_row in ready.frames.items()}
                actions = {name: array[: len(taken)] for name, array in self._sent[row].items()}
                ends = bool(ready.success[i]), bool(ready.ended[i])
                steps = Steps(observation, frames, actions, taken, *ends)
                for sink in self._sinks:
                    sink.advance(row, steps)

    def _open(self, row: int, observation: Mapping[str, np.ndarray], info: dict[str, Any]) -> None:
        """Begin the books of an episode whose first observation has arrived."""
        episode = self._turns[row].episode
        text = text_of(episode, info, self.envs.simulator_spec.tasks, self.config.vary_descriptions)
        self._builders[row] = EpisodeBuilder(episode, text, info, self.config.keep)
        for judge in self._judges:
            judge.begin(row, observation)
        for sink in self._sinks:
            sink.begin(row, episode, text, observation)

    def _add_rewards(self, ready: Chunk, moved: Sequence[int]) -> None:
        """Add what the hooks give to the last step that each row took."""
        rows = [int(ready.rows[i]) for i in moved]
        last = ready.num_steps[moved] - 1
        builders = [self._builders[row] for row in rows]
        scene = Scene(
            {name: array[rows] for name, array in self._fields.items()},
            [builder.text for builder in builders],
            [builder.id for builder in builders],
            np.array([builder.steps for builder in builders]) + last + 1,
            ready.ended[moved],
            ready.success[moved],
        )
        for judge in self._judges:
            ready.rewards[moved, last] += judge.judge(rows, scene)

    def _finish_ended(self, schedule: Schedule[Episode], ready: Chunk) -> Iterator[Episode]:
        """Close the books of rows whose episode is over; those whose worker died play it again."""
        for i in np.flatnonzero(ready.ended).tolist():
            row = int(ready.rows[i])
            turn = self._turns.pop(row)
            builder = self._builders.pop(row, None)
            self._queues.clear(row)
            if ready.aborted[i]:
                if builder is not None:  # else it was lost before it began
                    self._tell_end(row, None)
                schedule.retry(turn, str(info_of(ready.infos, i).get("failure", "")))
                continue
            assert builder is not None
            ends = bool(ready.terminated[i]), bool(ready.truncated[i])
            episode = builder.finish(self._observation(row), *ends, info_of(ready.infos, i), turn.attempts)
            self._tell_end(row, episode)
            yield from schedule.finish(turn, episode)

    def _infer(self, rows: Sequence[int]) -> None:
        """Ask the policy for these rows and fill their queues."""
        builders = [self._builders[row] for row in rows]
        index: Any = slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else list(rows)
        observations = Observations(
            {name: array[index] for name, array in self._fields.items()},
            [builder.text for builder in builders],
            [builder.id for builder in builders],
            np.array([builder.steps for builder in builders], np.int64),
        )
        began = time.perf_counter()
        chunk = self.policy.act(observations)
        spent = time.perf_counter() - began
        self.times.policy += spent
        self.times.overlap += spent if self._out else 0.0
        if len(chunk) != len(rows):
            raise RolloutError(f"the policy gave {len(chunk)} chunks of actions for {len(rows)} rows")
        for i, (row, builder) in enumerate(zip(rows, builders, strict=True)):
            builder.decide(self._observation(row), chunk.rows(slice(i, i + 1)))
        self._queues.push(rows, chunk, self.config.replan_horizon)

    def _send(self, rows: Sequence[int]) -> None:
        """Send rows their next actions."""
        if not rows:
            return
        limit = min(self.config.steps_per_call or self.envs.config.max_chunk, self.envs.config.max_chunk)
        actions, lengths = self._queues.pop(rows, limit)
        self.envs.send(rows, nest(actions), lengths, cameras=self.cameras)
        self._out.update(rows)
        if self._sinks:
            self._sent.update({row: {name: array[i] for name, array in actions.items()} for i, row in enumerate(rows)})

    # -- whose turn it is ---------------------------------------------------------------------------------------------

    def _batch(self) -> int:
        """How many rows the policy serves at once."""
        playing = len(self._turns)
        wanted = self.config.min_rows or math.ceil(playing / self.config.pipeline_stage_num)
        return max(1, min(wanted, playing))

    def _next_batch(self) -> list[int]:
        """Take the rows that have waited longest: one stage, so that it simulates while the next is served."""
        count = len(self._hungry) if self.envs.lockstep else self._batch()
        batch, self._hungry = self._hungry[:count], self._hungry[count:]
        return sorted(batch)

    def _is_time_to_infer(self) -> bool:
        """Tell whether the policy has enough rows, or would wait in vain for more."""
        if not self._hungry:
            return False
        return len(self._hungry) >= self._batch() or not self._out or self.envs.lockstep

    def _rows_with_actions(self, ready: Chunk) -> list[int]:
        """Return rows that go on with what they have; note those that have nothing left."""
        live = ready.rows[~ready.ended].tolist()
        empty = self._queues.empty(live)
        self._hungry += empty
        hungry = set(empty)
        return [row for row in live if row not in hungry]

    def _free_rows(self) -> list[int]:
        return [row for row in range(self.envs.num_envs) if row not in self._turns]

    def _watched_cameras(self, hooks: Sequence[RewardHook]) -> tuple[str, ...] | None:
        """Return the cameras that the policy, the hooks and the sinks look through; None: all."""
        watchers = [(watcher, None) for watcher in (self.policy, *hooks)] + [(sink, ()) for sink in self._sinks]
        watched: list[str] = []
        for watcher, default in watchers:
            cameras = getattr(watcher, "cameras", default)
            if cameras is None:
                return None
            watched += [camera for camera in cameras if camera not in watched]
        return tuple(watched)

    def _seen_fields(self) -> dict[str, np.ndarray]:
        """Return views of all rows' observations, without images that nobody looks at."""
        spec = self.envs.simulator_spec.observations
        unseen = {
            name
            for name, field in spec.items()
            if self.cameras is not None and field.camera not in (None, *self.cameras)
        }
        return {name: array for name, array in flatten(self.envs.observations).items() if name not in unseen}

    def _observation(self, row: int) -> dict[str, np.ndarray]:
        return {name: array[row] for name, array in self._fields.items()}

    def _tell_end(self, row: int, episode: Episode | None) -> None:
        for sink in self._sinks:
            sink.end(row, episode)

    def _abandon(self) -> None:
        """Forget what is under way, as after an error or when enough episodes are in."""
        for row in sorted(self._builders):
            self._tell_end(row, None)
        self._turns.clear()
        self._builders.clear()
        self._hungry.clear()
        self._out.clear()
        self._queues = ActionQueues(self.envs.num_envs)
        self.envs.abandon()


def info_of(infos: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return one row's info of those that Gymnasium batches."""
    return {
        name: info_of(value, index) if isinstance(value, dict) else value[index]
        for name, value in infos.items()
        if not name.startswith("_") and f"_{name}" in infos and infos[f"_{name}"][index]
    }


__all__ = ["Runner", "RunnerConfig", "Sink", "info_of"]
