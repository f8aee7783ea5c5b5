"""How often the scripted experts solve their tasks: writes docs/benchmarks/experts.md and docs/images/tasks.png.

python benchmarks/experts.py --episodes 100
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import manyarms
from manyarms import EpisodeId
from manyarms.reporting.video import tiled, with_caption
from manyarms.simulators.tabletop.simulator import TabletopSimulator
from manyarms.simulators.tabletop.task import discover

DOCS = Path(__file__).resolve().parent.parent / "docs"


@dataclass(frozen=True)
class ExpertBenchmark:
    """What to measure."""

    episodes: int = 100
    """Of every task, with seeds from 0 on."""
    modes: tuple[str, ...] = ("ik", "delta_ee")
    """Action modes."""
    tasks: tuple[str, ...] = ()
    """Which; default: all."""
    num_envs: int = 4
    out: Path = DOCS


def success_rate(task: str, mode: str, episodes: int, num_envs: int) -> tuple[float, float]:
    """Return the share of episodes solved and the mean number of actions they took."""
    solved, lengths, begun = 0, [], 0
    with manyarms.make_vec(f"tabletop/{task}", num_envs, cameras=[], arm_mode=mode, expert=True, copy=False) as envs:
        steps = np.zeros(num_envs, int)
        rows = np.arange(min(num_envs, episodes))
        envs.begin(rows, [EpisodeId(seed=int(row)) for row in rows])
        begun = len(rows)
        running = len(rows)
        while running:
            ready = envs.recv()
            ended = ready.ended
            solved += int(ready.success.sum())
            steps[ready.rows] += ready.num_steps
            for row in ready.rows[ended].tolist():
                lengths.append(int(steps[row]))
                steps[row] = 0
                running -= 1
                if begun < episodes:
                    envs.begin([row], EpisodeId(seed=begun))
                    begun += 1
                    running += 1
            going = ready.rows[~ended]
            if len(going):
                envs.send(going, np.array(ready.observations["expert_action"][~ended])[:, None])
    return solved / episodes, float(np.mean(lengths))


def sheet() -> np.ndarray:
    """Return a picture of every task, in the middle of being solved."""
    pictures = []
    for name in discover():
        simulator = TabletopSimulator(name, cameras=(), image_size=(256, 256), render_quality="full")
        simulator.reset(None, 3, None)
        actions = 0
        frames = [simulator.render("front")]
        while actions < 40 and not simulator.step(simulator.expert_action()).success:
            frames.append(simulator.render("front"))
            actions += 1
        frames.append(simulator.render("front"))
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
    for name in names:
        cells = []
        for mode in config.modes:
            rate, length = success_rate(name, mode, config.episodes, config.num_envs)
            cells += [f"{100 * rate:.0f} %", f"{length:.0f}"]
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
