"""The life of a worker: say hello, build the simulator, map the arena, then answer the doorbell."""

from __future__ import annotations

import gc
import os
import platform
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence

from . import wire
from . import words as w
from .messages import check

if TYPE_CHECKING:
    from .port import Port  # needs numpy, which the interpreter may lack


#: Commands are a byte or two; a buffer no larger than this is cheap to allocate. Payloads are read as they come.
_READ_SIZE = 256

#: The commands that a row may be sent, and those that the rows of a lock-step group may be sent together.
_OF_ROWS = (w.STEP, w.RESET, w.CALL)
_OF_GROUPS = (w.NOTHING, w.STEP, w.RESET)


serving = False
"""Whether this process is a worker."""


def serve(socket_fd: int, command_fd: int, bell_fd: int, arena_fd: int) -> None:
    """Serve until the main side closes the command pipe."""
    global serving  # noqa: PLW0603 (a process is a worker or it is not)
    serving = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main side's to handle
    compute_quietly()
    sock = socket.socket(fileno=socket_fd)
    for fd in (socket_fd, command_fd, bell_fd, arena_fd):
        os.set_inheritable(fd, False)  # a simulator's own children must not keep us alive
    hello = {"kind": "hello", "protocol": wire.PROTOCOL, "python": platform.python_version(), "message": ""}
    try:
        import numpy

        hello["numpy"] = numpy.__version__
    except ImportError as error:
        hello["numpy"] = None
        hello["message"] = str(error)
    sock.sendall(wire.frame(hello))
    try:
        worker = Worker(sock, command_fd, bell_fd, check(wire.receive(sock), "start"))
    except (ConnectionError, Refused):
        return
    except wire.Unreadable as error:
        sys.exit("what the main side sent cannot be read: %s" % error)
    try:
        worker.attach(arena_fd, check(wire.receive(sock), "plan"))
        worker.run()
    except ConnectionError:
        pass  # the main side has gone; nobody is left to tell
    except wire.Unreadable as error:
        sys.exit("what the main side sent cannot be read: %s" % error)
    finally:
        worker.close()


def compute_quietly() -> None:
    """Ask the scheduler not to push others aside when this process wakes up.

    The one pushed aside would be the main side, which is about to wake the next worker: worth a tenth of the throughput
    of cheap simulators.
    """
    if hasattr(os, "sched_setscheduler"):
        try:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        except OSError:
            return  # a container may forbid it; nothing depends on it


def extend_path(entries: Sequence[str]) -> None:
    """Look for modules in `entries` too, first."""
    known = {os.path.abspath(path) for path in sys.path}
    sys.path[:0] = [path for path in entries if path not in known]


class Refused(Exception):
    """The simulator could not be built; the main side has been told why."""


class Worker:
    """The simulators of this process and the rows they fill."""

    def __init__(self, sock: socket.socket, command_fd: int, bell_fd: int, start: Dict[str, Any]) -> None:
        self.sock = sock
        self.command_fd = command_fd
        self.bell_fd = bell_fd
        self.awake = 0.0
        """Seconds to look out for the next command before sleeping."""
        self.ports: List[Port] = []
        self.runners: List[Any] = []
        self.group: Any = None
        self.simulators, self.lockstep = self._build(start)
        specs = [simulator.spec.to_json() for simulator in self.simulators]
        sock.sendall(wire.frame({"kind": "spec", "specs": specs, "lockstep": self.lockstep}))

    def _build(self, start: Dict[str, Any]) -> Any:
        from ..simulators.registry import build, rename

        extend_path(start["search_path"])
        if start["cpus"] and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, start["cpus"])
        try:
            name, options, limit = start["simulator"], start["options"], start["max_episode_steps"]
            simulators, lockstep = build(name, options, start["rows"], limit)
            for simulator in simulators:
                _check_simulator(simulator)
                rename(simulator, start["rename"])
            return simulators, lockstep
        except (Exception, SystemExit) as error:
            self.sock.sendall(wire.frame(wire.describe_error(error, "start")))
            raise Refused from error

    def attach(self, arena_fd: int, plan: Dict[str, Any]) -> None:
        """Map the arena and give every row its port."""
        from .arena import Arena, Layout
        from .lockstep import Group
        from .port import Port
        from .rows import Row

        memory = Arena(Layout.from_json(plan["layout"]), arena_fd)
        os.close(arena_fd)
        self.awake = plan["stay_awake"]
        specs = [simulator.spec for simulator in self.simulators]
        for i in range(plan["rows"]):
            spec = specs[0] if self.lockstep else specs[i]
            self.ports.append(Port(memory, plan["first_row"] + i, spec, plan["rename"]))
        limit: Optional[int] = plan["max_episode_steps"] or specs[0].horizon
        if self.lockstep:
            self.group = Group(self.ports, self.simulators[0], limit, plan["profile"])
        else:
            pairs = zip(self.ports, self.simulators)
            self.runners = [Row(port, simulator, limit, plan["profile"]) for port, simulator in pairs]
        self.sock.sendall(wire.frame({"kind": "attached"}))

    def run(self) -> None:
        """Answer the doorbell: each byte names a row whose command is ready."""
        receive, ring, pack = os.read, os.write, wire.RECORD.pack
        command_fd, bell_fd, step = self.command_fd, self.bell_fd, w.STEP
        command_word, sequence_word, done_word, reply_word = w.COMMAND, w.SEQUENCE, w.DONE, w.REPLY
        steps = {
            bytes([i]): (port.row, port.control, port.status, runner.step)
            for i, (port, runner) in enumerate(zip(self.ports, self.runners))
        }
        everyone = bytes(range(len(self.runners)))
        controls = [port.control for port in self.ports]
        first, awake, clock, give_way = self.ports[0].control, self.awake, time.perf_counter, _give_way()
        gc.collect()
        gc.freeze()  # what is loaded now stays; later collections need not walk it
        while True:
            if awake:
                # A sleeping CPU takes longer to wake than a cheap step takes to run.
                bedtime = clock() + awake
                while first[sequence_word] == first[done_word] and clock() < bedtime:
                    give_way()
            rung = receive(command_fd, _READ_SIZE)
            if rung in steps:
                row, control, status, run = steps[rung]
                if control[command_word] == step:  # the usual case, one row and no payload, without the detour below
                    try:
                        run()
                    except (Exception, SystemExit) as error:
                        self._report([self.ports[rung[0]]], error)
                    sequence = control[done_word] = control[sequence_word]
                    ring(bell_fd, pack(row, sequence))
                    if status[reply_word]:
                        self.sock.sendall(wire.frame(self.ports[rung[0]].take_reply()))
                    continue
            elif rung and rung == everyone and all(control[command_word] == step for control in controls):
                self._step_everyone()
                continue
            if not rung:
                return  # the main side has closed the pipe, or has gone
            self._answer_all(rung)

    def _step_everyone(self) -> None:
        """Step every row: `_answer_all` for the usual case of several rows."""
        records = b""
        for port, runner in zip(self.ports, self.runners):
            try:
                runner.step()
            except (Exception, SystemExit) as error:
                self._report([port], error)
            control = port.control
            control[w.DONE] = control[w.SEQUENCE]
            records += wire.RECORD.pack(port.row, control[w.SEQUENCE])
        os.write(self.bell_fd, records)
        self._reply_for(self.ports)

    def _answer_all(self, rung: bytes) -> None:
        """Carry out every command that was rung for, then ring back once."""
        done: List[Port] = []
        position = 0
        while position < len(rung):
            byte = rung[position]
            position += 1
            together = byte == wire.GROUP and self.group is not None
            rows = self.ports if together else self.ports[byte : byte + 1]
            allowed = _OF_ROWS if self.group is None else _OF_GROUPS if together else (w.CALL,)
            if not rows:
                raise wire.Unreadable("there is no row %d here" % byte)
            requests: List[Optional[Dict[str, Any]]] = []
            for port in rows:
                # What follows the byte is this command's payload; it may not have arrived yet.
                size = port.control[w.PAYLOAD]
                if not 0 <= size <= wire.MOST_BYTES:
                    raise wire.Unreadable("row %d's command has %d bytes" % (port.row, size))
                missing = size - (len(rung) - position)
                if missing > 0:
                    rung += read_exactly(self.command_fd, missing)
                requests.append(_request(port.control[w.COMMAND], allowed, rung[position : position + size]))
                position += size
            asked = [port for port in rows if port.control[w.COMMAND] != w.NOTHING]
            if not together:
                self._guard(asked, self._run_row, byte, requests[0])
            elif asked:
                self._guard(asked, self._run_group, requests)
            done += asked
        for port in done:
            port.control[w.DONE] = port.control[w.SEQUENCE]
        os.write(self.bell_fd, b"".join(wire.RECORD.pack(port.row, port.control[w.SEQUENCE]) for port in done))
        self._reply_for(done)

    def _reply_for(self, ports: Sequence[Port]) -> None:
        """Send what was too large for the arena, in the order of the bell."""
        for port in ports:
            if port.status[w.REPLY]:
                self.sock.sendall(wire.frame(port.take_reply()))

    def _guard(self, ports: Sequence[Port], run: Callable[..., None], *args: Any) -> None:
        """Run a command; what it raises becomes the answer of the rows concerned."""
        try:
            run(*args)
        except (Exception, SystemExit) as error:
            self._report(ports, error)

    def _report(self, ports: Sequence[Port], error: BaseException) -> None:
        phase = {w.STEP: "step", w.RESET: "reset", w.CALL: "call"}[ports[0].control[w.COMMAND]]
        description = wire.describe_error(error, phase)
        for port in ports:
            port.begin_report()
            port.report_failure(description)

    def _run_group(self, requests: Sequence[Optional[Dict[str, Any]]]) -> None:
        from ..simulators.base import Start

        self.group.run({i: Start(**request) for i, request in enumerate(requests) if request is not None})

    def _run_row(self, index: int, request: Optional[Dict[str, Any]]) -> None:
        if request is None:
            self.runners[index].step()
        elif "method" not in request:
            self.runners[index].reset(request)
        elif self.group is None:
            self.runners[index].call(**request)
        else:
            self.group.call(index, **request)

    def close(self) -> None:
        """Close every simulator."""
        for simulator in self.simulators:
            simulator.close()


def _request(command: int, allowed: Sequence[int], payload: bytes) -> Optional[Dict[str, Any]]:
    """Return what comes with a command: nothing with a step."""
    if command not in allowed:
        raise wire.Unreadable("there is no command %d here" % command)
    if command not in (w.RESET, w.CALL):
        return None
    return check(wire.decode(payload), "reset" if command == w.RESET else "call")


def _give_way() -> Callable[[], None]:
    """Return what lets others have the CPU."""
    return getattr(os, "sched_yield", lambda: time.sleep(0))


def read_exactly(fd: int, size: int) -> bytes:
    """Read `size` bytes of a command's payload."""
    parts: List[bytes] = []
    while size:
        part = os.read(fd, size)
        if not part:
            raise wire.Disconnected("the main side has gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _check_simulator(simulator: Any) -> None:
    """Refuse an object that would only fail at the first step."""
    from ..simulators.base import Spec

    missing = [name for name in ("reset", "step", "observe", "info", "close") if not hasattr(simulator, name)]
    if missing:
        raise TypeError("%r is not a simulator: it has no %s" % (simulator, ", ".join(missing)))
    if not isinstance(getattr(simulator, "spec", None), Spec):
        raise TypeError("%s.spec must be a manyarms.simulators.base.Spec" % type(simulator).__name__)
    if len(simulator.spec.infos) > 31:
        raise ValueError("a simulator may declare at most 31 info fields")
