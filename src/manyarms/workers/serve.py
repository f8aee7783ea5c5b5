"""The life of a worker: say hello, build the simulator, map the arena, then answer the doorbell."""

from __future__ import annotations

import os
import platform
import signal
import socket
import sys
from typing import Any, Dict, List, Union

from . import wire
from . import words as w


def serve(command_fd: int, bell_fd: int, arena_fd: int) -> None:
    """Serve until the main side closes the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main side's to handle
    sock = socket.socket(fileno=command_fd)
    for fd in (command_fd, bell_fd, arena_fd):
        os.set_inheritable(fd, False)  # a simulator's own children must not keep us alive
    hello = {"kind": "hello", "protocol": wire.PROTOCOL, "python": platform.python_version(), "pid": os.getpid()}
    try:
        import numpy

        hello["numpy"] = numpy.__version__
    except ImportError as error:
        hello["numpy"] = None
        hello["message"] = str(error)
    sock.sendall(wire.frame(hello))
    try:
        worker = Worker(sock, bell_fd, wire.receive(sock))
    except (ConnectionError, Refused):
        return
    try:
        worker.attach(arena_fd, wire.receive(sock))
        worker.run()
    except ConnectionError:
        pass  # the main side has gone; nobody is left to tell
    finally:
        worker.close()


class Refused(Exception):
    """The simulator could not be built; the main side has been told why."""


class Worker:
    """The simulators of this process and the rows they fill."""

    def __init__(self, sock: socket.socket, bell_fd: int, start: Dict[str, Any]) -> None:
        self.sock = sock
        self.bell_fd = bell_fd
        self.first_row = 0
        self.ports: List[Any] = []
        self.runners: List[Any] = []
        self.group: Any = None
        self.simulators, self.lockstep = self._build(start)
        specs = [simulator.spec.to_json() for simulator in self.simulators]
        sock.sendall(wire.frame({"kind": "spec", "specs": specs, "lockstep": self.lockstep}))

    def _build(self, start: Dict[str, Any]) -> Any:
        from ..simulators.registry import build

        for path in reversed(start["search_path"]):
            if path not in sys.path:
                sys.path.insert(0, path)
        if start["cpus"] and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, start["cpus"])
        try:
            simulators, lockstep = build(start["simulator"], start["options"], start["rows"])
            for simulator in simulators:
                _check_simulator(simulator, lockstep)
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
        self.first_row = plan["first_row"]
        specs = [simulator.spec for simulator in self.simulators]
        for i in range(plan["rows"]):
            spec = specs[0] if self.lockstep else specs[i]
            self.ports.append(Port(memory, self.first_row + i, spec, plan["rename"]))
        limit: Union[int, None] = plan["max_episode_steps"] or specs[0].horizon
        if self.lockstep:
            self.group = Group(self.ports, self.simulators[0], limit, plan["profile"])
        else:
            pairs = zip(self.ports, self.simulators)
            self.runners = [Row(port, simulator, limit, plan["profile"]) for port, simulator in pairs]
        self.sock.sendall(wire.frame({"kind": "attached"}))

    def run(self) -> None:
        """Answer the doorbell: each byte names a row whose command is ready."""
        receive = self.sock.recv
        while True:
            rung = receive(4096)
            if not rung:
                raise wire.Disconnected("the main side has gone")
            position = 0
            done: List[Any] = []
            while position < len(rung):
                byte = rung[position]
                position += 1
                if byte == wire.CONTROL:
                    return
                rows = self.ports if byte == wire.GROUP else [self.ports[byte]]
                for port in rows:
                    # What follows the byte is this command's payload; it may not have arrived yet.
                    size = port.control[w.PAYLOAD]
                    missing = size - (len(rung) - position)
                    if missing > 0:
                        rung += wire.receive_exactly(self.sock, missing)
                    port.payload = rung[position : position + size] if size else b""
                    position += size
                done += self._carry_out(byte, rows)
            self._answer(done)

    def _carry_out(self, byte: int, rows: List[Any]) -> List[Any]:
        """Run one command; return the ports that have something to say."""
        asked = [port for port in rows if port.control[w.COMMAND] != w.NOTHING]
        for port in asked:
            port.begin_report()
        try:
            if byte == wire.GROUP:
                from ..simulators.base import Start

                resets = [i for i, port in enumerate(rows) if port.control[w.COMMAND] == w.RESET]
                self.group.run({i: Start(**wire.decode(rows[i].payload)) for i in resets})
            else:
                self._carry_out_row(byte, asked[0])
        except (Exception, SystemExit) as error:
            phase = {w.STEP: "step", w.RESET: "reset", w.CALL: "call"}[asked[0].control[w.COMMAND]]
            description = wire.describe_error(error, phase)
            for port in asked:
                port.report_failure(description)
        return asked

    def _carry_out_row(self, byte: int, port: Any) -> None:
        command = port.control[w.COMMAND]
        if command == w.STEP:
            self.runners[byte].step()
        elif command == w.RESET:
            self.runners[byte].reset(wire.decode(port.payload))
        elif self.group is not None:
            self.group.call(byte, **wire.decode(port.payload))
        else:
            self.runners[byte].call(**wire.decode(port.payload))

    def _answer(self, done: List[Any]) -> None:
        """Ring the bell once for all that is done; long answers follow on the socket in the same order."""
        if len(done) == 1:
            port = done[0]
            os.write(self.bell_fd, wire.RECORD.pack(port.row, port.control[w.SEQUENCE]))
        else:
            os.write(self.bell_fd, b"".join(wire.RECORD.pack(port.row, port.control[w.SEQUENCE]) for port in done))
        for port in done:
            if port.status[w.REPLY]:
                self.sock.sendall(wire.frame(port.reply))

    def close(self) -> None:
        """Close every simulator."""
        for simulator in self.simulators:
            simulator.close()


def _check_simulator(simulator: Any, lockstep: bool) -> None:
    """Refuse an object that would only fail at the first step."""
    from ..simulators.base import Spec

    missing = [name for name in ("reset", "step", "observe", "info", "close") if not hasattr(simulator, name)]
    if missing:
        raise TypeError("%r is not a simulator: it has no %s" % (simulator, ", ".join(missing)))
    if not isinstance(getattr(simulator, "spec", None), Spec):
        raise TypeError("%s.spec must be a manyarms.simulators.base.Spec" % type(simulator).__name__)
    if len(simulator.spec.infos) > 31:
        raise ValueError("a simulator may declare at most 31 info fields")
