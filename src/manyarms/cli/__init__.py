"""Parse and call. Every command is also a function: ``manyarms.cli.bench.run(config) -> result``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

COMMANDS = {
    "bench": "measure how fast a simulator steps in many processes",
    "check": "run the conformance suite against a simulator",
    "demo": "see what manyarms does, in a minute",
    "doctor": "check this machine and its simulators, and say how to mend them",
    "eval": "play tasks with a policy and count successes",
    "policy": "see what a checkpoint is, before it is used",
    "record": "write episodes to disk, as demonstrations or to play back",
    "replay": "play recorded episodes back and compare bit for bit",
    "serve": "serve a policy to many clients over a websocket",
    "train": "post-train a policy with PPO, GRPO or RLOO",
}

_USAGE = """usage: manyarms COMMAND [arguments]

One policy, many arms: robot simulators side by side in shared memory.

commands:
{commands}

manyarms COMMAND --help tells about one of them; manyarms --version prints the version.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its status."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run a command; return its exit status. Help answers before anything heavy is imported."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_USAGE.format(commands="\n".join(f"  {name:<8} {what}" for name, what in COMMANDS.items())))
        return 0 if arguments else 2
    name, *rest = arguments
    if name == "--version":
        import manyarms

        print(f"manyarms {manyarms.__version__}")
        return 0
    return answer(lambda: _command(name, rest))


def _command(name: str, arguments: list[str]) -> int:
    from manyarms.errors import UnknownName, did_you_mean

    if name not in COMMANDS:
        raise UnknownName(f"there is no command {name!r}", do=did_you_mean(name, COMMANDS))
    import importlib

    return importlib.import_module(f"manyarms.cli.{name}").main(arguments)


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
