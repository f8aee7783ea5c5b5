"""Whether a simulator can draw where it is started: ``python trial.py``, what to build on its standard input.

A program of its own: a simulator that cannot draw mostly crashes.
"""

import os
import sys


def main():
    # type: () -> None
    from main import read_plan  # pyright: ignore[reportMissingImports]  # the file beside this one

    plan = read_plan()
    import numpy

    from manyarms.simulators.registry import build

    simulator = build(plan["simulator"], plan["options"], 1, None)[0][0]
    spec = simulator.spec
    if spec.cameras:
        simulator.reset(None, 0, None)
        seen = {name: numpy.zeros(field.shape, field.dtype) for name, field in spec.observations.items()}
        simulator.observe(seen, spec.cameras)
        if not any(seen[name].any() for name, field in spec.observations.items() if field.camera):
            sys.exit("every pixel that it draws is black")
    # What was to be found out is: an end that goes wrong must not say otherwise.
    os._exit(0)


if __name__ == "__main__":
    main()
