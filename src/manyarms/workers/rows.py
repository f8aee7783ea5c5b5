"""Rows that step by themselves: one simulator each."""

from __future__ import annotations

import sys
import time
from array import array
from functools import partial
from typing import Any, Callable, Dict, Optional, Sequence

from ..simulators.base import ChunkResult, Simulator, StepResult, run_chunk
from . import words as w
from .port import Port, Stopwatch


class NotLive(RuntimeError):
    """A row was stepped that has no running episode."""


class Row:
    """Runs one simulator behind one port."""

    def __init__(self, port: Port, simulator: Any, limit: Optional[int], profile: bool) -> None:
        self.port = port
        self.simulator = simulator
        self.limit = limit or 0
        self.watch = Stopwatch() if profile else None
        self.steps = 0
        self.begun = False
        """Whether an episode has begun in this process: only after such a one may the next begin by itself."""
        self.ended = True
        self._expects = _overrides(simulator, "expect")
        plain = not (profile or self._expects or port.films)
        self._step_through: Callable[[Any], ChunkResult] = getattr(
            simulator, "step_chunk", partial(run_chunk, simulator.step)
        )
        self.step: Callable[[], None] = self._plain_step() if plain else self._step_chunk

    def reset(self, start: Dict[str, Any]) -> None:
        """Begin an episode."""
        self.port.begin_report()
        options = start.get("options")
        if options is not None and hasattr(self.simulator, "set_options"):
            self.simulator.set_options(options)
        watch = self._start_watch()
        self._restart(start.get("task"), start.get("seed"), own_state(start.get("init_state")))
        self._finish(self.port.asked_cameras(), watch)
        self.port.status[w.WAS_RESET] = 1

    def _plain_step(self) -> Callable[[], None]:
        """Return `_step_chunk` for those who have nothing to film, toggle or time and are not at an end.

        A process that wakes up for 20 microseconds finds its caches cold, and every line costs five times what a loop
        would show: so there are few of them, and what they need lies in variables of their own.
        """
        port, limit = self.port, self.limit or sys.maxsize
        control, rewards, out = port.control, port.rewards, port.out
        take_action, take_actions, cameras, asked_cameras = (
            *(port.take_action, port.take_actions),
            *(port.cameras, port.asked_cameras),
        )
        step, observe, get_info = self.simulator.step, self.simulator.observe, self.simulator.info
        step_through, length_word, steps_word = self._step_through, w.NUM_ACTIONS, w.STEPS

        def run() -> None:
            length = control[length_word]
            steps = self.steps + length
            if self.ended or steps > limit:
                self._step_chunk()
                return
            if length == 1:
                reward, success, terminated, truncated = step(take_action())
                if success or terminated or truncated or steps == limit:
                    self._end_chunk((reward,), success, terminated, truncated)
                    return
                rewards[0] = reward
            else:
                found, success, terminated, truncated = step_through(take_actions())
                if success or terminated or truncated or steps == limit:
                    self._end_chunk(found, success, terminated, truncated)
                    return
                rewards[:length] = array("d", found)
            self.steps = control[steps_word] = steps
            if port.plain_steps != length:
                port.say_plain_steps(length)
            observe(out, asked_cameras() if cameras else ())
            info = get_info()
            if info:
                port.report_info(info)

        return run

    def _end_chunk(self, rewards: Sequence[float], success: bool, terminated: bool, truncated: bool) -> None:
        """Report a chunk that ended its episode or succeeded."""
        self.port.begin_report()
        self._report(rewards, success, terminated, truncated)
        self._finish_step(self.port.control[w.AUTORESET], self.port.asked_cameras(), None)

    def _step_chunk(self) -> None:
        """Run a chunk: actions back to back, a stop at the first end, one observation."""
        port = self.port
        port.begin_report()
        watch = self._start_watch()
        mode = port.control[w.AUTORESET]
        cameras = port.asked_cameras()
        if self.ended:
            if mode != w.NEXT_STEP or not self.begun:
                raise NotLive("this row has no running episode: reset it before the next step")
            self._restart(None, None, None)
            port.report_steps((), False, False, False)
            port.status[w.WAS_RESET] = 1
            self._finish(cameras, watch)
        else:
            self._run_actions(cameras)
            self._finish_step(mode, cameras, watch)

    def _finish_step(self, mode: int, cameras: Any, watch: Optional[Stopwatch]) -> None:
        """Begin the next episode where the mode says so, then observe."""
        if self.ended and mode == w.SAME_STEP:
            self.simulator.observe(self.port.final, cameras)
            self.port.report_final_info(self.simulator.info())
            self._restart(None, None, None)
            self.port.status[w.WAS_RESET] = 1
        self._finish(cameras, watch)

    def _run_actions(self, cameras: Any) -> None:
        port, limit = self.port, self.limit
        actions = port.take_actions()
        if limit:
            actions = actions[: limit - self.steps]
        if self._expects or port.films:
            rewards, success, terminated, truncated = self._run_watched(actions, cameras)
        else:
            rewards, success, terminated, truncated = self._step_through(actions)
        self._report(rewards, success, terminated, truncated)

    def _report(self, rewards: Sequence[float], success: bool, terminated: bool, truncated: bool) -> None:
        """Count the steps taken, and write what they did."""
        self.steps += len(rewards)
        truncated = truncated or self.steps == self.limit
        self.ended = bool(terminated or truncated)
        self.port.report_steps(rewards, success, terminated, truncated)

    def _run_watched(self, actions: Any, cameras: Any) -> ChunkResult:
        """Run a chunk whose steps are filmed, or whose simulator wants to know which will be observed."""
        every, count = self.port.control[w.RENDER_EVERY], len(actions)
        taken = 0

        def step(action: Any) -> StepResult:
            nonlocal taken
            taken += 1
            watched = every > 0 and (self.steps + taken) % every == 0  # counted from the episode's beginning
            if self._expects:
                self._tell(cameras if taken == count or watched else ())
            result = self.simulator.step(action)
            if watched and taken < count and not (result[2] or result[3]):
                self._film(cameras)
            return result

        return run_chunk(step, actions)

    def _tell(self, cameras: Any) -> None:
        began = time.perf_counter()
        self.simulator.expect(cameras)
        if self.watch:
            self.watch.add(w.TOGGLE, began)

    def _film(self, cameras: Any) -> None:
        views = self.port.frame_slot()
        if views is not None:
            began = time.perf_counter()
            self.simulator.observe(views, cameras)
            if self.watch:
                self.watch.add(w.VID, began)

    def _restart(self, task: Optional[str], seed: Optional[int], init_state: Any) -> None:
        self.ended, self.begun = True, False
        self.simulator.reset(task, seed, init_state)
        self.steps = 0
        self.ended, self.begun = False, True

    def _start_watch(self) -> Optional[Stopwatch]:
        if self.watch:
            self.watch.start()
        return self.watch

    def _finish(self, cameras: Any, watch: Optional[Stopwatch]) -> None:
        """Observe, report and stop the clock."""
        port, simulator = self.port, self.simulator
        port.control[w.STEPS] = self.steps
        if watch is None:
            simulator.observe(port.out, cameras)
            info = simulator.info()
            if info:
                port.report_info(info)
            return
        spent = watch.spent
        began = time.perf_counter()
        spent[w.SIM] = began - spent[w.STARTED] - spent[w.VID] - spent[w.TOGGLE]
        simulator.observe(port.out, cameras)
        watch.add(w.OBS, began)
        info = simulator.info()
        if info:
            port.report_info(info)
        watch.stop(port.timings)

    def call(self, method: str, args: Any, kwargs: Dict[str, Any]) -> None:
        """Answer a call of the main side."""
        self.port.begin_report()
        if method == "save_state":
            self.port.answer({"state": self.simulator.save_state(), "steps": self.steps, "ended": self.ended})
        elif method == "load_state":
            saved = args[0]
            self.simulator.load_state(saved["state"])
            self.steps, self.ended = saved["steps"], bool(saved["ended"])
            self.begun = self.begun or not self.ended
            self.port.control[w.STEPS] = self.steps
            self.simulator.observe(self.port.out, self.port.asked_cameras())
            self.port.answer(self.ended)
        else:
            self.port.answer(call_simulator(self.simulator, method, args, kwargs))


def own_state(init_state: Any) -> Any:
    """Return what the simulator itself saved, of what the main side was given for it; leave other initial states."""
    is_ours = isinstance(init_state, dict) and set(init_state) == {"state", "steps", "ended"}
    return init_state["state"] if is_ours else init_state


def call_simulator(simulator: Any, method: str, args: Any, kwargs: Dict[str, Any]) -> Any:
    """Call a simulator's method, or read an attribute; one that wraps another thing may answer for it (`call`)."""
    if method == "set_attr":
        if hasattr(simulator, "set_attr"):
            return simulator.set_attr(*args)
        return setattr(simulator, *args)
    if hasattr(simulator, method):
        value = getattr(simulator, method)
        return value(*args, **kwargs) if callable(value) else value
    if hasattr(simulator, "call"):
        return simulator.call(method, *args, **kwargs)
    raise AttributeError("%s has neither a method nor an attribute %r" % (type(simulator).__name__, method))


def _overrides(simulator: Any, method: str) -> bool:
    mine = getattr(type(simulator), method, None)
    return mine is not None and mine is not getattr(Simulator, method)
