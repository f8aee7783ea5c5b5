"""The public face: one vector environment, synchronous as Gymnasium's, by chunks, or asynchronous by rows."""

from __future__ import annotations

import atexit
import contextlib
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from manyarms.errors import ConfigError, RowStateError, WorkerError
from manyarms.vector.actions import ActionWriter
from manyarms.vector.arguments import chunk_lengths, masked_rows, one_per_row, row_indices, seeds_for
from manyarms.vector.cameras import Cameras
from manyarms.vector.chunk import Chunk, ChunkTiming, EpisodeId
from manyarms.vector.config import SimulatorConfig, VectorConfig, parse_autoreset
from manyarms.vector.engine import Engine
from manyarms.vector.groups import LIVE, NEW
from manyarms.vector.infos import add_info
from manyarms.vector.profile import Profiler
from manyarms.vector.resets import Resets, start
from manyarms.vector.results import ResultReader
from manyarms.vector.spaces import batched_actions, batched_observations, merge, space_of
from manyarms.vector.states import RowState, row_states
from manyarms.vector.supervisor import Supervisor
from manyarms.workers import words as w
from manyarms.workers.wire import encode

_MODE_WORDS = {
    AutoresetMode.DISABLED: w.DISABLED,
    AutoresetMode.NEXT_STEP: w.NEXT_STEP,
    AutoresetMode.SAME_STEP: w.SAME_STEP,
}

_open: weakref.WeakSet[VectorEnv] = weakref.WeakSet()


def _close_at_exit(envs: VectorEnv) -> None:
    """Have an environment that nobody closes closed when Python ends, before the keeper ends what is left."""
    if not _open:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _open.add(envs)


def _close_all() -> None:
    for envs in list(_open):
        envs.close()


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, np.ndarray]):
    """Many simulators, one shared memory. Make it with `make_vec`; close it, or use it in a ``with`` statement."""

    def __init__(self, rows: Sequence[SimulatorConfig], config: VectorConfig) -> None:
        self.closed = True  # until there is something to close
        self.config = config
        self.num_envs = config.num_envs
        self.simulators = list(rows)
        self._supervisor = Supervisor(rows, config)
        self.closed = False
        with contextlib.ExitStack() as unless_all_goes_well:
            unless_all_goes_well.callback(self.close, timeout=1.0)
            self._merged = merge(self._supervisor.start())
            self._engine = Engine(self._supervisor, self._merged, config)
            unless_all_goes_well.pop_all()
        _close_at_exit(self)
        spec = self.simulator_spec = self._merged.spec
        self.single_observation_space = space_of(spec.layout())
        self.single_action_space = space_of(spec.actions)
        self.observation_space = batched_observations(self._merged)
        self.action_space = batched_actions(self._merged)
        self.row_tasks = [tuple(task.name for task in row.tasks) for row in self._merged.rows]
        """The tasks that each row can play."""
        self.lockstep = any(worker.lockstep for worker in self._supervisor.workers)
        """Whether some rows can only step together."""
        self.metadata = {"autoreset_mode": config.autoreset_mode, "render_fps": spec.control_rate}
        arena = self._engine.arena
        self._control, self._status = self._engine.control, self._engine.status
        self._actions = ActionWriter(spec.actions, self._merged.rows, arena.arrays("actions"), config.action_bounds)
        self._resets = Resets(self._engine, self._merged)
        self._results = ResultReader(self._engine, self._merged, config.copy)
        self.profiler = Profiler(arena.array("timings"), config.trace) if config.profile else None
        self.last_timing: ChunkTiming | None = None
        self._all_rows = np.arange(self.num_envs)
        self._sent_at = np.zeros(self.num_envs)
        self._no_ends = np.zeros(self.num_envs, bool)
        self._uncertain = True
        self._mode = _MODE_WORDS[parse_autoreset(config.autoreset_mode)]
        self._cameras = Cameras(self._control, self._merged)
        self._narrow = self._cameras.narrow
        self._sent_mode = self._sent_length = -1
        watched = slice(None) if config.render_rows is None else list(config.render_rows)
        self._control[watched, w.RENDER_EVERY] = config.render_every

    # -- as Gymnasium users know it -----------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every row, or in those of ``options["reset_mask"]``.

        ``options["tasks"]`` and ``options["init_states"]`` give one of each a row; the rest goes to the simulators.
        """
        self._check_open()
        self._uncertain = True
        if self._engine.in_flight:
            self._engine.abandon()
        if not isinstance(options, Mapping | None):
            raise ConfigError(f"options of a reset are a dict, got {options!r:.100}")
        options = dict(options or {})
        rows = masked_rows(options.pop("reset_mask", None), self.num_envs)
        tasks = one_per_row("tasks", options.pop("tasks", None), self.num_envs)
        states = one_per_row("init_states", options.pop("init_states", None), self.num_envs)
        seeds = seeds_for(seed, self.num_envs)
        rest = options or None
        self._prepare(None, autoreset=self._mode)
        starts = {i: start(tasks[i], seeds[i], states[i], rest) for i in rows.tolist()}
        self._engine.require_idle(rows.tolist())
        self._resets.check_groups(rows.tolist())
        began = self.profiler.begin() if self.profiler else None
        infos = self._begin(starts)
        if self.profiler and began:
            self.profiler.finish(*began, rows)
        return self._results.observations(), infos

    def _begin(self, starts: dict[int, dict[str, Any]]) -> dict[str, Any]:
        """Begin episodes and return their infos; a row whose info cannot be read is begun again."""
        infos: dict[str, Any] = {}
        while starts:
            self._resets.begin(starts)
            infos = self._results.infos(self._all_rows, self._status.copy(), only=starts, known=infos)
            starts = {row: starts[row] for row in self._engine.aborted}
            self._engine.aborted.clear()
        return infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Apply one action a row: ``[num_envs, …]``."""
        profiler = self.profiler
        began = profiler.begin() if profiler else None
        if self._uncertain:
            self._check_ready_to_step()
        self._actions.write_step(actions)
        if self._sent_length != 1:
            self._control[:, w.NUM_ACTIONS] = 1
            self._sent_length = 1
        if self._narrow or self._sent_mode != self._mode:
            self._prepare(None, self._mode)
        self._uncertain = True  # unless the call comes to its end
        plain = self._engine.step_all(1)
        rewards = self._results.first_rewards.copy()
        if plain:
            self._uncertain = False
            terminated, truncated, infos = self._no_ends.copy(), self._no_ends.copy(), {}
        else:
            status = self._engine.settle(self._all_rows)
            infos = self._results.infos(self._all_rows, status)
            terminated = status[:, w.TERMINATED] != 0
            aborted, reasons = self._results.take_aborted(self._all_rows)
            truncated = (status[:, w.TRUNCATED] != 0) | aborted
            rewards[status[:, w.NUM_STEPS] == 0] = 0.0
            for row, reason in reasons.items():
                infos = add_info(infos, self._abort_info(row, reason), row, self.num_envs)
            self._note_ends(terminated | truncated, aborted)
        if profiler and began:
            self.last_timing = profiler.finish(*began, self._all_rows)
        return self._results.observations(), rewards, terminated, truncated, infos

    def _abort_info(self, row: int, reason: str) -> dict[str, Any]:
        """Return what Gymnasium users learn of an aborted episode: it looks truncated, and says why."""
        info: dict[str, Any] = {"aborted": True, "failure": reason}
        if self._mode == w.SAME_STEP:
            info = {"final_obs": self._results.row(row), "final_info": dict(info), **info}
        return info

    # -- by chunks ----------------------------------------------------------------------------------------------------

    def step_chunk(self, actions: Any, *, cameras: Sequence[str] | None = None) -> Chunk:
        """Apply K actions a row in one round trip: ``[num_envs, K, …]``. A row stops at its first end.

        Observations are taken once, after the last action, through `cameras` (default: all). Where the last call
        ended a row's episode, the autoreset mode says what this one does: by default it begins the next and steps
        nothing.
        """
        profiler = self.profiler
        began = profiler.begin() if profiler else None
        if self._uncertain:
            self._check_ready_to_step()
        length = self._actions.write_chunk(None, actions, self.config.max_chunk)
        if self._sent_length != length:
            self._control[:, w.NUM_ACTIONS] = length
            self._sent_length = length
        if cameras is not None or self._narrow or self._sent_mode != self._mode:
            self._prepare(cameras, self._mode)
        self._uncertain = True  # unless the call comes to its end
        plain = self._engine.step_all(length)
        timing = self._finish_timing(began, self._all_rows) if profiler else None
        if plain:
            self._uncertain = False
            steps = np.full(self.num_envs, length, np.int32)
            return self._results.plain_chunk(self._all_rows, steps, length, None, timing)
        chunk = self._results.chunk(self._all_rows, length, None, timing)
        self._note_ends(chunk.ended, chunk.aborted)
        if self._mode == w.SAME_STEP and chunk.aborted.any():
            return replace(chunk, observations=self._results.observations())
        return chunk

    # -- asynchronous -------------------------------------------------------------------------------------------------

    def begin(
        self,
        rows: Sequence[int] | np.ndarray,
        episodes: EpisodeId | Sequence[EpisodeId],
        *,
        cameras: Sequence[str] | None = None,
    ) -> None:
        """Start an episode in each row; returns at once. The first observations come with `recv`."""
        self._check_open()
        rows = row_indices(rows, self.num_envs)
        if isinstance(episodes, EpisodeId):
            episodes = [episodes] * len(rows)
        if len(episodes) != len(rows):
            raise ConfigError(f"{len(episodes)} episodes were given for {len(rows)} rows")
        self._engine.require_idle(rows.tolist())
        self._uncertain = True
        self._prepare(cameras, w.DISABLED, rows)
        self._engine.state[rows] = NEW
        self._engine.reset(rows.tolist(), [start(e.task, e.seed, e.init_state) for e in episodes])
        if self.profiler:
            self._sent_at[rows] = time.perf_counter()

    def send(
        self,
        rows: Sequence[int] | np.ndarray,
        actions: Any,
        lengths: Sequence[int] | np.ndarray | None = None,
        *,
        cameras: Sequence[str] | None = None,
    ) -> None:
        """Send K actions to each of `rows`: ``[R, K, …]``, of which row i runs ``lengths[i]``; returns at once."""
        self._check_open()
        rows = row_indices(rows, self.num_envs)
        listed = rows.tolist()
        self._engine.require_idle(listed)
        idle = rows[self._engine.state[rows] != LIVE].tolist()
        if idle:
            raise RowStateError(f"rows {idle} have no running episode", do="begin() one in each before send()")
        sizes = chunk_lengths(lengths, len(rows), actions)
        self._actions.write_chunk(rows, actions, self.config.max_chunk)
        self._uncertain = True
        self._control[rows, w.NUM_ACTIONS] = sizes
        self._sent_length = -1
        self._prepare(cameras, w.DISABLED, rows)
        self._engine.step(listed)
        if self.profiler:
            self._sent_at[rows] = time.perf_counter()

    def recv(self, min_rows: int = 1, timeout: float | None = None, *, observe: bool = True) -> Chunk:
        """Wait until at least `min_rows` rows are done (fewer when fewer are under way) and return all that are.

        Observations of neighbouring rows are views of the shared memory, valid until the row is sent again. When
        `timeout` seconds pass first, what is ready is returned, which may be nothing. With ``observe=False`` the chunk
        comes without observations, for who reads `observations`.
        """
        self._check_open()
        if min_rows < 1:
            raise ConfigError(f"min_rows is {min_rows}; wait for at least one row")
        done = np.array(sorted(self._engine.collect(min_rows, timeout)), dtype=np.int64)
        began = (float(self._sent_at[done].min()), 0.0) if self.profiler and len(done) else None
        timing = self._finish_timing(began, done)
        status = self._status[done]
        lengths = self._control[done, w.NUM_ACTIONS]
        steps = status[:, w.NUM_STEPS]
        if not self._engine.aborted and not status[:, w.NUM_STEPS + 1 :].any() and steps.tolist() == lengths.tolist():
            return self._results.plain_chunk(done, steps, int(lengths.max(initial=1)), False, timing, observe)
        length = min(int(lengths[status[:, w.WAS_RESET] == 0].max(initial=1)), self.config.max_chunk)
        chunk = self._results.chunk(done, length, False, timing, observe)
        self._engine.note_ends(done[chunk.ended & ~chunk.aborted].tolist())
        return chunk

    @property
    def observations(self) -> Any:
        """Views of every row's last observation, without copying; what rows under way show is undefined."""
        return self._results.tree

    # -- looking on, from any thread ----------------------------------------------------------------------------------

    def row_states(self) -> list[RowState]:
        """Return what every row is doing; rows do not notice."""
        return row_states(self._engine, self.row_tasks)

    def glance(self, cameras: Sequence[str]) -> None:
        """Have each row render these cameras too, once, with what it is sent next; nothing else changes."""
        self._cameras.glance(cameras)

    # -- what simulators offer beyond stepping ------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each row's simulator (of the environment itself for ``gym/…``), or read an attribute."""
        return self._call(self._all_rows, name, [args] * self.num_envs, kwargs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of each row's simulator."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each row's simulator; a list or tuple gives one value a row."""
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ConfigError(f"{len(values)} values were given for {self.num_envs} environments")
        self._call(self._all_rows, "set_attr", [(name, value) for value in values], {})

    def save_state(self, rows: Sequence[int] | np.ndarray | None = None) -> list[Any]:
        """Return the full state of each row, to go back to with `load_state` or as an episode's `init_state`."""
        indices = row_indices(self._all_rows if rows is None else rows, self.num_envs)
        self._engine.require_episodes(indices.tolist())
        return list(self._call(indices, "save_state", [()] * len(indices), {}))

    def load_state(self, states: Sequence[Any], rows: Sequence[int] | np.ndarray | None = None) -> None:
        """Put each row back into a saved state; `observations` shows it."""
        self._check_open()
        indices = row_indices(self._all_rows if rows is None else rows, self.num_envs)
        if len(states) != len(indices):
            raise ConfigError(f"{len(states)} states were given for {len(indices)} rows")
        self._uncertain = True
        self._cameras.ask(None, indices)
        ended = self._call(indices, "load_state", [(state,) for state in states], {})
        self._engine.put_back(indices, ended)

    def render(self) -> tuple[Any, ...]:
        """Return a frame of each row."""
        return self.call("render")

    def abandon(self) -> None:
        """Wait for rows that are under way and forget what they bring; every row must be begun anew."""
        if self.closed:
            return
        self._engine.abandon()
        self._engine.state[:] = NEW
        self._uncertain = True

    @property
    def failures(self) -> list[WorkerError]:
        """What has gone wrong in workers so far, oldest first."""
        return list(self._engine.health.failures)

    @property
    def worker_pids(self) -> list[int]:
        """The process of each worker."""
        return [worker.pid for worker in self._supervisor.workers]

    def close_extras(self, timeout: float = 5.0, **kwargs: Any) -> None:
        """End all workers."""
        self._uncertain = True
        self._supervisor.close(timeout)
        profiler: Profiler | None = getattr(self, "profiler", None)
        if profiler is not None:
            profiler.write_trace()

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # the interpreter may have taken things apart already
            self.close(timeout=0.5)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise RowStateError("this vector environment is closed", do="make a new one")

    def _check_ready_to_step(self) -> None:
        self._check_open()
        state = self._engine.state
        idle = np.flatnonzero(state != LIVE if self._mode == w.DISABLED else state == NEW)
        if len(idle):
            raise RowStateError(
                f"rows {idle.tolist()} have no running episode", do="reset() first, or reset(options={'reset_mask': …})"
            )
        self._engine.require_idle(self._all_rows.tolist())

    def _note_ends(self, ended: np.ndarray, aborted: np.ndarray) -> None:
        if ended.any():
            self._engine.note_ends(np.flatnonzero(ended & ~aborted).tolist())
        if self._mode == w.SAME_STEP and aborted.any():
            self._resets.begin_again(np.flatnonzero(aborted).tolist())
        self._uncertain = self._mode == w.DISABLED and bool(ended.any())

    def _prepare(self, cameras: Sequence[str] | None, autoreset: int, rows: np.ndarray | None = None) -> None:
        """Write the control words that seldom change; cameras only of `rows` (None: all), for others may be at work."""
        index = self._all_rows if rows is None else rows
        self._cameras.ask(cameras, index)
        if self._sent_mode != autoreset:
            self._control[:, w.AUTORESET] = autoreset
            self._sent_mode = autoreset

    def _finish_timing(self, began: tuple[float, float] | None, rows: np.ndarray) -> ChunkTiming | None:
        if self.profiler is None or began is None:
            return None
        self.last_timing = self.profiler.finish(*began, rows)
        return self.last_timing

    def _call(self, rows: Any, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        self._check_open()
        if not isinstance(method, str):
            raise ConfigError(f"a method or an attribute is called by its name, got {method!r:.100}")
        payloads = [encode({"method": method, "args": a, "kwargs": dict(kwargs)}) for a in args]
        return tuple(self._engine.call([int(row) for row in rows], payloads))
