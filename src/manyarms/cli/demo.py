"""``manyarms demo``: how fast, and many arms at work, on this machine."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import time
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import gymnasium
import numpy as np

from manyarms.cli.bench import BenchConfig
from manyarms.cli.bench import run as bench
from manyarms.cli.help import Guide
from manyarms.cli.options import parse
from manyarms.environments import EnvConfig, SimulatorSettings
from manyarms.errors import ConfigError, UnknownName, did_you_mean
from manyarms.reporting.charts import Bar, Bars, Plot
from manyarms.reporting.console import Shown, Table, Telling
from manyarms.reporting.files import make_folder
from manyarms.reporting.progress import progress
from manyarms.reporting.speed import gymnasium_speed
from manyarms.reporting.video import VideoWriter, tiled
from manyarms.simulators.gymnasium import UnknownTask, make_env
from manyarms.vector import EpisodeId, VectorEnv

_TASKS = (
    *("stack_blocks", "open_drawer", "pick_up_cup", "sweep_to_dustpan", "put_item_in_drawer", "slide_block_to_target"),
    *("turn_tap", "push_button", "close_drawer"),
)


@dataclass(frozen=True)
class DemoConfig:
    """Step a Gymnasium environment in eight processes, Gymnasium's way and ours; film arms at nine tasks; train one."""

    task: str = "CartPole-v1"
    """Any registered Gymnasium environment with a Discrete or Box action."""
    num_envs: int = 8
    """Environments side by side."""
    seconds: float = 3.0
    """How long each measurement takes, about."""
    steps: int = 160
    """Control steps to film; 0: no video."""
    train_seconds: float = 60.0
    """How long to train an arm to press a button; 0: not at all."""
    episodes: int = 50
    """Held-out episodes that judge the arm, before and after it has trained."""
    out: Path = Path("demo")
    """Where the video and the training run go."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "manyarms demo",
            "manyarms demo --train-seconds 0   # the speeds and the film only",
            "manyarms demo --task Acrobot-v1 --num-envs 16 --steps 0 --train-seconds 0",
        ),
    )

    def __post_init__(self) -> None:
        for name in ("num_envs", "episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 < self.seconds < math.inf:
            raise ConfigError(f"seconds is {self.seconds:g}; it must be a finite number above 0")
        for name in ("steps", "train_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name):g}; it must be at least 0 (0 leaves that part out)")


@dataclass(frozen=True, repr=False)
class DemoResult(Shown):
    """What was measured and made."""

    config: DemoConfig
    speeds: dict[str, float]
    """Env-steps per second by way of stepping."""
    solved: int = 0
    attempted: int = 0
    video: Path | None = None
    success: tuple[float, float] | None = None
    """Of the arm that was trained, before and after."""
    report: Path | None = None

    def told(self) -> Telling:
        config, (base, best) = self.config, (next(iter(self.speeds.values())), max(self.speeds.values()))
        rows = [
            (label, f"{speed:>10,.0f} env-steps/s", f"{np.round(speed / base, 1):5.1f} ×")
            for label, speed in self.speeds.items()
        ]
        notes = []
        if self.video is not None:
            notes.append(f"{len(_TASKS)} arms at work, {self.solved} episodes solved: {self.video}")
        if self.success is not None:
            before, after = (f"{100 * rate:.0f} %" for rate in self.success)
            learnt = f"an arm learnt to press a button in {config.train_seconds:.0f} s"
            notes += [f"{learnt}: success {before} -> {after}", f"report: {self.report}"]
        return Telling(
            f"{config.task}, {config.num_envs} environments: {best / base:.0f} times Gymnasium's speed",
            [Table(rows, ("way", "speed", "ratio"))],
            notes,
        )

    def plot(self) -> Plot:
        """Draw the speeds."""
        bars = [Bar(label, speed, f"{speed:,.0f}") for label, speed in self.speeds.items()]
        return Plot(self.told().headline, [Bars("env-steps a second", bars)])


def run(config: DemoConfig) -> DemoResult:
    """Measure, film, train."""
    _try_out(config)
    speeds = measure(config)
    result = film(config, speeds) if config.steps else DemoResult(config, speeds)
    if not config.train_seconds:
        return result
    if importlib.util.find_spec("torch") is None:
        print("training is left out: it needs torch (pip install 'manyarms[torch,video]')", file=sys.stderr)
        return result
    return train_arm(config, result)


def _try_out(config: DemoConfig) -> None:
    """Refuse a task that cannot be played and a folder that cannot be made, before anything takes long."""
    try:
        make_env(config.task, {}).close()
    except UnknownTask as error:
        do = did_you_mean(config.task, error.known)
        raise UnknownName(f"gym has no task {config.task!r}", why=str(error), do=do) from None
    except gymnasium.error.Error as error:
        raise ConfigError(f"{config.task} cannot be made", why=str(error), do="choose another --task") from error
    if config.steps or config.train_seconds:
        make_folder(config.out)


def train_arm(config: DemoConfig, result: DemoResult) -> DemoResult:
    """Train an arm from nothing, and film it before and after."""
    from manyarms.learning.settings import load
    from manyarms.learning.training import train
    from manyarms.reporting.results import summarise

    captions = "true" if importlib.util.find_spec("PIL") is not None else "false"
    words = [
        f"runner.max_seconds={config.train_seconds}",
        "runner.val_check_interval=-1",
        f"runner.logger.log_path={config.out}",
        f"runner.logger.experiment_name=push_button-{time.strftime('%H%M%S')}",
        "runner.logger.logger_backends=[]",
        f"env.eval.episodes={config.episodes}",
        "env.eval.options.cameras=[front]",
        f"env.eval.video_cfg={{save_video: true, info_on_video: {captions}}}",
    ]
    trained = train(load("push_button_ppo", words))
    rates = [summarise(results).success for _, results in trained.evaluations]  # none: it was interrupted at once
    return replace(result, success=(rates[0], rates[-1]) if rates else None, report=trained.report)


def measure(config: DemoConfig) -> dict[str, float]:
    """Return env-steps per second by way of stepping."""
    speeds = {"gymnasium AsyncVectorEnv": gymnasium_speed(config.task, config.num_envs, config.seconds)}
    for label, chunk, rows in (
        ("manyarms step", 1, 1),
        ("manyarms step, two processes", 1, -(-config.num_envs // 2)),
        ("manyarms step_chunk, 16 actions", 16, 1),
    ):
        expected = 4 * chunk * speeds["gymnasium AsyncVectorEnv"]
        steps = max(200, int(expected * config.seconds / config.num_envs))
        settings = {"num_envs": config.num_envs, "action_chunk": chunk, "rows_per_worker": rows, "copy": False}
        speeds[label] = bench(BenchConfig(f"gym/{config.task}", steps=steps, **settings)).env_steps_per_second
    return speeds


def film(config: DemoConfig, speeds: dict[str, float]) -> DemoResult:
    """Have the experts of nine tasks at work side by side, and film them in a grid."""
    from manyarms.simulators.tabletop.task import discover

    path = config.out / "many-arms-grid.mp4"
    solved = attempted = 0
    cameras = [discover()[task].view for task in _TASKS]
    options = {"image_size": (224, 224), "arm_mode": "delta_ee", "expert": True}
    simulators = [
        SimulatorSettings(f"tabletop/{task}", options={"cameras": [camera]})
        for task, camera in zip(_TASKS, cameras, strict=True)
    ]
    env = EnvConfig(tuple(simulators), options)
    with env.open(len(_TASKS)) as envs, progress("filming", config.steps) as advance, VideoWriter(path) as video:
        _begin(envs, range(len(_TASKS)), attempted)
        attempted += len(_TASKS)
        ready = envs.recv(min_rows=len(_TASKS))
        for _ in range(config.steps):
            seen = {row: ready.observations[f"{cameras[row]}_rgb"][i] for i, row in enumerate(ready.rows.tolist())}
            video.add(tiled([seen[row] for row in sorted(seen)]))
            ended = ready.rows[ready.ended].tolist()
            solved += int(ready.success.sum())
            going = ~ready.ended
            if going.any():
                envs.send(ready.rows[going], np.array(ready.observations["expert_action"][going])[:, None])
            if ended:
                _begin(envs, ended, attempted)
                attempted += len(ended)
            ready = envs.recv(min_rows=len(_TASKS))
            advance(1, f"{solved} solved")
    return DemoResult(config, speeds, solved, attempted, path)


def _begin(envs: VectorEnv, rows: Sequence[int], first_seed: int) -> None:
    envs.begin(rows, [EpisodeId(seed=first_seed + i) for i in range(len(rows))])


def show(page: Path | None) -> None:
    """Open a page where someone is there to see it."""
    if page is not None and sys.stdout.isatty() and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        webbrowser.open(page.resolve().as_uri())


def main(arguments: Sequence[str]) -> int:
    """Measure, film and print."""
    result = run(parse(DemoConfig, "demo", arguments))
    result.show()
    show(result.report)
    print("next: manyarms eval tabletop --tasks open_drawer,stack_blocks --policy expert --episodes 20 --videos 2")
    return 0
