"""Which environments: described once, and opened by one call in training, in evaluation and in every command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyarms.errors import ConfigError
from manyarms.reporting.results import held_out, tasks_of
from manyarms.simulators.base import Spec
from manyarms.simulators.registry import split_id
from manyarms.vector import EpisodeId, SimulatorConfig, VectorConfig, VectorEnv, make_vec
from manyarms.vector.config import name_of

if TYPE_CHECKING:
    from manyarms.reporting.video import EpisodeVideos


@dataclass(frozen=True)
class VideoSettings:
    """Which videos are made."""

    save_video: bool = False
    info_on_video: bool = False
    """Write task, step, reward and success under the picture."""
    video_base_dir: str | None = None
    """Default: video/train or video/eval in the run's folder."""
    videos: int = 2
    """At most so many per task."""
    video_stride: int = 1
    """Film every n-th step."""
    fps: int = 20
    camera: str | None = None
    """The image field; default: the first."""


@dataclass(frozen=True)
class SimulatorSettings:
    """A simulator as a file or a command names it. What is wrong with its options shows where it is started."""

    simulator: str
    """<simulator>, <simulator>/<task>, package.module:factory or path/to/file.py:factory."""
    tasks: tuple[str, ...] = ()
    python: str | None = None
    """The interpreter it runs in; it need not be on this machine."""
    options: Mapping[str, Any] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    """Its fields and cameras -> names that all simulators share."""

    def __post_init__(self) -> None:
        if self.tasks and split_id(self.simulator)[1]:
            raise ConfigError(f"both {self.simulator!r} and tasks name tasks", do="leave the task out of simulator")

    def config(self, shared: Mapping[str, Any]) -> SimulatorConfig:
        """Return what `make_vec` takes; options that all simulators share come first."""
        shared = dict(shared)
        python, env, rename = shared.pop("python", None), shared.pop("env", None), shared.pop("rename", None)
        tasks = {"tasks": list(self.tasks)} if self.tasks else {}
        options = {**shared, **self.options, **tasks}
        return SimulatorConfig(
            name_of(self.simulator), options, python or self.python, env or {}, self.rename or rename or {}
        )


@dataclass(frozen=True)
class EnvConfig:
    """Which environments, and what is played in them; nothing is left open."""

    simulators: tuple[SimulatorSettings, ...]
    """One, or several that take turns over the environments."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of all simulators, or of the vector environment: these come before what is said below."""
    total_num_envs: int = 1
    """Over all ranks and processes."""
    rows_per_worker: int = 1
    max_episode_steps: int | None = None
    action_bounds: str = "clip"
    copy: bool = False
    episodes: int = 1
    """Held-out episodes per task."""
    seed: int = 0
    init_states: int | None = None
    vary_descriptions: bool = False
    rewards: tuple[str, ...] = ()
    video_cfg: VideoSettings = field(default_factory=VideoSettings)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that are named, of all simulators."""
        return tuple(task for each in self.simulators for task in each.tasks)

    def simulator_configs(self) -> list[SimulatorConfig]:
        """Return every simulator with its own options and those of all."""
        settings = VectorConfig.names()
        shared = {name: value for name, value in self.options.items() if name not in settings}
        return [each.config(shared) for each in self.simulators]

    @contextmanager
    def open(self, num_envs: int, *, live: tuple[Path, str] | None = None) -> Iterator[VectorEnv]:
        """Open `num_envs` of them; `live` is the run's folder and a name, for the files that `manyarms watch` reads."""
        with self.make(num_envs) as envs:
            if live is None:
                yield envs
                return
            from manyarms.reporting.live import LiveView

            with LiveView(envs, *live):
                yield envs

    def make(self, num_envs: int) -> VectorEnv:
        """Make `num_envs` of them, for the caller to close."""
        if 1 < len(self.simulators) > num_envs:
            raise ConfigError(f"{num_envs} environments cannot hold {len(self.simulators)} simulators", do="give more")
        settings: dict[str, Any] = {
            "rows_per_worker": min(self.rows_per_worker, num_envs),
            "max_episode_steps": self.max_episode_steps,
            "action_bounds": self.action_bounds,
            "copy": self.copy,
            "render_every": self.video_cfg.video_stride if self.video_cfg.save_video else 0,
        }
        settings |= {name: value for name, value in self.options.items() if name in VectorConfig.names()}
        envs = make_vec(self.simulator_configs(), num_envs, **settings)
        played = [set(tasks) for tasks in envs.row_tasks[: len(self.simulators)]]
        shared = set.intersection(*played) if len(played) > 1 else set()
        if shared:
            envs.close()
            raise ConfigError(f"several simulators have a task named {min(shared)!r}", do="choose others with `tasks`")
        return envs

    def held_out(self, envs: VectorEnv) -> list[EpisodeId]:
        """Return the episodes of an evaluation."""
        return held_out(tasks_of(envs), self.episodes, self.seed, self.init_states)

    def videos(self, spec: Spec, folder: Path, below: str = "") -> EpisodeVideos | None:
        """Return what makes videos of episodes, in `folder` or where the settings say; None where none are wanted."""
        from manyarms.reporting.video import EpisodeVideos

        wanted = self.video_cfg
        if not wanted.save_video:
            return None
        base = Path(wanted.video_base_dir) if wanted.video_base_dir else folder
        return EpisodeVideos(
            base / below, spec, keep=wanted.videos, field=wanted.camera, fps=wanted.fps, captions=wanted.info_on_video
        )
