"""Parse and call. Every command is also a function: ``manyarms.cli.bench.run(config) -> result``."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

COMMANDS = {
    "bench": "measure how fast a simulator steps in many processes",
    "check": "run the conformance suite against a simulator",
    "completion": "print a script that completes commands in bash, zsh or fish",
    "demo": "see what manyarms does, in two minutes",
    "doctor": "check this machine and its simulators, and say how to mend them",
    "eval": "play tasks with a policy and count successes",
    "list": "list simulators, tasks, policies or configs",
    "policy": "see what a checkpoint is, before it is used",
    "record": "write episodes to disk, as demonstrations or to play back",
    "replay": "play recorded episodes back and compare bit for bit",
    "serve": "serve a policy to many clients over a websocket",
    "train": "post-train a policy with PPO, GRPO or RLOO",
    "watch": "show a run in the browser, live and afterwards",
}

#: Where a command is not in the module of its name: a module named list would hide the built-in one in this package.
_MODULES = {"list": "listing"}

_USAGE = """usage: manyarms COMMAND [arguments]

One policy, many arms: robot simulators side by side in shared memory.

commands:
{commands}

examples:
  manyarms demo                                              # two minutes, no flags needed
  manyarms list tasks tabletop                               # what there is to play
  manyarms eval tabletop/open_drawer --policy expert         # play it
  manyarms train reach_target_ppo                            # learn it

manyarms COMMAND --help tells about one of them; manyarms --version prints the version.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its status."""
    _mend_streams()
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def _mend_streams() -> None:
    """Let no file of ours take the place of a closed stream, and no letter that a terminal lacks end a command."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # What is opened gets the lowest free number: this one. Workers are to have it too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def run(arguments: list[str]) -> int:
    """Run a command; return its exit status."""
    return answer(lambda: _command(arguments))


def _command(arguments: list[str]) -> int:
    """Help answers before anything heavy is imported."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_USAGE.format(commands="\n".join(f"  {name:<10} {what}" for name, what in COMMANDS.items())))
        return 0 if arguments else 2
    name, *rest = arguments
    if name == "--version":
        import manyarms

        print(f"manyarms {manyarms.__version__}")
        return 0
    if name not in COMMANDS:
        from manyarms.errors import UnknownName, did_you_mean

        raise UnknownName(
            f"there is no command {name!r}", do=f"{did_you_mean(name, COMMANDS)}\nmanyarms --help tells them all"
        )
    return module_of(name).main(rest)


def module_of(command: str) -> Any:
    """Return the module of a command: its `main` takes words, its `run` a config."""
    import importlib

    return importlib.import_module(f"manyarms.cli.{_MODULES.get(command, command)}")


def config_of(command: str) -> type:
    """Return the dataclass that a command's `run` takes."""
    import inspect

    module = module_of(command)
    return getattr(module, next(iter(inspect.signature(module.run).parameters.values())).annotation)


def answer(call: Callable[[], int]) -> int:
    """Return the exit status of what is called; what goes wrong is said in words, not in a traceback."""
    from manyarms.errors import ManyarmsError

    try:
        return call()
    except ManyarmsError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone (`manyarms … | head`); Python must not complain about it once more at exit.
        sys.stdout = None  # type: ignore[assignment]
        return 141
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print("DiskError: what is printed cannot be written\n  why: " + str(error.strerror), file=sys.stderr)
        sys.stdout = None  # type: ignore[assignment]
        return 2
