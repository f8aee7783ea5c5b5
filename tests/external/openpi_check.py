"""Hold `manyarms serve` and `RemotePolicy` against openpi's own client and server.

openpi-client needs numpy < 2, hence an environment of its own::

    python3.11 -m venv .venvs/openpi && .venvs/openpi/bin/pip install openpi-client typing_extensions
    .venv/bin/python tests/external/openpi_check.py --openpi-source path/to/openpi  # a checkout, for its server

Run so, the script starts itself again in the other environment for openpi's part. To check a server that is running:
``.venvs/openpi/bin/python tests/external/openpi_check.py client PORT``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[2]
SERVER_FILE = "src/openpi/serving/websocket_policy_server.py"


def check(what: str, holds: bool) -> None:
    """Print what was checked; end with status 1 when it does not hold."""
    print(f"{'✓' if holds else '✗'} {what}", flush=True)
    if not holds:
        sys.exit(1)


def error_of(call: Callable[[], Any]) -> str:
    """Return the text of the RuntimeError that a call must end with."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


# -- in openpi's environment ------------------------------------------------------------------------------------------


def client(port: int) -> None:
    """Talk to a running `manyarms serve standins:Walker` with openpi's client."""
    module = importlib.import_module("openpi_client.websocket_client_policy")
    versions = {name: importlib.metadata.version(name) for name in ("openpi-client", "numpy", "websockets", "msgpack")}
    print("openpi's client:", ", ".join(f"{name} {version}" for name, version in versions.items()), module.__file__)
    policy = module.WebsocketClientPolicy("127.0.0.1", port, api_key="not needed")
    told = policy.get_server_metadata()
    check(f"metadata names {len(told['fields'])} fields and {told['action_shape']}", told["action_shape"] == [2])
    check("metadata says manyarms, batch and chunk", bool(told["manyarms"]) and told["batch"] and told["chunk"] == 3)
    observation = {name: np.zeros(f["shape"], f["dtype"]) for name, f in told["fields"].items()}
    answer = policy.infer({**observation, "prompt": "go near"})
    actions = answer["actions"]
    check(f"infer() gives actions {actions.shape} {actions.dtype}", actions.shape == (3, 2) and actions.dtype == "f4")
    check("infer() gives server_timing", answer["server_timing"]["infer_ms"] >= 0)
    check("other actions at the next step", not np.array_equal(policy.infer(observation)["actions"], actions))
    named = {**observation, "prompt": "", "episode": {"task": "near", "seed": 7}, "step": 4}
    first, again = (policy.infer(named)["actions"] for _ in range(2))
    check("the same actions for the same episode and step", np.array_equal(first, again))
    name = next(iter(observation))
    wrong = error_of(lambda: policy.infer({**observation, name: np.zeros(99)}))
    check(f"a field of the wrong shape is an error that names it: {name}", f"'{name}'" in wrong)
    missing = error_of(lambda: policy.infer({key: value for key, value in observation.items() if key != name}))
    check("a missing field too", f"'{name}' is missing" in missing)
    check("the connection goes on after errors", policy.infer(observation)["actions"].shape == (3, 2))
    other = module.WebsocketClientPolicy(f"ws://127.0.0.1:{port}")
    many = {**observation, "pixels": np.zeros((512, 512, 3), np.uint8)}
    check("a second client, and fields nobody asked for", other.infer(many)["actions"].shape == (3, 2))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as health:
        check("/healthz says OK", health.status == 200 and health.read() == b"OK\n")


def server(source: Path, port: int) -> None:
    """Serve a small policy with openpi's own server class, whose file needs neither JAX nor PyTorch."""
    spec = importlib.util.spec_from_file_location("websocket_policy_server", source / SERVER_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    base = importlib.import_module("openpi_client.base_policy")

    class Echo(base.BasePolicy):
        def infer(self, obs: dict[str, Any]) -> dict[str, Any]:
            if obs["prompt"] == "choke":
                raise ValueError("no such prompt")
            return {"actions": np.tile(obs["observation/state"], (5, 1)), "state": obs["observation/state"]}

    module.WebsocketPolicyServer(Echo(), "127.0.0.1", port, {"robot": "echo"}).serve_forever()


# -- in ours ----------------------------------------------------------------------------------------------------------


@contextmanager
def started(*command: str, stderr: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a command in the background."""
    path = filter(None, [str(REPOSITORY / "src"), str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH")])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=20)


def check_client(python: str, source: Path | None) -> None:
    """Serve with manyarms, ask with openpi: the package that is installed, and the one in a checkout."""
    options = ("standins:Walker", "--policy", "random", "--policy-options", "chunk=3", "--port", "0")
    with started(sys.executable, "-m", "manyarms", "serve", *options) as process:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        check(line, line.startswith("serving random on ws://127.0.0.1:"))
        command = [python, __file__, "client", line.rsplit(":", 1)[1]]
        paths = [None] if source is None else [None, str(source / "packages/openpi-client/src")]
        for path in paths:
            env = {**os.environ, **({"PYTHONPATH": path} if path else {})}
            check("openpi's client is content", subprocess.run(command, env=env, check=False).returncode == 0)
    check("SIGTERM ends the server with status 0", process.returncode == 0)


def check_server(python: str, source: Path) -> None:
    """Serve with openpi, ask with manyarms."""
    import socket

    from manyarms import EpisodeId
    from manyarms.policies import Observations, make_policy
    from manyarms.simulators.base import Field, Spec

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spec = Spec({"state": Field((2,), "float32")}, {"": Field((2,), "float32", -1.0, 1.0)})
    states = np.random.default_rng(0).uniform(-1, 1, (20, 2)).astype(np.float32)
    episodes = [EpisodeId(seed=i) for i in range(20)]

    def acted(text: str) -> np.ndarray:
        return remote.act(Observations({"state": states}, [text] * 20, episodes, np.zeros(20, np.int64))).actions[""]

    command = (python, __file__, "server", str(port), "--openpi-source", str(source))
    with started(*command, stderr=subprocess.DEVNULL):  # where openpi reports the error that we ask for
        options = {"port": port, "keys": {"state": "observation/state"}, "connections": 4}
        remote: Any = make_policy("remote", spec, options)
        check(f"openpi's server begins with its metadata {remote.metadata}", remote.metadata == {"robot": "echo"})
        wanted = np.repeat(states[:, None], 5, 1)
        check("RemotePolicy gets 20 rows over 4 connections", np.array_equal(acted("go"), wanted))
        told = error_of(lambda: acted("choke"))
        check("an error carries openpi's traceback", "ValueError: no such prompt" in told and "Traceback" in told)
        check("connections that openpi closed are opened again", np.array_equal(acted(""), wanted))
        remote.close()


def main() -> None:
    """Run one part, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("all", "client", "server"), default="all")
    parser.add_argument("port", nargs="?", type=int, default=8000)
    parser.add_argument("--python", default=str(REPOSITORY / ".venvs/openpi/bin/python"), help="openpi's environment")
    parser.add_argument("--openpi-source", type=Path, help="a checkout of openpi, or a bare copy of its repository")
    chosen = parser.parse_args()
    if chosen.part == "client":
        return client(chosen.port)
    if chosen.part == "server":
        return server(chosen.openpi_source, chosen.port)
    with tempfile.TemporaryDirectory() as scratch:
        source = chosen.openpi_source and checked_out(chosen.openpi_source, Path(scratch))
        check_client(chosen.python, source)
        if source is None:
            print("- openpi's server was not checked: no --openpi-source")
        else:
            check_server(chosen.python, source)
    return None


def checked_out(source: Path, scratch: Path) -> Path:
    """Return where openpi's files lie; those of a bare repository are unpacked first."""
    if (source / SERVER_FILE).exists():
        return source
    names = [SERVER_FILE, "packages/openpi-client"]
    archive = subprocess.run(["git", "-C", str(source), "archive", "HEAD", *names], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(scratch)], input=archive.stdout, check=True)
    commit = subprocess.run(["git", "-C", str(source), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    print(f"openpi's source: commit {commit.stdout.strip()}")
    return scratch


if __name__ == "__main__":
    main()
