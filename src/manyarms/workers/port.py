"""One row's window into the arena, as seen from the worker: read actions, write results."""

from __future__ import annotations

import time
from array import array
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..simulators.base import LENGTH_SUFFIX, Field, Spec, nest, put
from . import words as w
from .arena import Arena
from .wire import encode

_CLEAR = memoryview(w.status_bytes()).cast("i")


class Port:
    """The control words, status words and arrays of one row."""

    def __init__(self, memory: Arena, row: int, spec: Spec, rename: Mapping[str, str]) -> None:
        self.row = row
        self.control = memory.words("control", row)
        self.status = memory.words("status", row)
        self.rewards = memory.words("rewards", row)
        self.timings = memory.words("timings", row)
        self.cameras = spec.cameras
        layout = spec.layout()
        self.out = _views(memory, "observations", row, layout, rename)
        self.final = _views(memory, "final", row, layout, rename)
        self._info_area = memory.words("info", row)
        self._final_info_area = memory.words("final_info", row) if "final_info" in memory.layout.slots else None
        self._actions = _views(memory, "actions", row, spec.actions, rename, leading=1)
        self._bare_action = self._actions.get("")
        self.take_action = self._single_action()
        self._typed = list(_views(memory, "infos", row, spec.infos, {}).items())
        self._frames = self._frame_views(memory, row, layout, rename)
        self._camera_sets: Dict[int, Tuple[str, ...]] = {}
        self._reply: Dict[str, Any] = {}
        self.plain_steps = 0
        """How many steps the status says were taken, when it says nothing else."""
        self._mark_lengths(memory, layout, rename)

    def _mark_lengths(self, memory: Arena, layout: Mapping[str, Field], rename: Mapping[str, str]) -> None:
        """Fill in the lengths of fields that are ragged only because another row's are longer."""
        names = memory.arrays("observations")
        for name, field in layout.items():
            length = names.get(rename.get(name, name) + LENGTH_SUFFIX)
            if length is not None and not field.ragged and not name.endswith(LENGTH_SUFFIX):
                length[self.row] = field.shape[0]
                final = memory.arrays("final").get(rename.get(name, name) + LENGTH_SUFFIX)
                if final is not None:
                    final[self.row] = field.shape[0]

    def _frame_views(
        self, memory: Arena, row: int, layout: Mapping[str, Field], rename: Mapping[str, str]
    ) -> List[Dict[str, np.ndarray]]:
        """Return one observation a ring slot: cameras point into the ring, the rest to a scratch copy."""
        rings = memory.arrays("frames")
        if not rings:
            return []
        scratch = {name: np.zeros(f.shape, f.dtype) for name, f in layout.items()}
        slots = next(iter(rings.values())).shape[1]
        result = []
        for slot in range(slots):
            views = dict(scratch)
            for name, field in layout.items():
                ring = rings.get(rename.get(name, name))
                if field.camera and ring is not None:
                    views[name] = ring[(row, slot, *(slice(n) for n in field.shape))]
            result.append(views)
        return result

    @property
    def films(self) -> bool:
        """Whether someone watches the steps inside chunks."""
        return bool(self._frames)

    def take_actions(self) -> Any:
        """Copy the actions out, so that a simulator may keep them."""
        count = self.control[w.NUM_ACTIONS]
        if self._bare_action is not None:
            return self._bare_action[:count].copy()
        chunks = {name: view[:count].copy() for name, view in self._actions.items()}
        return [nest({name: chunk[i] for name, chunk in chunks.items()}) for i in range(count)]

    def _single_action(self) -> Callable[[], Any]:
        """Return what copies one action out: `take_actions` for a chunk of one, as a single call where that can be."""
        bare = self._bare_action
        if bare is None:
            return lambda: self.take_actions()[0]
        if bare.ndim == 1:
            return partial(bare.__getitem__, 0)
        return bare[0].copy

    def asked_cameras(self) -> Tuple[str, ...]:
        """Return the cameras whose bits are set."""
        if not self.cameras:
            return ()
        bits = self.control[w.CAMERAS]
        cameras = self._camera_sets.get(bits)
        if cameras is None:
            cameras = tuple(name for i, name in enumerate(self.cameras) if bits >> i & 1)
            self._camera_sets[bits] = cameras
        return cameras

    def frame_slot(self) -> Optional[Dict[str, np.ndarray]]:
        """Return where the next frame inside the chunk goes; None when all of the ring is used."""
        slot = self.status[w.FRAMES]
        if slot >= len(self._frames):
            return None
        self.status[w.FRAMES] = slot + 1
        return self._frames[slot]

    def begin_report(self) -> None:
        """Clear what the last command said."""
        self.plain_steps = 0
        self.status[:] = _CLEAR

    def say_plain_steps(self, count: int) -> None:
        """Say that so many steps were taken and nothing else happened."""
        self.status[:] = memoryview(w.status_bytes(num_steps=count)).cast("i")
        self.plain_steps = count

    def report_steps(self, rewards: Sequence[float], success: bool, terminated: bool, truncated: bool) -> None:
        """Write what the actions did; whoever reads rewards takes as many as there were steps."""
        count = len(rewards)
        self.rewards[:count] = array("d", rewards)
        status = self.status
        status[w.NUM_STEPS] = count
        if success:
            status[w.SUCCESS] = 1
        if terminated:
            status[w.TERMINATED] = 1
        if truncated:
            status[w.TRUNCATED] = 1

    def report_info(self, info: Mapping[str, Any]) -> None:
        """Write an info: declared fields as they are, the rest as JSON, or as a frame when it does not fit."""
        self.plain_steps = 0
        if self._typed:
            info = dict(info)
            for bit, (name, view) in enumerate(self._typed):
                if name in info:
                    put({name: view}, name, info.pop(name))
                    self.status[w.INFO_MASK] |= 1 << bit
        if info:
            self.status[w.INFO_BYTES] = self._write(self._info_area, "info", info)

    def report_final_info(self, info: Mapping[str, Any]) -> None:
        """Write the info of the step that ended an episode, when the next one begins in the same step."""
        if self._final_info_area is not None:
            self.status[w.FINAL_BYTES] = self._write(self._final_info_area, "final_info", dict(info))

    def _write(self, area: memoryview, name: str, info: Mapping[str, Any]) -> int:
        data = encode(info)
        if len(data) > len(area):
            self._reply[name] = info
            self.status[w.REPLY] = 1
            return 0
        area[: len(data)] = data
        return len(data)

    def report_failure(self, description: Dict[str, Any]) -> None:
        """Say that the simulator raised."""
        self._reply = {"error": description}
        self.status[w.FAILED] = 1
        self.status[w.REPLY] = 1

    def take_reply(self) -> Dict[str, Any]:
        """Return what is too large or too rare for the arena; it is sent as a frame after the bell."""
        reply, self._reply = self._reply, {}
        return reply

    def answer(self, value: Any) -> None:
        """Answer a call."""
        self._reply["result"] = value
        self.status[w.REPLY] = 1


class Stopwatch:
    """Where a command's time went; costs a few clock readings a chunk."""

    def __init__(self) -> None:
        self.spent = [0.0] * w.TIMING_WORDS
        self._cpu = 0.0

    def start(self) -> None:
        self.spent = [0.0] * w.TIMING_WORDS
        self.spent[w.STARTED] = time.perf_counter()
        self._cpu = time.process_time()

    def add(self, part: int, since: float) -> float:
        """Count the time since `since` to `part`; return now."""
        now = time.perf_counter()
        self.spent[part] += now - since
        return now

    def stop(self, timings: Any) -> None:
        self.spent[w.EXEC] = time.perf_counter() - self.spent[w.STARTED]
        self.spent[w.CPU] = time.process_time() - self._cpu
        for i, value in enumerate(self.spent):
            timings[i] = value


def _views(
    memory: Arena, prefix: str, row: int, fields: Mapping[str, Field], rename: Mapping[str, str], leading: int = 0
) -> Dict[str, np.ndarray]:
    """Return a row's part of each field, cut to this simulator's own shape where other rows' are larger."""
    arrays = memory.arrays(prefix)
    views: Dict[str, np.ndarray] = {}
    for name, field in fields.items():
        array = arrays.get(rename.get(name, name))
        if array is not None:
            cut = (slice(None),) * leading + tuple(slice(n) for n in field.shape)
            views[name] = array[(row, *cut)] if cut else array[row, ...]
    return views
