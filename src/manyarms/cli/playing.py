"""What commands that play episodes share: which simulator and tasks, which policy, how many of what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from manyarms.cli.options import Names, Options, SimulatorName, names_of, options_of
from manyarms.environments import EnvConfig, SimulatorSettings
from manyarms.errors import ConfigError, StartError
from manyarms.policies.base import Policy, needs_of
from manyarms.policies.registry import find_policy, make_policy
from manyarms.rollout import RunnerConfig
from manyarms.vector import VectorEnv

#: Settings that cannot change what is played, only how fast.
_NOT_IDENTITY = (
    *("num_envs", "rows_per_worker", "pipeline_stage_num", "out", "resume", "videos", "video_camera"),
    *("video_stride", "fps", "info_on_video", "python", "live", "trust_code"),
)

#: The flags of commands that play, by what they are for.
PLAYED = {"what is played": ("tasks", "policy", "policy_options", "episodes", "seed", "init_states")}
PLAYING = {
    "how it is played": (
        *("num_envs", "rows_per_worker", "max_episode_steps", "replan_horizon", "pipeline_stage_num"),
        *("python", "options", "trust_code"),
    )
}


@dataclass(frozen=True)
class PlayConfig:
    """Which episodes are played, by whom and how."""

    simulator: SimulatorName
    """<simulator>, <simulator>/<task>, package.module:factory or path/to/file.py:factory."""
    tasks: Names = ()
    """Tasks, separated by commas; default: the one in the simulator's name."""
    policy: str = "random"
    """random, expert, replay, mlp, pixel, pi0, openvla_oft, remote, a plug-in, an import string, a checkpoint."""
    policy_options: Options = field(default_factory=dict)
    """Options of the policy."""
    episodes: int = 10
    """Episodes a task."""
    seed: int = 0
    """Seed of every task's first episode; the others count up."""
    init_states: int | None = None
    """Fixed states of each task that episodes begin from in turn (LIBERO has 50); default: wherever the seed says."""
    num_envs: int = 4
    """Environments side by side; results do not depend on it."""
    rows_per_worker: int = 1
    """Environments that share a process."""
    max_episode_steps: int | None = None
    """Steps after which an episode has failed; default: the simulator's own limit."""
    replan_horizon: int | None = None
    """How many actions of a chunk are taken before the policy is asked again; default: all."""
    pipeline_stage_num: int = 2
    """In how many parts the environments take turns at the policy."""
    python: str | None = None
    """The interpreter the simulator runs in."""
    options: Options = field(default_factory=dict)
    """Further options of the simulator or of the vector environment."""
    trust_code: bool = False
    """Let a checkpoint name code that is not installed: for your own, never for a stranger's."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ConfigError(f"episodes is {self.episodes}; play at least one")
        if self.init_states is not None and self.init_states < 1:
            raise ConfigError(f"init_states is {self.init_states}; it must be at least 1")

        for name in ("options", "policy_options"):
            object.__setattr__(self, name, options_of(getattr(self, name)))
        object.__setattr__(self, "tasks", names_of(self.tasks))

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide what comes out."""
        chosen = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _NOT_IDENTITY}
        return {**chosen, "tasks": ",".join(self.tasks)}

    @staticmethod
    def read_identity(known: Mapping[str, Any]) -> dict[str, Any]:
        """Return an identity that was written down; earlier versions wrote options as words."""
        return {**known, **{name: options_of(known[name]) for name in ("options", "policy_options") if name in known}}

    def environments(self, **options: Any) -> EnvConfig:
        """Return which environments are played in; `options` come before what the policy needs, --options first."""
        return EnvConfig(
            (SimulatorSettings(self.simulator, self.tasks, self.python),),
            {**self.needs(), **options, **self.options},
            self.num_envs,
            self.rows_per_worker,
            self.max_episode_steps,
            episodes=self.episodes,
            seed=self.seed,
            init_states=self.init_states,
        )

    def needs(self) -> Mapping[str, Any]:
        """Return the options of environments that the policy needs."""
        return needs_of(find_policy(self.policy, trust_code=self.trust_code))

    def runner(self, **changes: Any) -> RunnerConfig:
        """Return how the policy serves the rows."""
        return RunnerConfig(
            **{"replan_horizon": self.replan_horizon, "pipeline_stage_num": self.pipeline_stage_num, **changes}
        )


@contextmanager
def opened(config: PlayConfig, env: EnvConfig, live: tuple[Path, str] | None = None) -> Iterator[VectorEnv]:
    """Open the environments of a command; where the policy needs what they do not have, say so."""
    with ExitStack() as stack:
        try:
            envs = stack.enter_context(env.open(config.num_envs, live=live))
        except StartError as error:
            if not _needs(config.needs(), error.option):
                raise
            raise ConfigError(
                f"policy {config.policy!r} cannot play {config.simulator}",
                why=f"it needs the option {error.option!r}, which is not known there",
                do="choose another --policy, or the simulator and task that it is for",
            ) from error
        yield envs


def _needs(needs: Mapping[str, Any], option: str) -> bool:
    """Tell whether a policy needs an option that a simulator does not know, by itself or inside another."""
    return option in needs or any(isinstance(value, Mapping) and option in value for value in needs.values())


def policy_for(config: PlayConfig, envs: VectorEnv) -> Policy:
    """Make the policy."""
    return make_policy(config.policy, envs.simulator_spec, config.policy_options, trust_code=config.trust_code)
