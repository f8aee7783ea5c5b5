"""``manyarms serve``: a policy behind a websocket, for ``--policy remote`` and for openpi's clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from manyarms.cli.help import Guide
from manyarms.cli.options import Names, Options, SimulatorName, names_of, parse
from manyarms.cli.playing import PlayConfig, opened, policy_for
from manyarms.errors import ConfigError
from manyarms.reporting.console import Background, Telling
from manyarms.serving.config import ServerConfig, ServerCounts

if TYPE_CHECKING:
    from manyarms.serving.server import PolicyServer


@dataclass(frozen=True)
class ServeConfig:
    """Serve a policy to many clients, all those that ask together in one batch."""

    simulator: SimulatorName
    """What the policy acts in: <simulator>, <simulator>/<task>, package.module:factory or path/to/file.py:factory."""
    policy: str
    """random, expert, mlp, pixel, pi0, openvla_oft, a plug-in, an import string, a checkpoint."""
    policy_options: Options = field(default_factory=dict)
    """Options of the policy."""
    tasks: Names = ()
    """Tasks, separated by commas; default: the one in the simulator's name."""
    host: str = "127.0.0.1"
    """The address to listen on. There is no authentication: others than this machine's own are for trusted networks."""
    port: int = 8000
    """0 picks a free one."""
    max_batch: int = 64
    """Most rows in one call of the policy."""
    batch_wait_ms: float = 5.0
    """How long the first request of a batch waits for others; nobody waits once every client has asked."""
    max_message_mb: float = 256.0
    """Longer messages are refused."""
    python: str | None = None
    """The interpreter the simulator runs in."""
    options: Options = field(default_factory=dict)
    """Further options of the simulator."""
    trust_code: bool = False
    """Let a checkpoint name code that is not installed: for your own, never for a stranger's."""
    allowed_hosts: Names = ()
    """Further names that clients may call this server by, separated by commas; * is any name."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "manyarms serve tabletop/open_drawer --policy expert",
            "manyarms serve libero/libero_spatial --policy pi0 --policy-options model_path=pi0 --port 9000",
            "manyarms eval tabletop/open_drawer --policy remote --policy-options port=8000   # asks it",
        ),
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "allowed_hosts", names_of(self.allowed_hosts))


class Serving(Background["PolicyServer"]):
    """A policy that a thread of this process serves, until it is closed."""

    def __init__(self, policy: str, server: PolicyServer) -> None:
        """Begin at once."""
        super().__init__(server)
        self._policy = policy
        self.counts = server.counts
        """What was served so far."""

    def told(self) -> Telling:
        headline = f"{self.url} is closed" if self.closed else _begun(self._policy, self.url)
        return Telling(headline, notes=[_served(self.counts)])


def run(config: ServeConfig) -> ServerCounts:
    """Serve until SIGINT or SIGTERM; return what was served."""
    server = server_for(config)
    server.serve_forever(lambda: print(_begun(config.policy, server.url), flush=True))
    return server.counts


def server_for(config: ServeConfig) -> PolicyServer:
    """Make the policy and its server, which does not listen yet."""
    try:
        from manyarms.serving.server import PolicyServer
    except ImportError as error:
        raise ConfigError(f"serving needs {error.name}", do="pip install 'manyarms[serve]'") from error
    play = PlayConfig(num_envs=1, **_shared(config, PlayConfig))
    with opened(play, play.environments()) as envs:  # only to learn what is seen and done there
        spec, policy = envs.simulator_spec, policy_for(play, envs)
    return PolicyServer(policy, spec, ServerConfig(**_shared(config, ServerConfig)))


def _shared(config: ServeConfig, kind: type) -> dict[str, Any]:
    """Return the settings that a config of another kind has too."""
    names = {each.name for each in fields(kind)}
    return {each.name: getattr(config, each.name) for each in fields(config) if each.name in names}


def _begun(policy: str, url: str) -> str:
    return f"serving {policy} on {url}"


def _served(counts: ServerCounts) -> str:
    shares = f"{counts.rows} observations of {counts.connections} clients in {counts.batches} calls of the policy"
    return f"served {shares}, at most {counts.largest_batch} at once"


def main(arguments: Sequence[str]) -> int:
    """Parse, serve, say how much was served."""
    print(_served(run(parse(ServeConfig, "serve", arguments))))
    return 0
