"""``manyarms eval``: how often a policy succeeds, task by task."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from manyarms.cli.help import Guide
from manyarms.cli.options import parse
from manyarms.cli.playing import PLAYED, PLAYING, PlayConfig, opened, policy_for
from manyarms.environments import EnvConfig, VideoSettings
from manyarms.errors import ConfigError
from manyarms.reporting.console import say
from manyarms.reporting.files import check_goes_on_inside
from manyarms.reporting.live import forget_earlier
from manyarms.reporting.progress import Scoreboard
from manyarms.reporting.results import EvalResult, ResultFolder, results_of
from manyarms.simulators import registry

_FILMING = ("videos", "video_camera", "video_stride", "fps", "info_on_video")


@dataclass(frozen=True)
class EvalConfig(PlayConfig):
    """Play every task with a policy and count successes."""

    out: Path | None = None
    """Where results and videos go; default: runs/eval-<simulator>-<policy>-<time>."""
    resume: bool = False
    """Go on with what --out holds."""
    videos: int = 0
    """Keep at most so many videos a task, failures first."""
    video_camera: str | None = None
    """The image field to film; default: the first."""
    video_stride: int = 1
    """Film every n-th step."""
    fps: int = 20
    """Frames a second of the videos."""
    info_on_video: bool = False
    """Write task, step, reward and success under the picture."""
    live: bool = True
    """Keep what can be watched while episodes are played in --out's folder live."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "manyarms eval tabletop/open_drawer --policy expert --episodes 20 --videos 2",
            "manyarms eval libero/libero_spatial --policy pi0 --policy-options model_path=pi0 --init-states 50",
            "manyarms eval tabletop/push_button --policy runs/push_button_ppo/checkpoints/global_step_120",
        ),
        everyday=(
            "tasks",
            "policy",
            "policy_options",
            "episodes",
            "seed",
            "num_envs",
            "out",
            "resume",
            "videos",
            "python",
            "options",
        ),
        groups={**PLAYED, "what is kept": ("out", "resume", *_FILMING, "live"), **PLAYING},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and self.out is None:
            raise ConfigError("--resume needs --out: which results are to be continued?")
        if self.video_stride < 1:
            raise ConfigError(f"video_stride is {self.video_stride}; it must be at least 1")

    def environments(self, **options: Any) -> EnvConfig:
        """Return which environments are played in, as policies are evaluated there, and which videos are made."""
        videos = VideoSettings(
            bool(self.videos),
            self.info_on_video,
            videos=self.videos,
            video_stride=self.video_stride,
            fps=self.fps,
            camera=self.video_camera,
        )
        options = {**registry.about(self.simulator).evaluation_options, **options}
        return replace(super().environments(**options), video_cfg=videos)


def run(config: EvalConfig) -> EvalResult:
    """Evaluate this rank's share of the episodes."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and config.out is None:
        raise ConfigError("several ranks need one --out to meet in")
    env = config.environments()
    where = config.out or _default_folder(config)
    if not config.trust_code:
        check_goes_on_inside(where, trusted="--trust-code")
    folder = ResultFolder(where, config.identity(), rank=rank, resume=config.resume, read=config.read_identity)
    done = folder.load()
    live = (folder.folder, f"eval-{rank}") if config.live else None
    if config.resume and rank == 0:
        forget_earlier(folder.folder)
    with folder, opened(config, env, live) as envs:
        policy = policy_for(config, envs)  # first: one that cannot be made leaves no folder behind
        episodes = env.held_out(envs)
        share = [i for i in range(len(episodes)) if i % world == rank and i not in done]
        videos = env.videos(envs.simulator_spec, folder.folder / "videos") if share else None
        known = [result for result in done.values() if result.position % world == rank]
        try:
            with Scoreboard(len(known) + len(share)) as board:
                for result in known:
                    board.add(result.task or "", result.success)
                chosen, sinks = [(i, episodes[i]) for i in share], [videos] if videos else []
                for result in results_of(envs, policy, chosen, config.runner(keep=()), sinks):
                    folder.add(result)
                    board.add(result.task or "", result.success)
        except KeyboardInterrupt:
            _say_how_to_go_on(folder, len(episodes))
            raise
        finally:
            kept = videos.close() if videos else []
            if videos and videos.errors:
                count = "1 video was" if len(videos.errors) == 1 else f"{len(videos.errors)} videos were"
                say(f"{count} not written: {videos.errors[0]}", stderr=True)
    everything = folder.load()
    complete = len(everything) == len(episodes)
    if complete:
        folder.conclude(list(everything.values()))
    results = sorted(everything.values(), key=lambda result: result.position)
    return EvalResult(results, complete, folder.folder, kept, f"{config.policy} on {config.simulator}")


def _say_how_to_go_on(folder: ResultFolder, episodes: int) -> None:
    if count := len(folder.load()):
        found = f"{count} of {episodes} episodes are in {folder.folder}"
        say(f"{found}; --out {folder.folder} --resume goes on with the others", stderr=True)


def _default_folder(config: EvalConfig) -> Path:
    name = f"eval-{config.simulator}-{config.policy}-{time.strftime('%Y%m%d-%H%M%S')}"
    return Path("runs") / "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def main(arguments: Sequence[str]) -> int:
    """Parse, evaluate, print the headline first."""
    run(parse(EvalConfig, "eval", arguments)).show()
    return 0
