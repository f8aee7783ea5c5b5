"""Simulators and environments made to be tested with; they run in workers of any Python from 3.8 on."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from manyarms.simulators.base import Field, LockstepSimulator, Simulator, Spec, Start, StepResult, Task, put
from manyarms.workers import words

SIZES = {"near": 3, "far": 5}
IMAGE = (4, 6, 3)


class Walker(Simulator):
    """A point on a line with everything a simulator can have: tasks of different state sizes, cameras, saved states."""

    def __init__(self, task: str = "", cameras: Sequence[str] = ("front", "wrist"), goal: float = 3.0) -> None:
        self.cameras = tuple(cameras)
        self.goal = goal
        self.task = task or "near"
        self.renders = 0
        self.expected = ()  # type: Sequence[str]
        self.rng = np.random.default_rng(0)
        self.position = self.speed = 0.0
        self.clock = 0
        observations = {
            "position": Field((2,), "float64"),
            "objects": Field((max(SIZES.values()),), "float32", ragged=True),
            "clock": Field((), "int64"),
        }
        for camera in self.cameras:
            observations[camera + "_rgb"] = Field(IMAGE, "uint8", 0, 255, camera=camera)
        self.spec = Spec(
            observations=observations,
            actions={"": Field((2,), "float32", -1.0, 1.0)},
            infos={"distance": Field((), "float64"), "contacts": Field((2,), "int32")},
            control_rate=20.0,
            horizon=30,
            tasks=tuple(Task(name, ("go %s" % name,)) for name in SIZES),
            can_save=True,
        )

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        if task is not None:
            if task not in SIZES:
                raise LookupError("no task %r" % task)
            self.task = task
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.position = float(self.rng.uniform(-1, 1))
        self.speed = 0.0
        self.clock = 0
        if init_state is not None:
            self.load_state(init_state)

    def step(self, action: Any) -> StepResult:
        assert action.shape == (2,)
        assert action.dtype == np.float32
        self.speed = 0.9 * self.speed + float(action[0]) * 0.1 + 0.01 * float(self.rng.normal())
        self.position += self.speed
        self.clock += 1
        reached = self.position > self.goal
        return StepResult(-abs(self.goal - self.position), reached, reached or self.position < -self.goal)

    def observe(self, out: dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        put(out, "position", np.array([self.position, self.speed]))
        put(out, "objects", np.arange(SIZES[self.task], dtype=np.float32) + np.float32(self.position))
        out["clock"][()] = self.clock
        for camera in cameras:
            self.renders += 1
            out[camera + "_rgb"].fill(self.clock % 251)

    def expect(self, cameras: Sequence[str]) -> None:
        self.expected = cameras

    def info(self) -> dict[str, Any]:
        info = {"distance": self.goal - self.position, "task": self.task}  # type: dict[str, Any]
        if self.clock % 2:
            info["contacts"] = np.array([self.clock, -self.clock], np.int32)
        return info

    def save_state(self) -> Any:
        state = self.rng.bit_generator.state["state"]
        return {
            "numbers": np.array([self.position, self.speed]),
            "clock": self.clock,
            "task": self.task,
            "rng": (str(state["state"]), str(state["inc"])),
        }

    def load_state(self, state: Any) -> None:
        self.position, self.speed = map(float, state["numbers"])
        self.clock, self.task = state["clock"], state["task"]
        generator = dict(self.rng.bit_generator.state)
        generator["state"] = {"state": int(state["rng"][0]), "inc": int(state["rng"][1])}
        self.rng.bit_generator.state = generator

    def double(self, value: float) -> float:
        return 2 * value


class Blinking(Simulator):
    """Has something to say after every other step only, and never ends."""

    def __init__(self) -> None:
        self.clock = 0
        self.spec = Spec({"clock": Field((), "int64")}, {"": Field((2,), "float32", -1.0, 1.0)})

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        self.clock = 0

    def step(self, action: Any) -> StepResult:
        self.clock += 1
        return StepResult(0.0)

    def observe(self, out: dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        out["clock"][()] = self.clock

    def info(self) -> dict[str, Any]:
        return {} if self.clock % 2 else {"blink": self.clock}


class SlowCameras(Walker):
    """A walker without toggles, so that the short path of `Row.step` is taken."""

    expect = Simulator.expect


class Herd(LockstepSimulator):
    """Scenes that share one clock: every step moves them all, as OmniGibson's do.

    Each row is a counter that ends when it passes a limit drawn from its seed. `moved_while_held` counts what must stay
    zero: a held row that changed.
    """

    def __init__(self, rows: int, partial_reset: bool = True, longest: int = 12) -> None:
        self.count = rows
        self.longest = longest
        self.values = np.zeros(rows)
        self.limits = np.zeros(rows, int)
        self.ages = np.zeros(rows, int)
        self.shared_steps = 0
        self.resets = 0
        self.moved_while_held = 0
        self.spec = Spec(
            observations={"value": Field((1,), "float64"), "age": Field((), "int32")},
            actions={"": Field((1,), "float32", -1.0, 1.0)},
            infos={"limit": Field((), "int32")},
            can_save=True,
            partial_reset=partial_reset,
        )

    def reset(self, rows: Sequence[int], starts: Sequence[Start]) -> None:
        if not self.spec.partial_reset and len(rows) != self.count:
            raise RuntimeError("this stand-in can only be reset as a whole")
        self.resets += 1
        for row, start in zip(rows, starts):
            rng = np.random.default_rng(start.seed if start.seed is not None else row + 1000 * self.resets)
            self.values[row] = rng.uniform(-1, 1)
            self.limits[row] = rng.integers(1, self.longest + 1)
            self.ages[row] = 0
            if start.init_state is not None:
                self.load_state(row, start.init_state)

    def step(self, actions: Sequence[Any], live: np.ndarray) -> list[StepResult]:
        assert len(actions) == self.count
        assert live.any()
        self.shared_steps += 1
        results = []
        for row in range(self.count):
            before = self.values[row]
            self.values[row] += float(actions[row][0])
            if live[row]:
                self.ages[row] += 1
            elif self.values[row] != before:
                self.moved_while_held += 1
            done = bool(self.ages[row] >= self.limits[row])
            results.append(StepResult(float(self.values[row]), done, done))
        return results

    def observe(self, outs: Mapping[int, dict[str, np.ndarray]], cameras: Sequence[str]) -> None:
        for row, out in outs.items():
            out["value"][0] = self.values[row]
            out["age"][()] = self.ages[row]

    def info(self, row: int) -> dict[str, Any]:
        return {"limit": int(self.limits[row])}

    def save_state(self, row: int) -> Any:
        return np.array([self.values[row], self.limits[row], self.ages[row]])

    def load_state(self, row: int, state: Any) -> None:
        self.values[row], self.limits[row], self.ages[row] = state[0], int(state[1]), int(state[2])

    def held(self, row: int) -> int:
        return self.moved_while_held


def wait_while_held(folder: str) -> None:
    """Wait as long as there is a file that holds this worker: ``hold-<worker>``."""
    while os.path.exists(os.path.join(folder, "hold-" + os.environ["MANYARMS_WORKER"])):
        time.sleep(0.002)


class Held(Walker):
    """A walker whose resets and steps can be held up from outside."""

    def __init__(self, folder: str) -> None:
        super().__init__(cameras=(), goal=1e9)
        self.folder = folder

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        wait_while_held(self.folder)
        super().reset(task, seed, init_state)

    def step(self, action: Any) -> StepResult:
        wait_while_held(self.folder)
        return super().step(action)


class Stumbling(Walker):
    """A walker that fails in the first reset after a file was put there."""

    def __init__(self, marker: str) -> None:
        super().__init__(cameras=())
        self.marker = marker

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        if os.path.exists(self.marker):
            os.remove(self.marker)
            raise RuntimeError("the scene fell over")
        super().reset(task, seed, init_state)


class HeldHerd(Herd):
    """A herd whose resets and steps can be held up from outside."""

    def __init__(self, rows: int, folder: str, partial_reset: bool = True, longest: int = 50) -> None:
        super().__init__(rows, partial_reset, longest)
        self.folder = folder

    def reset(self, rows: Sequence[int], starts: Sequence[Start]) -> None:
        wait_while_held(self.folder)
        super().reset(rows, starts)

    def step(self, actions: Sequence[Any], live: np.ndarray) -> list[StepResult]:
        wait_while_held(self.folder)
        return super().step(actions, live)


class Misbehaving(Simulator):
    """Does what it is told by the first number of its action: raise, lie about shapes, exit, crash or hang."""

    RAISE, WRONG_SHAPE, EXIT, CRASH, HANG, WRONG_RESULT, KILL, SPIN, STOP, NONSENSE = range(1, 11)
    DIE_AFTER_RESET, BABBLE = 20, 21  # what `Faulty` alone does
    BEGET, STOP_NURSERY = 31, 32  # of `Faulty` only

    def __init__(self, fail_at: str = "", noise: bool = False) -> None:
        self.spec = Spec({"": Field((3,), "float32")}, {"": Field((1,), "float32")})
        self.shape = 3
        if noise:
            print("a simulator that prints a lot", flush=True)
        if fail_at == "start":
            raise RuntimeError("no licence found")
        if fail_at == "exit":
            sys.exit("exit while starting")
        if fail_at == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fail_at == "hang":
            time.sleep(1000)
        self.fail_at = fail_at

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        self.shape = 3
        if self.fail_at == "reset":
            raise RuntimeError("no scene to reset")

    def step(self, action: Any) -> StepResult:
        order = int(action[0])
        if order == self.RAISE:
            raise ValueError("the gripper fell off")
        if order == self.WRONG_SHAPE:
            self.shape = 2
        if order == self.EXIT:
            os._exit(7)
        if order == self.CRASH:
            print("about to crash", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        if order == self.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if order == self.HANG:
            time.sleep(1000)
        if order == self.SPIN:
            while True:
                pass
        if order == self.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        if order == self.NONSENSE:
            write_nonsense()
        if order == self.WRONG_RESULT:
            return 1.0  # type: ignore[return-value]
        return StepResult(1.0)

    def observe(self, out: dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        put(out, "", np.zeros(self.shape, np.float32))


class Wide(Simulator):
    """Shares a vector environment with `Walker`: other fields, a longer action."""

    def __init__(self, task: str = "") -> None:
        self.total = 0.0
        self.spec = Spec(
            {"position": Field((4,), "float64"), "force": Field((3,), "float32")},
            {"": Field((5,), "float32", -2.0, 2.0)},
        )

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        self.total = float(seed or 0)

    def step(self, action: Any) -> StepResult:
        assert action.shape == (5,)
        self.total += float(action.sum())
        return StepResult(self.total)

    def observe(self, out: dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        out["position"][:] = self.total
        out["force"][:] = -self.total


class Report(Simulator):
    """Tells about the process it runs in."""

    def __init__(self, variables: Sequence[str] = ()) -> None:
        self.variables = list(variables)
        self.spec = Spec({"": Field((1,))}, {"": Field((1,))})

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        pass

    def step(self, action: Any) -> StepResult:
        return StepResult(0.0)

    def observe(self, out: dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        out[""][0] = 0

    def info(self) -> dict[str, Any]:
        return {
            "python": "%d.%d" % sys.version_info[:2],
            "executable": sys.executable,
            "pid": os.getpid(),
            "modules": sorted(name for name in sys.modules if "." not in name),
            "path": list(sys.path),
            "environment": {name: os.environ.get(name) for name in self.variables},
            "cpus": sorted(os.sched_getaffinity(0)),
            "numpy": np.__version__,
        }


class Sleeper(Simulator):
    """Sleeps a time of its own before each step; `naps` is seconds by worker number."""

    def __init__(self, naps: dict[str, float] | None = None) -> None:
        self.nap = (naps or {}).get(os.environ["MANYARMS_WORKER"], 0.0)
        self.clock = 0
        self.spec = Spec({"": Field((1,))}, {"": Field((1,))})

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        self.clock = 0

    def step(self, action: Any) -> StepResult:
        time.sleep(self.nap)
        self.clock += 1
        return StepResult(float(self.clock))

    def observe(self, out: dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        out[""][0] = self.clock

    def save_state(self) -> Any:
        return self.clock

    def load_state(self, state: Any) -> None:
        self.clock = state


class Drifting(Walker):
    """Forgets its seed: the conformance suite must notice."""

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        super().reset(task, None if seed is None else time.perf_counter_ns() % (1 << 31), init_state)


def write_nonsense() -> None:
    """Write to every pipe and socket of this process, as a simulator does that closes and reuses descriptors."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            mode = os.fstat(fd).st_mode
            if fd > 2 and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
                os.write(fd, b"\xff" * 13)
        except OSError:
            continue
    raise ValueError("wrote nonsense")


def worker_around() -> Any:
    """Return the worker that is running what calls this."""
    frame = sys._getframe()  # type: Any
    while type(frame.f_locals.get("self")).__name__ != "Worker":
        frame = frame.f_back
    return frame.f_locals["self"]


class Scribbler(Simulator):
    """Writes what it is told to where only its worker should: to the status, the info, the bell and the socket."""

    def __init__(self, once: str = "") -> None:
        self.once = once
        self.clock = 0
        self.seed = None  # type: int | None
        self.nap = 0.0
        self.status = {}  # type: dict[int, int]
        self.own = {}  # type: dict[str, Any]
        self.info_bytes = self.after = self.bell = b""
        self.rings_for = -1
        self.spec = Spec({"": Field((1,))}, {"": Field((1,))})

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        self.clock = 0
        self.seed = seed

    def step(self, action: Any) -> StepResult:
        time.sleep(self.nap)
        worker = worker_around()
        if self.rings_for >= 0:
            self.bell = struct.pack("<II", self.rings_for, worker.ports[0].control[words.SEQUENCE])
        if self.bell:
            os.write(worker.bell_fd, self.bell)
        self.clock += 1
        return StepResult(1.0)

    def observe(self, out: dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        out[""][0] = self.clock

    def info(self) -> dict[str, Any]:
        worker = worker_around()
        port = next(runner.port for runner in worker.runners if runner.simulator is self)
        if self.clock == 0:
            if self.once and os.path.exists(self.once):
                os.remove(self.once)
                self._write_info(port, b"spam")
                return {}
            return {"seed": self.seed}
        for word, value in self.status.items():
            port.plain_steps = 0
            port.status[word] = value
        if self.info_bytes:
            self._write_info(port, self.info_bytes)
        if self.after:
            worker.sock.sendall(self.after)
            port.status[words.REPLY] = 1
        return self.own

    def _write_info(self, port: Any, data: bytes) -> None:
        port.plain_steps = 0
        port._info_area[: len(data)] = data
        port.status[words.INFO_BYTES] = len(data)

    def say(self, data: bytes) -> None:
        worker_around().sock.sendall(data)


class Babbling(Simulator):
    """Kills its process at 1; says what a file holds, once, instead of how it is made."""

    def __init__(self, orders: str) -> None:
        self.spec = Spec({"": Field((1,))}, {"": Field((1,))})
        if os.path.exists(orders):
            with open(orders, "rb") as file:
                data = file.read()
            os.remove(orders)
            worker_around().sock.sendall(data)
            time.sleep(1000)

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        pass

    def step(self, action: Any) -> StepResult:
        if action[0] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return StepResult(1.0)

    def observe(self, out: dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        out[""][0] = 0


class Diary(Sleeper):
    """Keeps the actions it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.actions = []  # type: list[Any]

    def step(self, action: Any) -> StepResult:
        self.actions.append(action)
        return super().step(action)

    def kept(self) -> Any:
        return [action.tolist() for action in self.actions]


class Passing(Sleeper):
    """Succeeds at its fifth step and goes on."""

    def step(self, action: Any) -> StepResult:
        return super().step(action)._replace(success=self.clock == 5)


class PassingHerd(Herd):
    """Succeeds at its fifth steps and goes on."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.spec = replace(self.spec, infos={})

    def step(self, actions: Sequence[Any], live: np.ndarray) -> list[StepResult]:
        super().step(actions, live)
        return [StepResult(0.0, bool(age == 5)) for age in self.ages]

    def info(self, row: int) -> dict[str, Any]:
        return {}


class Vanishing(Sleeper):
    """Starts until a file appears."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        if os.path.exists(marker):
            raise RuntimeError("the licence server has gone")


class Unlucky(Sleeper):
    """Cannot be built in the second worker, the first times that this is tried."""

    def __init__(self, tries: str, failures: int) -> None:
        super().__init__()
        if os.environ["MANYARMS_WORKER"] == "1":
            with open(tries, "a") as file:
                file.write("1")
            if os.path.getsize(tries) <= failures:
                raise ValueError("XML Error: unknown error in attribute 'quat'")


class Orphaning(Sleeper):
    """Forks a child, as loaders of data do, and is killed while it starts, as often as a file says."""

    def __init__(self, deaths: str, starts: str) -> None:
        super().__init__()
        with open(starts, "a") as file:
            file.write("%d\n" % os.getpid())
        with open(deaths) as file:
            left = int(file.read())
        if left:
            with open(deaths, "w") as file:
                file.write(str(left - 1))
            if os.fork() == 0:
                time.sleep(1000)
            os.kill(os.getpid(), signal.SIGKILL)


class Burner(Sleeper):
    """Computes for a time of its own on one CPU, however long that takes by the clock."""

    def __init__(self, seconds: float, cpu: int, threaded: bool = False) -> None:
        super().__init__()
        self.seconds = seconds
        self.threaded = threaded
        os.sched_setaffinity(0, {cpu})

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        super().reset(task, seed, init_state)
        self.burn()  # waits for its CPU, by itself: what it waits later is counted from there

    def step(self, action: Any) -> StepResult:
        if self.threaded:  # as simulators that have a main loop of their own: who called sleeps meanwhile
            thread = threading.Thread(target=self.burn)
            thread.start()
            thread.join()
        else:
            self.burn()
        return super().step(action)

    def burn(self) -> None:
        until = time.process_time() + self.seconds
        while time.process_time() < until:
            pass


class Leaky(Sleeper):
    """Holds more memory with every step."""

    def __init__(self, leak: int) -> None:
        super().__init__()
        self.leak = leak
        self.held = []  # type: list[np.ndarray]

    def step(self, action: Any) -> StepResult:
        self.held.append(np.ones(self.leak, np.uint8))
        return super().step(action)


class LargeOnce(Sleeper):
    """Holds much memory, but for those that start after a file is there."""

    def __init__(self, size: int, marker: str) -> None:
        super().__init__()
        self.held = None if os.path.exists(marker) else np.ones(size, np.uint8)
        with open(marker, "w"):
            pass


class Parent(Sleeper):
    """Starts a process of its own, as simulators start displays."""

    def __init__(self) -> None:
        super().__init__()
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])

    def info(self) -> dict[str, Any]:
        return {"child": self.child.pid}


class Faulty(Walker):
    """A walker whose third action number is an order to misbehave.

    It may also die just after a reset, and talk nonsense when its worker starts again.
    """

    NONSENSE = (
        b"spam\n" * 9,
        b"arms\xff\xff\xff\xff",
        b"arms\x06\x00\x00\x00\x02\x00\x00\x00{}",
        b"arms\x04\0\0\0" + bytes(4),
    )

    def __init__(self, folder: str = "") -> None:
        super().__init__(cameras=(), goal=1e9)
        self.spec = replace(self.spec, actions={"": Field((3,), "float32")})
        self.trouble = Misbehaving()
        self.dying = False
        self.orders = os.path.join(folder, "babble-" + os.environ["MANYARMS_WORKER"])
        if folder and os.path.exists(self.orders):
            os.remove(self.orders)
            worker_around().sock.sendall(self.NONSENSE[os.getpid() % len(self.NONSENSE)])
            time.sleep(1000)

    def reset(self, task: str | None, seed: int | None, init_state: Any) -> None:
        super().reset(task, seed, None)
        if init_state == "die":
            self.dying = True
            threading.Timer(0.005, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def step(self, action: Any) -> StepResult:
        order = int(action[2])
        if self.dying:
            time.sleep(1000)
        if order == Misbehaving.BABBLE:
            with open(self.orders, "w"):
                os.kill(os.getpid(), signal.SIGKILL)
        if order == Misbehaving.WRONG_SHAPE:
            self.trouble.shape = 2
        elif order == Misbehaving.WRONG_RESULT:
            return 1.0  # type: ignore[return-value]
        elif order in (Misbehaving.BEGET, Misbehaving.STOP_NURSERY):
            die_badly(order)
        elif order:
            self.trouble.step(action[2:])
        return super().step(action[:2])

    def observe(self, out: dict[str, np.ndarray], cameras: Sequence[str]) -> None:
        super().observe(out, cameras)
        if self.trouble.shape != 3:
            self.trouble.shape = 3
            put(out, "position", np.zeros(self.trouble.shape + 1))


class Closing(Sleeper):
    """Leaves a file behind when it is closed properly."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def close(self) -> None:
        with open(os.path.join(self.path, str(os.getpid())), "w"):
            pass


class Dice(Sleeper):
    """Draws from the global generators, as well-behaved simulators do not."""

    draw_number = staticmethod(np.random.random)  # numpy's generator is made before workers are forked

    def reset(self, task: Any, seed: Any, init_state: Any) -> None:
        super().reset(task, seed, init_state)
        self.drawn = {"python": random.random(), "numpy": float(self.draw_number())}

    def variable(self, name: str) -> Any:
        return os.environ.get(name)


class Stuck(Sleeper):
    """Falls into the kernel's deep sleep (state D), as behind a dead disk or driver: the parent of a `vfork`."""

    def step(self, action: Any) -> StepResult:
        if action[0] > 0 and ctypes.CDLL(None).vfork() == 0:
            time.sleep(1000)
            os._exit(0)
        return super().step(action)


class LateParent(Sleeper):
    """Starts a process of its own in the middle of a step, once a file appears."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def step(self, action: Any) -> StepResult:
        while not os.path.exists(os.path.join(self.folder, "go")):
            time.sleep(0.01)
        child = subprocess.Popen(["/bin/sleep", "1000"])
        with open(os.path.join(self.folder, "child-%d" % child.pid), "w"):
            time.sleep(1000)
        return super().step(action)


class Begetter(Sleeper):
    """Starts a process in a session of its own whose parent ends at once, as simulators start their helpers."""

    def __init__(self, how: str = "program", told: str = "") -> None:
        super().__init__()
        self.child = beget(how)
        if told:
            with open(told, "w") as file:
                file.write(str(self.child))

    def info(self) -> dict[str, Any]:
        return {"child": self.child}


def beget(how: str = "program") -> int:
    """Start a process that nothing ties to this one, and return its number."""
    ours, theirs = os.pipe()
    if not os.fork():
        os.setsid()
        child = os.fork()
        if not child and how != "fork":
            environment = {} if how == "program without variables" else dict(os.environ)
            os.execve("/bin/sleep", ["/bin/sleep", "1000"], environment)
        if not child:
            time.sleep(1000)
        os.write(theirs, str(child).encode())
        os._exit(0)
    os.close(theirs)
    os.wait()
    child = int(os.read(ours, 32))
    os.close(ours)
    return child


def die_badly(order: int) -> None:
    """End, but leave a process behind, or one stopped that this one's successor is to come from."""
    if order == Misbehaving.BEGET:
        beget(random.choice(["program", "program without variables", "fork"]))
        os.kill(os.getpid(), signal.SIGKILL)
    parent = os.getppid()
    with open(f"/proc/{parent}/cmdline", "rb") as command:  # it may be no nursery, but the test itself
        if b"manyarms.workers.main nursery" in command.read():
            os.kill(parent, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSEGV)


class Nesting(Sleeper):
    """Starts a script of its own, with a run of manyarms in it, that tells its first line in a file."""

    def __init__(self, script: str, told: str) -> None:
        super().__init__()
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with open(told, "w") as file:
            command = [sys.executable, "-c", script, "program", "sleep"]
            subprocess.Popen(command, stdout=file, start_new_session=True, env=env)
        while not os.path.getsize(told):
            time.sleep(0.01)


class Keen:
    """A policy that always walks on: an expert for walkers."""

    cameras = ()
    chunk = 1

    def act(self, observations: Any) -> Any:
        from manyarms.policies.base import ActionChunk

        return ActionChunk.of(np.ones((len(observations), 1, 2), np.float32))


def keen(spec: Spec) -> Keen:
    return Keen()


def right_of_the_middle(scene):  # type: ignore[no-untyped-def]
    """Reward a walker with 100 for every chunk that leaves it to the right."""
    return 100.0 * (scene.fields["position"][:, 0] > 0.0)


#: Update and kind of the videos that `VideoTracker` was given last.
VIDEOS = set()  # type: set[tuple[int, str]]


class VideoTracker:
    """Shows nothing, but notes which videos it is given."""

    def __init__(self, run):  # type: ignore[no-untyped-def]
        VIDEOS.clear()

    def log(self, metrics, step):  # type: ignore[no-untyped-def]
        pass

    def video(self, name, path, step):  # type: ignore[no-untyped-def]
        assert path.is_file()
        VIDEOS.add((step, name.partition("/")[0]))

    def close(self, failed):  # type: ignore[no-untyped-def]
        pass


#: What rows were told to do, as `note_texts` has seen it.
TEXTS = []  # type: list[str]


def note_texts(scene):  # type: ignore[no-untyped-def]
    """Reward nothing, but note what rows were told to do."""
    TEXTS.extend(scene.texts)
    return 0.0 * scene.steps
