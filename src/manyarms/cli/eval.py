"""``manyarms eval``: how often a policy succeeds, task by task."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from manyarms.cli.options import parse
from manyarms.cli.playing import PlayConfig, episodes_of, opened, policy_for
from manyarms.errors import ConfigError
from manyarms.reporting.console import Scoreboard, table
from manyarms.reporting.evaluation import results_of
from manyarms.reporting.filming import EpisodeVideos
from manyarms.reporting.results import EpisodeResult, ResultFolder, by_task, summarise
from manyarms.simulators.registry import fact
from manyarms.vector import VectorEnv


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
    info_on_video: bool = False
    """Write task, step, reward and success under the picture."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and self.out is None:
            raise ConfigError("--resume needs --out: which results are to be continued?")
        if self.video_stride < 1:
            raise ConfigError(f"video_stride is {self.video_stride}; it must be at least 1")


@dataclass(frozen=True)
class EvalResult:
    """What came out."""

    results: list[EpisodeResult]
    complete: bool
    """Whether every episode of every rank is in."""
    folder: Path
    videos: list[Path]


def run(config: EvalConfig) -> EvalResult:
    """Evaluate this rank's share of the episodes."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and config.out is None:
        raise ConfigError("several ranks need one --out to meet in")
    folder = ResultFolder(config.out or _default_folder(config), config.identity(), rank=rank, resume=config.resume)
    done = folder.load()
    settings = dict(fact(config.simulator, "evaluation_options", {}))
    if config.videos:
        settings["render_every"] = config.video_stride
    with opened(config, **settings) as envs:
        episodes = episodes_of(config, envs)
        share = [i for i in range(len(episodes)) if i % world == rank and i not in done]
        videos = _filming(config, envs, folder.folder) if share else None
        try:
            with Scoreboard(sum(i % world == rank for i in range(len(episodes)))) as board:
                for result in done.values():
                    if result.position % world == rank:
                        board.add(result.task or "", result.success)
                for result in results_of(
                    envs,
                    policy_for(config, envs),
                    [(i, episodes[i]) for i in share],
                    config.runner(keep=()),
                    [videos] if videos else [],
                ):
                    folder.add(result)
                    board.add(result.task or "", result.success)
        finally:
            kept = videos.close() if videos else []
            if videos and videos.errors:
                print(f"{len(videos.errors)} videos were not written: {videos.errors[0]}", file=sys.stderr)
    everything = folder.load()
    complete = len(everything) == len(episodes)
    if complete:
        folder.conclude(list(everything.values()))
    return EvalResult(sorted(everything.values(), key=lambda r: r.position), complete, folder.folder, kept)


def _filming(config: EvalConfig, envs: VectorEnv, folder: Path) -> EpisodeVideos | None:
    if not config.videos:
        return None
    return EpisodeVideos(
        folder / "videos",
        envs.simulator_spec,
        keep=config.videos,
        field=config.video_camera,
        fps=config.fps,
        captions=config.info_on_video,
    )


def _default_folder(config: EvalConfig) -> Path:
    name = f"eval-{config.simulator}-{config.policy}-{time.strftime('%Y%m%d-%H%M%S')}"
    return Path("runs") / "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def main(arguments: Sequence[str]) -> int:
    """Parse, evaluate, print the headline first."""
    config = parse(EvalConfig, "eval", arguments)
    result = run(config)
    overall = summarise(result.results)
    low, high = overall.interval
    headline = f"{100 * overall.success:.1f} % success ({overall.successes} of {overall.episodes} episodes"
    print(f"{headline}, 95 % interval {100 * low:.1f} to {100 * high:.1f} %)")
    rows = []
    for task, group in by_task(result.results).items():
        found = summarise(group)
        rows.append(
            (
                task or config.simulator,
                f"{found.successes} / {found.episodes}",
                f"{100 * found.success:.1f} %",
                f"{100 * found.interval[0]:.1f} – {100 * found.interval[1]:.1f} %",
                f"{found.mean_length:.1f}",
            )
        )
    table(f"{config.policy} on {config.simulator}", rows, ("task", "solved", "success", "95 % interval", "mean steps"))
    if not result.complete:
        print("other ranks are still at work; the last one to finish writes results.json")
    print(f"results: {result.folder}" + (f", {len(result.videos)} videos" if result.videos else ""))
    return 0
