"""Rows that can only step together: one simulator for all of a worker's rows."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..simulators.base import Start, StepResult
from . import words as w
from .port import Port, Stopwatch
from .rows import NotLive, own_state


class Group:
    """Runs one batched simulator behind the ports of its rows.

    All rows take part in every step. Those that have ended, that were given fewer actions, or that wait for a reset are
    held still and their results ignored.
    """

    def __init__(self, ports: Sequence[Port], simulator: Any, limit: Optional[int], profile: bool) -> None:
        self.ports = list(ports)
        self.simulator = simulator
        self.limit = limit or 0
        self.watch = Stopwatch() if profile else None
        self.steps = [0] * len(ports)
        self.begun = [False] * len(ports)
        """Whether an episode has begun in a row: only after such a one may the next begin by itself."""
        self.ended = [True] * len(ports)
        self.partial_reset = simulator.spec.partial_reset

    def run(self, starts: Dict[int, Start]) -> None:
        """Carry out the commands of all rows: first the chunk, then the resets, then one observation each."""
        watch = self.watch
        if watch:
            watch.start()
        for port in self.ports:
            if port.control[w.COMMAND] != w.NOTHING:
                port.begin_report()
        stepping = [i for i, port in enumerate(self.ports) if port.control[w.COMMAND] == w.STEP]
        resetting = dict(starts)
        live = [i for i in stepping if not self.ended[i]]
        for i in stepping:
            if self.ended[i]:
                self._wait_for_reset(i, resetting)
        if live:
            self._run_chunk(live)
        self._reset_ended(live, resetting)
        if resetting and (self.partial_reset or self._all_can_reset(live, starts, resetting)):
            self._reset(resetting)
        self._observe(sorted({*stepping, *starts, *resetting}), watch)

    def _wait_for_reset(self, row: int, resetting: Dict[int, Start]) -> None:
        """Take an ended row's step for its reset, as `NEXT_STEP` says; held until all have ended if it must be."""
        port = self.ports[row]
        mode = port.control[w.AUTORESET]
        if not self.begun[row] or mode == w.DISABLED or (mode == w.SAME_STEP and self.partial_reset):
            raise NotLive("row %d has no running episode: reset it before the next step" % port.row)
        port.report_steps((), False, False, False)
        resetting[row] = Start()

    def _all_can_reset(self, live: Sequence[int], starts: Dict[int, Start], resetting: Dict[int, Start]) -> bool:
        """Tell whether no row is in mid-episode, nor has just ended with an observation still to be shown."""
        done = all(ended or i in starts for i, ended in enumerate(self.ended))
        return done and all(i in resetting for i in live)

    def _reset_ended(self, live: Sequence[int], resetting: Dict[int, Start]) -> None:
        """Begin anew in the same step where the mode says so, keeping the last observation aside."""
        for i in live:
            port = self.ports[i]
            if self.ended[i] and port.control[w.AUTORESET] == w.SAME_STEP:
                self.simulator.observe({i: port.final}, port.asked_cameras())
                port.report_final_info(self.simulator.info(i))
                resetting[i] = Start()

    def _run_chunk(self, live: Sequence[int]) -> None:
        actions = {i: self.ports[i].take_actions() for i in live}
        rewards: Dict[int, List[float]] = {i: [] for i in live}
        succeeded = dict.fromkeys(live, False)
        ends: Dict[int, Tuple[bool, bool]] = {}
        running = list(live)
        for k in range(max(map(len, actions.values()))):
            running = [i for i in running if k < len(actions[i])]
            if not running:
                break
            mask = np.zeros(len(self.ports), bool)
            mask[running] = True
            batch = [actions[i][k] if mask[i] else self.simulator.hold(i) for i in range(len(self.ports))]
            results = self.simulator.step(batch, mask)
            for i in list(running):
                reward, success, terminated, truncated = StepResult(*results[i])
                rewards[i].append(reward)
                succeeded[i] = succeeded[i] or success
                self.steps[i] += 1
                truncated = truncated or bool(self.limit and self.steps[i] >= self.limit)
                ends[i] = (terminated, truncated)
                if terminated or truncated:
                    self.ended[i] = True
                    running.remove(i)
        for i in live:
            self.ports[i].report_steps(rewards[i], succeeded[i], *ends[i])

    def _reset(self, starts: Dict[int, Start]) -> None:
        rows = sorted(starts) if self.partial_reset else list(range(len(self.ports)))
        chosen = [starts.get(i, Start()) for i in rows]
        self.simulator.reset(rows, [start._replace(init_state=own_state(start.init_state)) for start in chosen])
        for i in rows:
            self.steps[i] = 0
            self.ended[i] = i not in starts
            if i in starts:
                self.begun[i] = True
                self.ports[i].status[w.WAS_RESET] = 1

    def _observe(self, rows: Sequence[int], watch: Optional[Stopwatch]) -> None:
        began = time.perf_counter()
        cameras = self.ports[rows[0]].asked_cameras()
        self.simulator.observe({i: self.ports[i].out for i in rows}, cameras)
        if watch:
            watch.spent[w.SIM] = began - watch.spent[w.STARTED]
            watch.add(w.OBS, began)
        for i in rows:
            self.ports[i].control[w.STEPS] = self.steps[i]
            info = self.simulator.info(i)
            if self.ended[i] and self.ports[i].control[w.COMMAND] == w.STEP and not self.ports[i].status[w.NUM_STEPS]:
                info = {**info, "held": True}
            if info:
                self.ports[i].report_info(info)
            if watch:
                watch.stop(self.ports[i].timings)

    def call(self, row: int, method: str, args: Any, kwargs: Dict[str, Any]) -> None:
        """Answer a call of the main side for one row."""
        port = self.ports[row]
        port.begin_report()
        if method == "save_state":
            port.answer({"state": self.simulator.save_state(row), "steps": self.steps[row], "ended": self.ended[row]})
        elif method == "load_state":
            saved = args[0]
            self.simulator.load_state(row, saved["state"])
            self.steps[row], self.ended[row] = saved["steps"], bool(saved["ended"])
            self.begun[row] = self.begun[row] or not self.ended[row]
            port.control[w.STEPS] = self.steps[row]
            self.simulator.observe({row: port.out}, port.asked_cameras())
            port.answer(self.ended[row])
        else:
            value = getattr(self.simulator, method)
            port.answer(value(row, *args, **kwargs) if callable(value) else value)
