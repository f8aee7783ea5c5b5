"""The flags of the three scripts, and what their presets come to."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from tyro.conf import FlagCreatePairsOff, arg

from manyarms.cli.help import Guide
from manyarms.cli.options import parse
from manyarms.errors import ConfigError

ArmMode = Literal["ik", "planning", "joint_position", "joint_velocity"]

#: A flag that is given or not; there is no --no-… beside it.
Switch = FlagCreatePairsOff[bool]

#: What `--mode debug` writes of every second of simulation.
_DEBUG_STRIDE = 4

#: The flags by what they are for.
_GROUPS = {
    "what is run": ("mode", "simulator", "task_class", "num_envs", "num_envs_total", "max_steps", "seed", "python"),
    "actions": ("action_chunk", "arm_mode"),
    "images and videos": (
        *("image_size", "output_dir", "video_all", "fps", "video_stride", "no_rgb", "no_video", "record"),
        *("render_backend", "idle_fps"),
    ),
    "measuring": ("fast", "copy_obs", "profile_timing"),
    "training": ("train_updates", "train_lr", "train_hidden", "ddp_bind_gpu"),
}
_EVERYDAY = ("simulator", "task_class", "num_envs", "max_steps", "action_chunk", "arm_mode", "output_dir", "python")


@dataclass(frozen=True)
class Flags:
    """What all three scripts take."""

    simulator: Literal["rlbench", "tabletop"] = "rlbench"
    """tabletop: our own, which needs no CoppeliaSim."""
    num_envs: int = 4
    """Environments of each rank, a process each."""
    task_class: Annotated[str, arg(aliases=("--task",))] = "OpenDrawer"
    """RLBench's task, as OpenDrawer or open_drawer."""
    max_steps: Annotated[int, arg(aliases=("--steps",))] = 100
    """Steps that each environment of a rank takes."""
    action_chunk: int = 16
    """Actions sent in one call."""
    arm_mode: ArmMode | None = None
    """What actions are; planning is slow. Default: ik."""
    image_size: tuple[int, int] = (128, 128)
    """Height and width of the images."""
    output_dir: str | None = None
    """Write videos here: front and wrist, of environment 0 of each rank."""
    video_all: Switch = False
    """Film every environment, which is much slower."""
    fps: int = 20
    """Frames a second of the videos."""
    video_stride: int | None = None
    """Film every n-th step; default: every one."""
    no_rgb: Switch = False
    """Render nothing at all, which is much faster."""
    no_video: Switch = False
    """Write no videos."""
    render_backend: Literal["xvfb", "egl", "external"] = "xvfb"
    """Where CoppeliaSim draws: an Xvfb a worker, no X server, or the DISPLAY that is there."""
    idle_fps: int | None = None
    """Frames a second that CoppeliaSim draws for itself; default: none."""
    profile_timing: Switch = False
    """Say where the time goes."""
    seed: int = 0
    """Of the first environment; the others count up."""
    python: str | None = None
    """The interpreter that has RLBench; default: this one."""

    def __post_init__(self) -> None:
        for name in ("num_envs", "max_steps", "action_chunk", "fps", "video_stride"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name} is {value}; it must be at least 1")

    @property
    def rgb(self) -> bool:
        """Whether images are rendered."""
        return not self.no_rgb

    @property
    def films(self) -> bool:
        """Whether videos are written."""
        return self.output_dir is not None and self.rgb and not self.no_video

    @property
    def stride(self) -> int:
        """Every how many steps a frame is filmed."""
        return self.video_stride or 1

    @property
    def mode_of_arm(self) -> str:
        """What actions are."""
        return self.arm_mode or "ik"

    def filmed(self, num_envs: int) -> list[int]:
        """Return the environments that are filmed."""
        if not self.films:
            return []
        return list(range(num_envs)) if self.video_all else [0]

    def resolved(self) -> Self:
        """Return these flags with the presets among them spelt out."""
        found = replace(self, **self._presets())
        if found.video_all and not found.films:
            raise ConfigError(
                "--video_all films nothing", do="give --output_dir, without --no_video, --no_rgb or --fast"
            )
        return found

    def _presets(self) -> dict[str, Any]:
        return {}

    def summary(self) -> str:
        """Return in a line what is run."""
        video = f"{self.output_dir} video_stride={self.stride}" if self.films else "off"
        return (
            f"simulator={self.simulator} task={self.task_class} arm_mode={self.mode_of_arm} "
            f"action_chunk={self.action_chunk} rgb={'on' if self.rgb else 'off'} video={video}"
        )


@dataclass(frozen=True)
class TestFlags(Flags):
    """Play one episode in each environment, chunk by chunk, and film all of them."""

    output_dir: str | None = "mp_rlbench_videos"
    """Write videos here: front and wrist of every environment."""
    video_all: Switch = True
    """Film every environment; this script always does."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "python examples/rlbench/mp_rlbench_env_test.py --task_class OpenDrawer --num_envs 8 --max_steps 100",
            "python examples/rlbench/mp_rlbench_env_test.py --simulator tabletop   # without CoppeliaSim",
        ),
        everyday=(*_EVERYDAY, "video_stride", "no_video"),
        groups=_GROUPS,
    )


@dataclass(frozen=True)
class BenchFlags(Flags):
    """Measure how fast RLBench steps in many processes."""

    action_chunk: int = 1
    """Actions sent in one call; more are faster."""
    arm_mode: ArmMode | None = None
    """What actions are: ik is much faster. Default: planning."""
    copy_obs: Literal[0, 1] = 1
    """0: observations are views of the shared memory, overwritten by the next step."""
    record: Switch = False
    """Write videos, to rlbench_vec_env_videos unless --output_dir says where."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "python examples/rlbench/rlbench_vec_env.py --num_envs 64 --steps 100 --task OpenDrawer --arm_mode ik",
            "python examples/rlbench/rlbench_vec_env.py --num_envs 16 --action_chunk 16 --no_rgb --profile_timing",
            "python examples/rlbench/rlbench_vec_env.py --simulator tabletop --record   # without CoppeliaSim",
        ),
        everyday=(*_EVERYDAY, "no_rgb", "copy_obs", "record", "profile_timing"),
        groups=_GROUPS,
    )

    @property
    def mode_of_arm(self) -> str:
        return self.arm_mode or "planning"

    def _presets(self) -> dict[str, Any]:
        return {"output_dir": self.output_dir or "rlbench_vec_env_videos"} if self.record else {}


@dataclass(frozen=True)
class RunFlags(Flags):
    """Step RLBench in many processes, alone or under torchrun."""

    mode: Literal["bench", "debug", "train"] = "bench"
    """Measure; film, every 4th step; or train a small network on what happens, without images."""
    num_envs_total: int | None = None
    """Environments of all ranks together; overrides --num_envs."""
    fast: Switch = False
    """For measuring: --arm_mode ik --no_rgb --no_video --idle_fps 0."""
    ddp_bind_gpu: Switch = False
    """Give each rank the GPU of its number."""
    train_updates: int = 20
    """Chunks that are played and learnt from."""
    train_lr: float = 3e-4
    """Learning rate."""
    train_hidden: int = 256
    """Width of the network."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "torchrun --nproc_per_node=4 examples/rlbench/rl_vec_env.py --num_envs_total 64 --action_chunk 54 --fast",
            "python examples/rlbench/rl_vec_env.py --mode debug --num_envs 2 --output_dir videos",
            "python examples/rlbench/rl_vec_env.py --mode train --simulator tabletop   # without CoppeliaSim",
        ),
        everyday=("mode", *_EVERYDAY, "num_envs_total", "fast", "no_rgb", "profile_timing"),
        groups=_GROUPS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_envs_total", "train_updates", "train_hidden"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name} is {value}; it must be at least 1")
        if not self.train_lr > 0:
            raise ConfigError(f"--train_lr is {self.train_lr}; it must be above 0")

    def _presets(self) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        if self.fast:
            changes |= {"no_rgb": True, "no_video": True}
            changes |= {"arm_mode": self.arm_mode or "ik", "idle_fps": self.idle_fps or 0}
        if self.mode == "debug":
            changes |= {"output_dir": self.output_dir or "rlbench_vec_env_videos"}
            changes |= {"video_stride": self.video_stride or _DEBUG_STRIDE}
        if self.mode == "train":
            changes |= {"no_rgb": True, "no_video": True}
        return changes

    def summary(self) -> str:
        return f"mode={self.mode} {super().summary()}"

    def envs_per_rank(self, world: int) -> list[int]:
        """Return how many environments each rank has."""
        total = self.num_envs_total
        if total is None:
            return [self.num_envs] * world
        if total < world:
            raise ConfigError(f"{total} environments cannot be split over {world} ranks", do="raise --num_envs_total")
        return [total // world + (rank < total % world) for rank in range(world)]


F = TypeVar("F", bound=Flags)

#: Seconds that other ranks give the first to complain.
_PATIENCE = 60.0


def read(kind: type[F], check: Callable[[F, int], object] = lambda *_: None) -> F:
    """Parse the command line; `check` gets the flags and the number of ranks. Of several ranks, the first complains."""
    speaks = os.environ.get("RANK", "0") == "0"
    try:
        flags = parse(kind, sys.argv[0], sys.argv[1:], program="python", speaks=speaks).resolved()
        check(flags, int(os.environ.get("WORLD_SIZE", "1")))
        return flags
    except (ConfigError, SystemExit):
        if not speaks:
            # torchrun ends all ranks when one has ended: the first must have said why by then.
            time.sleep(_PATIENCE)
        raise
