"""How often the scripted experts solve their tasks: writes docs/benchmarks/experts.md and docs/images/tasks.png.

python benchmarks/experts.py --episodes 100
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from manyarms.cli import eval as evaluation
from manyarms.cli.eval import EvalConfig
from manyarms.reporting.results import TaskSummary, by_task, summarise
from manyarms.reporting.video import tiled, with_caption
from manyarms.simulators.tabletop.simulator import TabletopSimulator
from manyarms.simulators.tabletop.task import discover

DOCS = Path(__file__).resolve().parent.parent / "docs"


@dataclass(frozen=True)
class ExpertBenchmark:
    """What to measure."""

    episodes: int = 100
    """Of every task, with seeds from 0 on."""
    modes: tuple[str, ...] = ("ik", "delta_ee", "joint_position")
    """Action modes."""
    tasks: tuple[str, ...] = ()
    """Which; default: all."""
    num_envs: int = 4
    out: Path = DOCS


def evaluated(config: ExpertBenchmark, mode: str) -> dict[str, TaskSummary]:
    """Return how often and how fast each task is solved in an action mode."""
    with tempfile.TemporaryDirectory() as folder:
        found = evaluation.run(
            EvalConfig(
                "tabletop",
                tasks=tuple(config.tasks or discover()),
                policy="expert",
                episodes=config.episodes,
                num_envs=config.num_envs,
                out=Path(folder),
                options={"arm_mode": mode, "cameras": []},
            )
        )
    return {task: summarise(results) for task, results in by_task(found.results).items()}


def sheet() -> np.ndarray:
    """Return a picture of every task, in the middle of being solved."""
    pictures = []
    for name, task in discover().items():
        view = task.view
        simulator = TabletopSimulator(name, cameras=(), image_size=(256, 256), render_quality="full")
        simulator.reset(None, 3, None)
        actions = 0
        frames = [simulator.render(view)]
        while actions < 40 and not simulator.step(simulator.expert_action()).success:
            frames.append(simulator.render(view))
            actions += 1
        frames.append(simulator.render(view))
        pictures.append(with_caption(frames[len(frames) // 2], name))
        simulator.close()
    return tiled(pictures, columns=5)


def main() -> None:
    import tyro
    from PIL import Image

    config = tyro.cli(ExpertBenchmark)
    names = config.tasks or tuple(discover())
    head = "".join(f" `{mode}` | actions |" for mode in config.modes)
    lines = ["| task |" + head, "|---|" + "---:|---:|" * len(config.modes)]
    began = time.perf_counter()
    found = {mode: evaluated(config, mode) for mode in config.modes}
    for name in names:
        summaries = [found[mode][name] for mode in config.modes]
        cells = [cell for one in summaries for cell in (f"{100 * one.success:.0f} %", f"{one.mean_length:.0f}")]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    spent = time.perf_counter() - began
    text = (
        "# Experts\n\nEpisodes solved by the scripted experts of `tabletop`, of "
        f"{config.episodes} with seeds 0 to {config.episodes - 1}, and how many actions they take on average. "
        "Made with:\n\n"
        f"    python benchmarks/experts.py --episodes {config.episodes} --modes {' '.join(config.modes)}\n\n"
        + "\n".join(lines)
        + f"\n\nAll in {spent:.0f} s on two cores.\n"
    )
    (config.out / "benchmarks").mkdir(parents=True, exist_ok=True)
    (config.out / "benchmarks" / "experts.md").write_text(text)
    (config.out / "images").mkdir(parents=True, exist_ok=True)
    Image.fromarray(sheet()).save(config.out / "images" / "tasks.png")


if __name__ == "__main__":
    main()
