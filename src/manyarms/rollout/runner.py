"""The loop: whichever rows are ready get their next actions, the policy is asked for those that have none left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from manyarms.arrays import Array
from manyarms.errors import ConfigError, RolloutError
from manyarms.policies.base import Observations, Policy
from manyarms.rollout.books import Books
from manyarms.rollout.episode import Episode, Steps
from manyarms.rollout.memory import MemoryPlan, plan_memory
from manyarms.rollout.queues import ActionQueues
from manyarms.rollout.rewards import Judge, RewardHook, Scene
from manyarms.rollout.schedule import Schedule, describe
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
        self._books = Books(envs.num_envs, self.config.keep)
        self._sent: dict[int, dict[str, np.ndarray]] = {}
        self.cameras = self._watched_cameras(rewards)
        """Those that someone looks at; no others are rendered."""
        self._fields = self._seen_fields()
        self._hungry = np.zeros(0, np.int64)
        """Rows that need actions, in the order in which they have come back."""
        self._out = np.zeros(envs.num_envs, bool)
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
            self._begin(schedule, np.arange(self.envs.num_envs))
            while not schedule.done:
                ready = self._receive(schedule)
                if ready.ended.any():
                    yield from self._finish_ended(schedule, ready)
                    self._begin(schedule, np.flatnonzero(~self._books.playing))
                self._send(self._rows_with_actions(ready))
                while self._is_time_to_infer():
                    hungry = self._next_batch()
                    self._infer(hungry)
                    self._send(hungry)
        finally:
            self._abandon()

    # -- the parts of the loop ----------------------------------------------------------------------------------------

    def _begin(self, schedule: Schedule[Episode], rows: np.ndarray) -> None:
        """Hand the next episodes to free rows."""
        begun: list[int] = []
        episodes: list[EpisodeId] = []
        idle: set[tuple[str, ...]] = set()
        for row in rows.tolist():
            tasks = self.envs.row_tasks[row]
            turn = None if tasks in idle else schedule.next(tasks)
            if turn is None:
                idle.add(tasks)  # nor is there anything for other rows with these tasks
                continue
            self._books.assign(row, turn)
            begun.append(row)
            episodes.append(turn.episode)
        if begun:
            self._out[begun] = True
            self.envs.begin(begun, episodes, cameras=self.cameras)

    def _receive(self, schedule: Schedule[Episode]) -> Chunk:
        """Wait for enough rows to go on with; note what they did."""
        under_way = int(np.count_nonzero(self._out))
        if not under_way:
            stranded = [describe(episode) for episode in schedule.stranded()[:3]]
            raise RolloutError(f"no row can play {'; '.join(stranded) or 'what is left'}", do="give its task some rows")
        wanted = max(1, self._batch() - len(self._hungry))
        ready = self.envs.recv(min_rows=min(wanted, under_way), observe=False)
        self._out[ready.rows] = False
        self._note(ready)
        return ready

    def _note(self, ready: Chunk) -> None:
        """Begin or continue the books of every row that has come back."""
        sound = ~ready.aborted
        is_new = sound & ~self._books.begun[ready.rows]
        moved = np.flatnonzero(sound & ~is_new)
        if self._judges and len(moved):
            self._add_rewards(ready, moved)
        for i in np.flatnonzero(is_new).tolist():
            self._open(int(ready.rows[i]), info_of(ready.infos, i) if ready.infos else {})
        if not len(moved):
            return
        part = slice(None) if len(moved) == len(ready) else moved
        self._books.advance(ready.rows[part], ready.rewards[part], ready.num_steps[part], ready.success[part])
        if self._sinks:
            for i in moved.tolist():
                self._show_steps(ready, i)

    def _open(self, row: int, info: dict[str, Any]) -> None:
        """Begin the books of an episode whose first observation has arrived."""
        episode = self._books.turns[row].episode
        text = text_of(episode, info, self.envs.simulator_spec.tasks, self.config.vary_descriptions)
        self._books.open(row, text, info)
        for judge in self._judges:
            judge.begin(row, self._observation(row))
        for sink in self._sinks:
            sink.begin(row, episode, text, self._observation(row))

    def _show_steps(self, ready: Chunk, i: int) -> None:
        """Tell the sinks what a row has done."""
        row = int(ready.rows[i])
        taken = ready.rewards[i, : ready.num_steps[i]]
        frames = {name: per_row[i] for name, per_row in ready.frames.items()}
        actions = {name: array[: len(taken)] for name, array in self._sent[row].items()}
        ends = bool(ready.success[i]), bool(ready.ended[i])
        steps = Steps(self._observation(row), frames, actions, taken, *ends)
        for sink in self._sinks:
            sink.advance(row, steps)

    def _add_rewards(self, ready: Chunk, moved: np.ndarray) -> None:
        """Add what the hooks give to the last step that each row took."""
        rows, books = ready.rows[moved], self._books
        last = ready.num_steps[moved] - 1
        scene = Scene(
            {name: array[rows] for name, array in self._fields.items()},
            books.texts[rows].tolist(),
            books.ids[rows].tolist(),
            books.steps[rows] + last + 1,
            ready.ended[moved],
            ready.success[moved],
        )
        for judge in self._judges:
            ready.rewards[moved, last] += judge.judge(rows.tolist(), scene)

    def _finish_ended(self, schedule: Schedule[Episode], ready: Chunk) -> Iterator[Episode]:
        """Close the books of rows whose episode is over; those whose worker died play it again."""
        books, ended = self._books, np.flatnonzero(ready.ended)
        self._queues.clear(ready.rows[ended])
        infos = {i: info_of(ready.infos, i) if ready.infos else {} for i in ended.tolist()}
        sound = ended[~ready.aborted[ended]]
        told = [infos[i] for i in sound.tolist()]
        played = iter(
            books.finish(ready.rows[sound], self._fields, ready.terminated[sound], ready.truncated[sound], told)
        )
        for i, row in zip(ended.tolist(), ready.rows[ended].tolist(), strict=True):
            turn, episode = books.turns[row], None if ready.aborted[i] else next(played)
            if books.begun[row]:  # else it was lost before it began
                self._tell_end(row, episode)
            books.free(row)
            if episode is None:
                schedule.retry(turn, str(infos[i].get("failure", "")))
            else:
                yield from schedule.finish(turn, episode)

    def _infer(self, rows: np.ndarray) -> None:
        """Ask the policy for these rows and fill their queues."""
        books = self._books
        observations = Observations(
            books.look(self._fields, rows), books.texts[rows].tolist(), books.ids[rows].tolist(), books.steps[rows]
        )
        began = time.perf_counter()
        chunk = self.policy.act(observations)
        spent = time.perf_counter() - began
        self.times.policy += spent
        self.times.overlap += spent if self._out.any() else 0.0
        if len(chunk) != len(rows):
            raise RolloutError(f"the policy gave {len(chunk)} chunks of actions for {len(rows)} rows")
        books.decide(rows, chunk)
        self._queues.push(rows, chunk, self.config.replan_horizon)

    def _send(self, rows: np.ndarray) -> None:
        """Send rows their next actions."""
        if not len(rows):
            return
        limit = min(self.config.steps_per_call or self.envs.config.max_chunk, self.envs.config.max_chunk)
        actions, lengths = self._queues.pop(rows, limit)
        self.envs.send(rows, nest(actions), lengths, cameras=self.cameras)
        self._out[rows] = True
        if self._sinks:
            for i, row in enumerate(rows.tolist()):
                self._sent[row] = {name: array[i] for name, array in actions.items()}

    # -- whose turn it is ---------------------------------------------------------------------------------------------

    def _batch(self) -> int:
        """How many rows the policy serves at once."""
        playing = int(np.count_nonzero(self._books.playing))
        wanted = self.config.min_rows or math.ceil(playing / self.config.pipeline_stage_num)
        return max(1, min(wanted, playing))

    def _next_batch(self) -> np.ndarray:
        """Take the rows that have waited longest: one stage, so that it simulates while the next is served."""
        count = len(self._hungry) if self.envs.lockstep else self._batch()
        batch, self._hungry = self._hungry[:count], self._hungry[count:]
        return np.sort(batch)

    def _is_time_to_infer(self) -> bool:
        """Tell whether the policy has enough rows, or would wait in vain for more."""
        if not len(self._hungry):
            return False
        return len(self._hungry) >= self._batch() or not self._out.any() or self.envs.lockstep

    def _rows_with_actions(self, ready: Chunk) -> np.ndarray:
        """Return rows that go on with what they have; note those that have nothing left."""
        live = ready.rows[~ready.ended]
        is_empty = self._queues.is_empty(live)
        self._hungry = np.concatenate([self._hungry, live[is_empty]])
        return live[~is_empty]

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

    def _seen_fields(self) -> dict[str, Array]:
        """Return views of all rows' observations, without images that nobody looks at."""
        spec = self.envs.simulator_spec.observations
        unseen = {
            name
            for name, field in spec.items()
            if self.cameras is not None and field.camera not in (None, *self.cameras)
        }
        return {name: array for name, array in flatten(self.envs.observations).items() if name not in unseen}

    def _observation(self, row: int) -> dict[str, Array]:
        return {name: array[row] for name, array in self._fields.items()}

    def _tell_end(self, row: int, episode: Episode | None) -> None:
        for sink in self._sinks:
            sink.end(row, episode)

    def _abandon(self) -> None:
        """Forget what is under way, as after an error or when enough episodes are in."""
        for row in np.flatnonzero(self._books.begun).tolist():
            self._tell_end(row, None)
        self._books.clear()
        self._queues.clear(np.arange(self.envs.num_envs))
        self._hungry, self._out[:] = self._hungry[:0], False
        self.envs.abandon()


def info_of(infos: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return one row's info of those that Gymnasium batches."""
    return {
        name: info_of(value, index) if isinstance(value, dict) else value[index]
        for name, value in infos.items()
        if not name.startswith("_") and f"_{name}" in infos and infos[f"_{name}"][index]
    }


__all__ = ["Runner", "RunnerConfig", "Sink", "info_of"]
