"""Entry point of a worker process: ``python main.py <socket> <command pipe> <bell pipe> <arena> <label>``, all fds.

With one number, ``python main.py <socket> <label>``, it is a process that forks workers (see nursery.py).

Started by path in whatever interpreter the simulator lives in, so the first lines must parse in any Python 3 and must
not let our directory shadow anything there.
"""

import os
import sys


def adopt_package():
    # type: () -> None
    """Make ``manyarms`` importable from where this file lies, without putting our site-packages on the path."""
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    package = os.path.dirname(here)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.util.spec_from_file_location(
        "manyarms", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None:
        sys.exit("manyarms is not at %s" % package)
    module = importlib.util.module_from_spec(spec)
    sys.modules["manyarms"] = module
    spec.loader.exec_module(module)


def read_plan():
    # type: () -> dict
    """Return what to build, in a program that is asked about a simulator: it is told on standard input."""
    adopt_package()
    from manyarms.workers.messages import check
    from manyarms.workers.serve import extend_path
    from manyarms.workers.wire import Unreadable, decode

    try:
        plan = check(decode(sys.stdin.buffer.read()), "build")
    except Unreadable as error:
        sys.exit("what is on standard input cannot be read: %s" % error)
    extend_path(plan["search_path"])
    return plan


def main():
    # type: () -> None
    fds = [int(text) for text in sys.argv[1:-1]]
    sys.argv = [sys.argv[0]]  # some simulators parse it
    if sys.version_info < (3, 8):
        # The handshake itself needs a newer Python: say it where the supervisor looks when a worker dies.
        sys.exit(
            "manyarms workers need Python 3.8 or later, this is %s (%s)" % (sys.version.split()[0], sys.executable)
        )
    adopt_package()
    from manyarms.workers.nursery import nurse
    from manyarms.workers.serve import serve

    worker = nurse(fds[0]) if len(fds) == 1 else fds
    if worker is not None:
        serve(*worker)


if __name__ == "__main__":
    main()
