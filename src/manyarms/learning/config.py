"""All of a training run in one tree, in the words that RLinf's users know."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from manyarms.algorithms.base import Algorithm
from manyarms.algorithms.ppo import PPO
from manyarms.environments import EnvConfig, SimulatorSettings, VideoSettings
from manyarms.errors import ConfigError
from manyarms.learning.cloning import CloningConfig
from manyarms.learning.learner import OptimConfig
from manyarms.learning.parallel import BACKENDS
from manyarms.learning.variables import FromVariable, shown
from manyarms.simulators import registry

#: Of a file or a folder, on any file system that matters.
_LONGEST_NAME = 255


@dataclass(frozen=True)
class LoggerSettings:
    """Where a run writes, and who else hears of it."""

    log_path: str = "runs"
    """Runs lie in here, each in the folder named by experiment_name."""
    project_name: str = "manyarms"
    experiment_name: str = ""
    """Default: the name of the config's file."""
    logger_backends: tuple[str, ...] = ("tensorboard",)
    """tensorboard, wandb, swanlab or a tracker of your own; metrics.jsonl is always written."""
    live: bool = True
    """Keep what can be watched while the run goes on in its folder live."""

    def __post_init__(self) -> None:
        for key in ("project_name", "experiment_name"):
            name = getattr(self, key)
            if isinstance(name, FromVariable):
                raise ConfigError(
                    f"runner.logger.{key} comes from an environment variable: {name!r}",
                    why="names stand in folders, reports and trackers, for all to see",
                    do=f"let the shell fill it in: runner.logger.{key}=$NAME",
                )
        parts = PurePosixPath(self.experiment_name).parts
        if not self.experiment_name.isprintable() or (self.experiment_name and parts in ((), ("/",))):
            raise ConfigError(f"runner.logger.experiment_name is {self.experiment_name!r}; it must be a folder's name")
        if ".." in parts or self.experiment_name.startswith("/"):
            raise ConfigError(
                f"runner.logger.experiment_name is {self.experiment_name!r}, which leads out of log_path",
                do="say where runs lie with runner.logger.log_path=…",
            )
        if any(len(os.fsencode(part)) > _LONGEST_NAME for part in (*PurePosixPath(self.log_path).parts, *parts)):
            raise ConfigError(f"runner.logger.log_path or experiment_name is longer than {_LONGEST_NAME} bytes")


@dataclass(frozen=True)
class RunnerSettings:
    """How long, how often, from where."""

    task_type: str = "embodied"
    logger: LoggerSettings = field(default_factory=LoggerSettings)
    max_steps: int = 100
    """Updates; 0 with a warm start: only that."""
    max_epochs: int | None = None
    """The same as max_steps, which then must be -1: here an epoch is an update."""
    max_seconds: float | None = None
    """Stop, with a last evaluation and a checkpoint, after the update in which so much time has passed."""
    only_eval: bool = False
    """Evaluate the policy and stop."""
    val_check_interval: int = 10
    """Updates between evaluations; -1: only before the first and after the last, 0: none at all."""
    save_interval: int = 10
    """Updates between checkpoints; -1: only after the last."""
    keep_checkpoints: int | None = None
    """How many are kept, the newest; default: all."""
    resume_dir: str | None = None
    """A checkpoint to go on from; ``auto``: this run's newest, if there is one."""
    ckpt_path: str | None = None
    """A checkpoint whose weights training begins with."""
    trust_code: bool = False
    """Let checkpoints that this config names as policies bring code that is not installed: your own, no stranger's."""

    def __post_init__(self) -> None:
        if self.task_type != "embodied":
            raise ConfigError(f"runner.task_type is {self.task_type!r}; only embodied is known here")
        if self.max_epochs is not None and self.max_steps != -1:
            raise ConfigError("runner.max_epochs and runner.max_steps say the same twice", do="set max_steps: -1")
        if self.updates < 0:
            raise ConfigError(f"runner.max_steps is {self.max_steps}", do="give the number of updates")
        if self.resume_dir and self.ckpt_path:
            raise ConfigError("runner.ckpt_path would do nothing: resume_dir brings weights as well")

    @property
    def updates(self) -> int:
        """How many updates training makes."""
        return self.max_steps if self.max_epochs is None else self.max_epochs


@dataclass(frozen=True)
class EnvSettings:
    """Which environments, how many, and what is played in them. What `eval` leaves out is as in `train`."""

    simulator: str | None = None
    """<simulator>, <simulator>/<task> or an import string."""
    simulators: tuple[Any, ...] = ()
    """Several in one run, in turn over the environments: each with `simulator` and, where it needs them, `tasks`,
    `python`, `options` (on top of those for all) and `rename` (its fields and cameras -> names that all share)."""
    tasks: tuple[str, ...] = ()
    total_num_envs: int | None = None
    """Over all ranks; 8 by default. What is learnt does not depend on it where rollout.batch_size is given."""
    rows_per_worker: int | None = None
    """Environments that share a process."""
    max_episode_steps: int | None = None
    rollout_epoch: int = 1
    """train: every environment plays so many episodes an update, unless algorithm.episodes_per_step is given."""
    episodes: int = 50
    """eval: episodes a task."""
    seed: int | None = None
    """Of the first episode, the others count up; 0 for train, 1000000 for eval."""
    init_states: int | None = None
    """Fixed states of each task that episodes begin from in turn (LIBERO has 50); default: wherever the seed says."""
    python: str | None = None
    """The interpreter the simulator runs in."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the simulator or of the vector environment."""
    rewards: tuple[str, ...] = ()
    """train: reward hooks, as package.module:hook or a plug-in's name; each adds to a row's last step."""
    vary_descriptions: bool = False
    """Where a task has several descriptions, draw one for each episode; default: the first."""
    video_cfg: VideoSettings = field(default_factory=VideoSettings)

    def __post_init__(self) -> None:
        for name in ("total_num_envs", "rows_per_worker", "max_episode_steps", "rollout_epoch", "init_states"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        if not all(isinstance(one, Mapping) for one in self.simulators):
            raise ConfigError("one of simulators is no mapping", do="begin each with `- simulator:`")
        if self.simulators and (self.simulator or self.tasks or self.python):
            raise _stands_in_place()
        known = [each.name for each in fields(SimulatorSettings)]
        for one in self.simulators:
            if not {"simulator"} <= one.keys() <= {*known}:
                raise ConfigError(
                    f"one of simulators has {', '.join(map(str, one))}",
                    do=f"{known[0]}, and if need be {', '.join(known[1:])}",
                )
            _check_kinds(one)

    @property
    def named(self) -> tuple[SimulatorSettings, ...]:
        """The simulators that are named, if any are."""
        if self.simulator:
            return (SimulatorSettings(self.simulator, self.tasks, self.python),)
        return tuple(SimulatorSettings(**{**one, "tasks": tuple(one.get("tasks", ()))}) for one in self.simulators)


def _stands_in_place() -> ConfigError:
    return ConfigError("`simulators` stands in place of simulator, tasks and python", do="give each its own")


def _check_kinds(one: Mapping[str, Any]) -> None:
    """Refuse one of several simulators whose settings are of other types than they are for a single one."""
    kinds = {"simulator": str, "tasks": list | tuple, "python": str | None, "options": Mapping, "rename": Mapping}
    for key, value in one.items():
        if not isinstance(value, kinds[key]):
            words = {"simulator": "a name", "tasks": "a list", "python": "a path"}.get(key, "a mapping")
            raise ConfigError(f"{key} of one of simulators is {value!r}; it must be {words}")


@dataclass(frozen=True)
class EnvsSettings:
    """Environments to learn in, and others to be judged in."""

    train: EnvSettings = field(default_factory=EnvSettings)
    eval: EnvSettings = field(default_factory=EnvSettings)


@dataclass(frozen=True)
class RolloutSettings:
    """How one policy serves many rows."""

    pipeline_stage_num: int = 2
    """In how many parts the environments take turns at the policy."""
    replan_horizon: int | None = None
    """How many actions of a chunk are taken before the policy is asked again; default: all."""
    deterministic: bool = True
    """Pad every batch to one size: a run repeats, and resumes, bit for bit."""
    batch_size: int | None = None
    """That size; default: the environments of one stage."""


@dataclass(frozen=True)
class ModelSettings:
    """The policy."""

    model_type: str = "mlp"
    """mlp, pixel, pi0, openvla_oft, a plug-in's name or package.module:factory."""
    model_path: str | None = None
    """The folder of a checkpoint that others have trained."""
    unnorm_key: str | None = None
    """openvla_oft: the dataset whose statistics turn actions into the simulator's."""
    num_images_in_input: int | None = None
    """openvla_oft: how many images it looks at."""
    is_lora: bool = False
    """Train adapters instead of the weights."""
    lora_rank: int = 32
    """Of the adapters."""
    num_action_chunks: int = 8
    """Actions a decision."""
    action_dim: int | None = None
    """Only checked: must be what the simulator takes."""
    add_value_head: bool | None = None
    """Default: where the algorithm has a critic."""
    precision: str = "fp32"
    """fp32 or bf16."""
    device: str | None = None
    """cpu or cuda; default: cuda where there is one."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of the policy: hidden, fields, images, log_std, …"""

    @property
    def of_checkpoint(self) -> dict[str, Any]:
        """What a policy is told about a checkpoint that others have trained."""
        told = {
            # A policy cannot be made again without: where it lies is written as it is, wherever it comes from.
            "model_path": self.model_path and str(self.model_path),
            "unnorm_key": self.unnorm_key,
            "num_images": self.num_images_in_input,
            "lora_rank": self.lora_rank if self.is_lora else None,
        }
        return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True)
class ActorSettings:
    """What learns."""

    model: ModelSettings = field(default_factory=ModelSettings)
    optim: OptimConfig = field(default_factory=OptimConfig)
    global_batch_size: int = 256
    """Decisions a step of the optimiser, over all ranks."""
    micro_batch_size: int | None = None
    """Decisions in memory at once on a rank; default: all of a step's."""
    seed: int = 0
    """Of weights, noise and minibatches."""
    training_backend: str = "ddp"
    """With several ranks: ddp or fsdp."""
    threads: int = 1
    """CPU threads of PyTorch; more pay on a machine with nothing else to do, and cost dearly on one that is busy."""

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ConfigError(f"actor.threads is {self.threads}; at least one has to work")
        if self.seed < 0:
            raise ConfigError(f"actor.seed is {self.seed}; it must be at least 0")
        if self.training_backend not in BACKENDS:
            raise ConfigError(
                f"actor.training_backend is {self.training_backend!r}", do=f"choose {' or '.join(BACKENDS)}"
            )


@dataclass(frozen=True)
class CloningSettings(CloningConfig):
    """A warm start: imitate an expert, or recorded episodes, before the first update."""

    episodes: int = 0
    """Episodes a task that the expert plays; 0: none."""
    demonstrations: str | None = None
    """A folder made by `manyarms record`, instead of the expert."""
    expert: str = "expert"
    """The policy that is imitated."""
    first_seed: int = 500_000
    """Of the demonstrated episodes."""
    normalise: bool = True
    """Scale what numbers the policy sees by their spread in the demonstrations."""
    log_std: float | None = None
    """Spread of the gaussian head after cloning, for exploring; default: as cloned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.episodes and self.demonstrations:
            raise ConfigError("cloning has both episodes and demonstrations", do="choose one")

    @property
    def wanted(self) -> bool:
        return bool(self.episodes or self.demonstrations)


WEIGHT_SYNCS = ("auto", "object_store", "broadcast")


@dataclass(frozen=True)
class ClusterSettings:
    """Which machines, and which process renders, acts or learns where."""

    num_nodes: int = 1
    """Machines; others than this one have to be in the Ray cluster."""
    component_placement: dict[str, Any] | None = None
    """Devices of env, rollout and actor, such as ``env,rollout,actor: all``; default: one process does it all."""
    node_groups: tuple[Any, ...] = ()
    """Nodes with a name: label, node_ranks, ignore_hardware."""
    cpu_slots: int | None = None
    """Device ids of a node without accelerators; default: as many as CPUs, or as a placement names."""
    address: str | None = None
    """Of a Ray cluster, or ``auto``, or ``local`` for one of our own; default: $RAY_ADDRESS, or as num_nodes says."""
    weight_sync: str = "auto"
    """How new weights get to those who act: object_store, broadcast, or auto."""
    wait_seconds: float = 60.0
    """How long to wait for nodes and for room on them."""
    max_restarts: int = 3
    """How often in a row a process that dies is started again without anything learnt in between."""

    def __post_init__(self) -> None:
        if self.weight_sync not in WEIGHT_SYNCS:
            raise ConfigError(f"cluster.weight_sync is {self.weight_sync!r}", do=f"choose {', '.join(WEIGHT_SYNCS)}")
        if self.wait_seconds <= 0 or self.max_restarts < 0:
            raise ConfigError("cluster.wait_seconds must be above 0, max_restarts 0 at least")

    @property
    def placed(self) -> bool:
        """Whether roles have processes of their own."""
        return self.component_placement is not None or self.num_nodes != 1


@dataclass(frozen=True)
class TrainConfig:
    """A training run."""

    runner: RunnerSettings = field(default_factory=RunnerSettings)
    algorithm: Algorithm = field(default_factory=PPO)
    """Of the class that `adv_type` names; its settings are those of the class."""
    env: EnvsSettings = field(default_factory=EnvsSettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    actor: ActorSettings = field(default_factory=ActorSettings)
    cloning: CloningSettings = field(default_factory=CloningSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)

    def __post_init__(self) -> None:
        if not self.env.train.named:
            raise ConfigError("env.train.simulator is missing", do="name one, such as tabletop/reach_target")
        if self.env.train.rollout_epoch != 1 and self.algorithm.episodes_per_step:
            raise ConfigError("env.train.rollout_epoch would do nothing: algorithm.episodes_per_step is given")
        if not self.runner.updates and not (self.cloning.wanted or self.runner.only_eval):
            raise ConfigError("runner.max_steps is 0 and there is no cloning: nothing would be learnt")
        if self.rollout.batch_size is not None and self.rollout.batch_size < 1:
            raise ConfigError("rollout.batch_size must be at least 1")
        if self.algorithm.max_staleness and not self.cluster.placed:
            raise ConfigError(
                "algorithm.max_staleness would do nothing: one process plays and learns in turn",
                do="give cluster.component_placement",
            )
        first, last = self.seeds
        held_out = self.eval.seed
        if first < held_out + self.eval.episodes and held_out < last:
            raise ConfigError(
                f"training plays seeds {first} to {last - 1} at least: evaluation at {held_out} would not be held out",
                do="set env.eval.seed further away",
            )

    @cached_property
    def train(self) -> EnvConfig:
        """env.train with what is left out filled in."""
        given = self.env.train
        return EnvConfig(
            given.named,
            given.options,
            given.total_num_envs or 8,
            given.rows_per_worker or 1,
            given.max_episode_steps,
            episodes=given.episodes,
            seed=given.seed or 0,
            init_states=given.init_states,
            vary_descriptions=given.vary_descriptions,
            rewards=given.rewards,
            video_cfg=given.video_cfg,
        )

    @cached_property
    def eval(self) -> EnvConfig:
        """env.eval with what is left out taken from env.train."""
        given, train = self.env.eval, self.train
        simulators, as_evaluated = _evaluated_in(given, self.env.train)
        return EnvConfig(
            simulators,
            {**train.options, **as_evaluated, **given.options},
            given.total_num_envs or train.total_num_envs,
            given.rows_per_worker or train.rows_per_worker,
            given.max_episode_steps or train.max_episode_steps,
            episodes=given.episodes,
            seed=1_000_000 if given.seed is None else given.seed,
            init_states=given.init_states or train.init_states,
            vary_descriptions=given.vary_descriptions,
            video_cfg=given.video_cfg,
        )

    @property
    def label(self) -> str:
        """What is learnt in, in words."""
        return " and ".join(shown(each.simulator) for each in self.train.simulators)

    @property
    def episodes_per_step(self) -> int:
        return self.algorithm.episodes_per_step or self.train.total_num_envs * self.env.train.rollout_epoch

    @property
    def seeds(self) -> tuple[int, int]:
        """The first seed of training, and one more than the last, if no group is rejected."""
        first = self.train.seed
        starts = self.runner.updates * self.episodes_per_step // self.algorithm.group_size
        return first, first + -(-starts // max(1, len(self.train.tasks)))

    @property
    def value_head(self) -> bool:
        wanted = self.actor.model.add_value_head
        return self.algorithm.critic is not None if wanted is None else wanted


def _evaluated_in(given: EnvSettings, train: EnvSettings) -> tuple[tuple[SimulatorSettings, ...], Mapping[str, Any]]:
    """Return the simulators of an evaluation, and the options in which one alone is evaluated."""
    if given.simulators:
        return given.named, {}
    if given.simulator or not train.simulators:
        name = given.simulator or train.simulator or ""
        alone = SimulatorSettings(name, given.tasks or train.tasks, given.python or train.python)
        return (alone,), registry.about(name).evaluation_options
    if given.tasks or given.python:
        raise _stands_in_place()
    return tuple(
        replace(each, options={**each.options, **registry.about(each.simulator).evaluation_options})
        for each in train.named
    ), {}
