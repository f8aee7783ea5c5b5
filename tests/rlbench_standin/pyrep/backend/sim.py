"""A stand-in for CoppeliaSim's own interface: it writes down what it is told."""

from __future__ import annotations

import os

sim_boolparam_realtime_simulation = 25
sim_intparam_idle_fps = 26


def note(line: str) -> None:
    """Append a line to the file that RLBENCH_STANDIN_LOG names, for tests to read."""
    path = os.environ.get("RLBENCH_STANDIN_LOG")
    if path:
        with open(path, "a") as log:
            log.write(line + "\n")


def simSetBoolParameter(parameter, value):  # noqa: N802
    note("bool %d %s" % (parameter, value))


def simSetInt32Parameter(parameter, value):  # noqa: N802
    note("int %d %d" % (parameter, value))
