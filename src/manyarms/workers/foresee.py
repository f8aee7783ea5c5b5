"""What would keep a simulator from starting, asked in the interpreter that it lives in: ``python foresee.py``.

What to look at is on its standard input, the answer on its standard output. Nothing is started.
"""

import json
import os


def main():
    # type: () -> None
    from main import read_plan  # pyright: ignore[reportMissingImports]  # the file beside this one

    answer = os.dup(1)
    os.dup2(2, 1)  # what is imported may print
    plan = read_plan()
    from manyarms.simulators.base import UnknownTask
    from manyarms.simulators.registry import foresee

    try:
        found = {"lacks": foresee(plan["simulator"], plan["options"])}
    except UnknownTask as error:
        found = {"unknown": error.task, "known": error.known, "why": str(error)}
    os.write(answer, json.dumps(found).encode())


if __name__ == "__main__":
    main()
