"""``manyarms bench``: how fast a simulator steps in many processes, and where the time goes."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from manyarms.cli.help import Guide
from manyarms.cli.options import Options, SimulatorName, options_of, parse
from manyarms.environments import EnvConfig, SimulatorSettings
from manyarms.errors import ConfigError
from manyarms.reporting.files import make_folder, write_atomically
from manyarms.reporting.speed import BenchResult, measure


@dataclass(frozen=True)
class BenchConfig:
    """Step a simulator with random actions and measure."""

    simulator: SimulatorName
    """<simulator>/<task>, package.module:factory or path/to/file.py:factory."""
    num_envs: int = 8
    """Environments side by side."""
    action_chunk: int = 1
    """Actions sent in one call."""
    steps: int = 1000
    """Steps measured in each environment."""
    warmup: int = 50
    """Calls made before the measurement."""
    rows_per_worker: int = 1
    """Environments that share a process."""
    profile: bool = False
    """Split the time into main side, simulation, observation, hand-over."""
    trace: str | None = None
    """Write a Chrome/Perfetto trace to this file; implies --profile."""
    copy: bool = True
    """Return copies of the observations; --no-copy returns views."""
    python: str | None = None
    """The interpreter the simulator runs in: a path, a command or a virtual environment."""
    seed: int = 0
    """Seed of the first environment; the others count up."""
    json: str | None = None
    """Where the results go; default: runs/bench-<simulator>-<time>.json."""
    options: Options = field(default_factory=dict)
    """Further options of the simulator or of the vector environment."""
    guide: ClassVar[Guide] = Guide(
        examples=(
            "manyarms bench gym/CartPole-v1 --num-envs 16 --action-chunk 16",
            "manyarms bench tabletop/open_drawer --profile   # and where the time goes",
            "manyarms bench rlbench/reach_target --options cameras=[] arm_mode=joint_velocity",
        ),
    )

    def __post_init__(self) -> None:
        for name in ("action_chunk", "steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.warmup < 0:
            raise ConfigError(f"warmup is {self.warmup}; it must be at least 0")
        object.__setattr__(self, "options", options_of(self.options))


def run(config: BenchConfig) -> BenchResult:
    """Measure and return."""
    began = time.perf_counter()
    settings = {"max_chunk": config.action_chunk, "profile": config.profile, "trace": config.trace}
    env = EnvConfig(
        (SimulatorSettings(config.simulator, python=config.python),),
        {**settings, **config.options},
        rows_per_worker=config.rows_per_worker,
        copy=config.copy,
    )
    with env.open(config.num_envs) as envs:
        return measure(
            envs,
            steps=config.steps,
            action_chunk=config.action_chunk,
            warmup=config.warmup,
            seed=config.seed,
            start_seconds=time.perf_counter() - began,
            config=asdict(config),
        )


def save(result: BenchResult) -> Path:
    """Write the results as JSON; return where."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in str(result.config["simulator"]))
    default = f"runs/bench-{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path = Path(result.config["json"] or default)
    make_folder(path.parent)
    write_atomically(path, json.dumps(asdict(result), indent=2))
    return path


def main(arguments: Sequence[str]) -> int:
    """Parse, measure, print, save."""
    result = run(parse(BenchConfig, "bench", arguments))
    result.show()
    print(f"results: {save(result)}")
    if result.config["trace"]:
        print(f"trace:   {result.config['trace']} (open it in chrome://tracing or ui.perfetto.dev)")
    return 130 if result.interrupted else 0
