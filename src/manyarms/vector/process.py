"""One worker process: its environment, its sockets, its log, and how it ended."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from manyarms.errors import StartError, WorkerDied
from manyarms.vector.config import SimulatorConfig, VectorConfig
from manyarms.vector.display import Variables
from manyarms.vector.endings import signal_name
from manyarms.vector.keeper import Keeper, end_all
from manyarms.vector.nursery import LOST, Child, ForkedChild, Nursery, NurseryGone
from manyarms.workers import wire

_MAIN = Path(wire.__file__).with_name("main.py")

#: Each maths library has a thread pool of its own; N workers times M threads is how machines are brought to a stop.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
    "LP_NUM_THREADS",
)

#: These belong to the interpreter that is running now and would lead another one astray.
_OWN_PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "PYTHONEXECUTABLE")

_TAIL_BYTES = 8192
_TAIL_LINES = 12

#: Commands of no more bytes than this fit into the pipe for all rows of a worker at once.
_SHORT = 64
_SECONDS_FOR_A_FRAME = 30.0
_READ_BYTES = 1 << 20

#: How long a worker that has hung up may take to end, and how long the kernel to end one that is killed.
_SECONDS_TO_END = 10.0
_SECONDS_TO_GO = 2.0


# The phases of a worker's life.
DOWN, GREETING, BUILDING, BUILT, ATTACHING, READY = range(6)


class WorkerProcess:
    """A child process with a command pipe, a socket for answers, a pidfd and a log."""

    def __init__(self, index: int, rows: Sequence[int], simulator: SimulatorConfig, config: VectorConfig) -> None:
        self.index = index
        self.rows = list(rows)
        self.simulator = simulator
        self._config = config
        self.log_path = Path(config.log_dir) / f"worker-{index}.log" if config.log_dir is not None else None
        self.lockstep = False
        self.phase = DOWN
        self.specs: Any = None
        self.failures_in_a_row = 0
        """Since an episode last came to its end here."""
        self.episodes = 0
        self.restarts = 0
        self.last_error: BaseException | None = None
        self.restart_at = 0.0
        """When it is to be started again; while it starts, when it must have."""
        self.cpus: list[int] = []
        self._display: Variables | None = None
        self.mark = 0
        """What everything that this process starts bears, see keeper.py."""
        self.pidfd = -1
        self.command_fd = -1
        """Where doorbells are rung; a pipe, which wakes a process at two thirds of a socket's cost."""
        self._log: IO[bytes] | None = None
        self._process: Child | None = None
        self._socket: socket.socket | None = None
        self._heard: deque[bytes] = deque()
        """Messages that were read before anyone asked for them."""
        self._inbox = bytearray()
        """What has arrived of the next."""

    @property
    def pid(self) -> int:
        """The process id, of the last process if it has ended."""
        return self._process.pid if self._process else -1

    @property
    def socket(self) -> socket.socket:
        """The socket of the handshake and of long answers."""
        assert self._socket is not None, "the worker has not been started"
        return self._socket

    @property
    def interpreter(self) -> str:
        return self.simulator.python or sys.executable

    def spawn(
        self,
        bell_fd: int,
        arena_fd: int,
        cpus: Sequence[int] = (),
        nursery: Nursery | None = None,
        display: Variables | None = None,
    ) -> None:
        """Start the process, on `cpus` if any are given; it says hello when it is up."""
        self.cpus = list(cpus)
        self._display = display
        if self.log_path is not None:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            self._log = self.log_path.open("ab")
        else:
            self._log = tempfile.TemporaryFile(prefix="manyarms-")  # noqa: SIM115 (closed by end())
        if nursery is not None:
            own = {**own_variables(self.index, self._config), **self.simulator.env}
            name, log = f"arm-{self.index}", self._log.fileno()
            with contextlib.suppress(NurseryGone):
                return self._start(lambda fds: nursery.bear([*fds, log], own, name), bell_fd, arena_fd)
        return self._start(self._run, bell_fd, arena_fd)

    def _start(self, launch: Callable[[list[int]], Child], bell_fd: int, arena_fd: int) -> None:
        """Launch the process with a socket and a pipe of its own: a nursery that hangs keeps those it was sent."""
        ours, theirs = socket.socketpair()
        commands, command_fd = os.pipe()
        try:
            self._process = launch([theirs.fileno(), commands, bell_fd, arena_fd])
        except (NurseryGone, StartError):
            ours.close()
            os.close(command_fd)
            raise
        finally:
            theirs.close()
            os.close(commands)
        ours.settimeout(_SECONDS_FOR_A_FRAME)
        self._socket, self.command_fd = ours, command_fd
        self.mark = Keeper.instance().mark(self._process.pid)  # it starts nothing before we have answered its hello
        self.pidfd = os.pidfd_open(self._process.pid)

    def _run(self, fds: Sequence[int]) -> Child:
        """Start the process by itself, in its own interpreter."""
        label = f"manyarms.workers.main worker-{self.index} {self.simulator.id}"
        try:
            return subprocess.Popen(
                [*worker_command(self.interpreter), *map(str, fds), label],
                pass_fds=fds,
                env=worker_environment(self.index, self.simulator, self._config, self._display),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # the terminal's Ctrl-C is not for workers
            )
        except OSError as error:
            raise StartError(
                f"{self.interpreter} could not be started: {error.strerror}",
                do="give the path of a python executable or of a virtual environment",
            ) from error

    def send(self, value: Any) -> None:
        """Send a frame of the handshake."""
        self.socket.sendall(wire.frame(value))

    def ring(self, data: bytes) -> None:
        """Ring the doorbell. Where nobody answers, the worker is dying and its pidfd will say so, with the cause."""
        try:
            if len(data) <= _SHORT:
                os.write(self.command_fd, data)
            else:
                self._ring_at_length(memoryview(data))
        except ConnectionError:
            return
        except (TimeoutError, wire.Unreadable) as error:
            self.last_error = self.nonsense(error)
            self.kill()

    def _ring_at_length(self, data: memoryview) -> None:
        """Write what the pipe may not hold, and hear what the worker says meanwhile: else each waits for the other."""
        poller = select.poll()
        poller.register(self.command_fd, select.POLLOUT)
        poller.register(self.socket, select.POLLIN)
        while data:
            ready = [fd for fd, _ in poller.poll()]
            if self.command_fd in ready:
                data = data[os.write(self.command_fd, data[: select.PIPE_BUF]) :]
            else:
                self._heard.append(self._wait_for_message())

    def hear(self) -> Iterator[Any]:
        """Return the messages that are there, as far as they are whole; to be called when something is."""
        self._read()
        while (message := wire.take_frame(self._inbox)) is not None:
            yield wire.decode(message)

    def receive(self) -> Any:
        """Return a message that was announced."""
        return wire.decode(self._heard.popleft() if self._heard else self._wait_for_message())

    def _wait_for_message(self) -> bytes:
        """Wait until a message is whole; one that takes too long, however much of it is there, never will be."""
        deadline = time.monotonic() + _SECONDS_FOR_A_FRAME
        try:
            while (message := wire.take_frame(self._inbox)) is None:
                self.socket.settimeout(max(1e-6, deadline - time.monotonic()))
                self._read()
        finally:
            self.socket.settimeout(_SECONDS_FOR_A_FRAME)
        return message

    def _read(self) -> None:
        part = self.socket.recv(_READ_BYTES)
        if not part:
            raise wire.Disconnected("the worker closed the connection")
        self._inbox += part

    def describe(self, seed: int | None = None) -> str:
        """Name the worker as error messages do."""
        rows = f", row {self.rows[0]}" if self.rows != [self.index] and len(self.rows) == 1 else ""
        if len(self.rows) > 1:
            rows = f", rows {self.rows[0]}-{self.rows[-1]}"
        return f"worker {self.index} ({self.simulator.id}{rows}{f', seed {seed}' if seed is not None else ''})"

    def memory(self) -> int:
        """Return the resident memory of the process in bytes, 0 when it is gone."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * resource.getpagesize()
        except (OSError, IndexError):
            return 0

    def log_tail(self) -> str:
        """Return the last lines the worker printed."""
        if self._log is None:
            return ""
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(self.log_path.open("rb")) if self.log_path else self._log
            size = os.fstat(log.fileno()).st_size
            text = os.pread(log.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")
        return "\n".join(text.strip().splitlines()[-_TAIL_LINES:])

    def death(self, seed: int | None = None, doing: str = "") -> WorkerDied:
        """Say how a process that is gone went; whatever it started goes too."""
        what, cause, do = self._ending()
        tail = self.log_tail()
        why = "\n".join(part for part in (cause, f"it last printed:\n{tail}" if tail else "") if part)
        what = f"{self.describe(seed)} {what}{f' {doing}' if doing else ''}"
        return WorkerDied(what, rows=self.rows, why=why, do=do, log=str(self.log_path or ""))

    def nonsense(self, error: Exception, seed: int | None = None) -> WorkerDied:
        """Say that what the worker sent could not be read."""
        tail = self.log_tail()
        return WorkerDied(
            f"{self.describe(seed)} gave an answer that cannot be read, and was ended",
            rows=self.rows,
            why="\n".join(filter(None, [str(error), f"it last printed:\n{tail}" if tail else ""])),
            do="look for what else writes to its files: the simulator may close or reuse some that are not its own",
            log=str(self.log_path or ""),
        )

    def _ending(self) -> tuple[str, str, str]:
        """Return how the process ended, the cause, and what to do; one that does not end by itself is killed."""
        by_itself = self.await_end(_SECONDS_TO_END)
        code = self._reap()
        if code is None:
            return "was killed but does not go", "the kernel cannot end it (state D)", "look at disks and drivers"
        if not by_itself:
            what = f"closed its connection, went on for {_SECONDS_TO_END:g} s and was killed for that"
            return what, "", "look at what it last printed"
        if code == LOST and isinstance(self._process, ForkedChild):
            return "ended, and its exit code is lost", self._process.why_lost(), "look at what it last printed"
        return explain_exit(code)

    def kill(self) -> None:
        """End the process and everything it started, at once."""
        kill_all([self])

    def ask_to_close(self) -> None:
        """Ask the process to close its simulators and end."""
        if self.command_fd >= 0:
            os.close(self.command_fd)
            self.command_fd = -1
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the worker may be gone already
                self._socket.shutdown(socket.SHUT_WR)

    def await_end(self, timeout: float) -> bool:
        """Wait for the process to end; tell whether it has."""
        if self.pidfd < 0:
            return True
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(max(0.0, timeout) * 1000))

    def end(self) -> None:
        """Kill what is left, let go of everything."""
        self._reap()
        self.ask_to_close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._heard.clear()
        self._inbox.clear()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        if self._log is not None:
            self._log.close()
            self._log = None

    def _reap(self) -> int | None:
        """Kill the process and what it has started, and return how it ended; None while the kernel cannot end it."""
        self.kill()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_SECONDS_TO_GO)
        return self._process.returncode if self._process else None


def kill_all(workers: Sequence[WorkerProcess], patience: float = 0.0) -> None:
    """End processes and everything they have started, at once, and wait that long until they are gone."""
    marks = {worker.mark for worker in workers if worker.mark}
    if marks:
        end_all(marks, patience)
    for worker in workers:
        worker.mark = 0


def worker_command(interpreter: str) -> list[str]:
    """Return how a worker, or a nursery, is started; its file descriptors and a label follow."""
    return [interpreter, "-X", "faulthandler", str(_MAIN)]


def worker_environment(
    index: int, simulator: SimulatorConfig, config: VectorConfig, display: Variables | None = None
) -> dict[str, str]:
    """Return the environment a worker starts with."""
    env = {**common_environment(simulator, config), **(display or {}), **own_variables(index, config), **simulator.env}
    return {name: value for name, value in env.items() if value is not None}


def common_environment(simulator: SimulatorConfig, config: VectorConfig) -> dict[str, str]:
    """Return what is the same for all workers of a simulator."""
    env = dict(os.environ)
    if simulator.python is not None and simulator.python != os.path.abspath(sys.executable):
        for name in _OWN_PYTHON_VARIABLES:
            env.pop(name, None)
    env.update(dict.fromkeys(THREAD_VARIABLES, str(config.threads_per_worker)))
    env["PYTHONUNBUFFERED"] = "1"
    env.update(simulator.env)
    return env


def own_variables(index: int, config: VectorConfig) -> dict[str, str]:
    """Return the variables in which a worker differs from its neighbours."""
    own = {"MANYARMS_WORKER": str(index)}
    if config.egl_device is not None:
        devices = [config.egl_device] if isinstance(config.egl_device, int) else list(config.egl_device)
        own["MUJOCO_EGL_DEVICE_ID"] = own["EGL_DEVICE_ID"] = str(devices[index % len(devices)])
    return own


def explain_exit(code: int) -> tuple[str, str, str]:
    """Return what an exit status says, its usual cause, and what to do."""
    if code >= 0:
        return f"ended with exit code {code}", "", "look at what it last printed; the simulator may have called exit"
    name = signal_name(-code)
    causes: Mapping[str, tuple[str, str]] = {
        "SIGKILL": ("the system was out of memory (usual cause)", "lower num_envs, or give the machine more memory"),
        "SIGSEGV": ("the simulator's native code crashed", "replay the seed by itself; update the simulator or driver"),
        "SIGABRT": ("the simulator's native code gave up", "look at what it last printed"),
        "SIGBUS": ("shared memory or a mapped file could not be had", "free memory, or lower num_envs"),
        "SIGTERM": ("someone asked it to end", "look for what sent the signal"),
    }
    why, do = causes.get(name, ("", "look at what it last printed"))
    return f"was killed by {name}", why, do
