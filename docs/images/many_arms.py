"""Make the moving picture of the README: many arms at work, one process each, served together.

python docs/images/many_arms.py     # needs pillow; writes docs/images/many_arms.webp
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

import manyarms
from manyarms import EpisodeId

COLUMNS, ROWS = 8, 4
WIDTH, HEIGHT = 120, 96
STEPS, STRIDE, FPS = 176, 2, 12
#: Where the picture stands still, its first frame is all there is: it should show arms at work.
FIRST = 22
TASKS = (
    *("stack_blocks", "open_drawer", "pick_up_cup", "sweep_to_dustpan", "put_item_in_drawer", "slide_block_to_target"),
    *("turn_tap", "push_button", "close_drawer"),
)
OUT = Path(__file__).with_suffix(".webp")


def pictures() -> list[np.ndarray]:
    """Play all rows for a while, each from one episode to the next; return grids of what their cameras saw."""
    count = COLUMNS * ROWS
    options = {
        "cameras": ["front"],
        "image_size": (2 * WIDTH, 2 * HEIGHT),
        "render_quality": "full",
        "arm_mode": "delta_ee",
        "expert": True,
        "tasks": list(TASKS),
    }
    grids = []
    with manyarms.make_vec("tabletop", num_envs=count, rows_per_worker=4, **options) as envs:
        turns = [0] * count

        def start(rows: list[int]) -> None:
            episodes = [
                EpisodeId(TASKS[(5 * row + turns[row]) % len(TASKS)], seed=row + 100 * turns[row]) for row in rows
            ]
            for row in rows:
                turns[row] += 1
            envs.begin(rows, episodes)

        start(list(range(count)))
        ready = envs.recv(min_rows=count)
        for step in range(STEPS):
            ended = ready.rows[ready.ended].tolist()
            if ended:
                start(ended)
                envs.recv(min_rows=len(ended))
            seen = envs.observations
            if step % STRIDE == 0:
                grids.append(grid(seen["front_rgb"]))
            envs.send(range(count), seen["expert_action"][:, None])
            ready = envs.recv(min_rows=count)
    return grids


def grid(frames: np.ndarray) -> np.ndarray:
    """Halve frames [N, 2H, 2W, 3] and lay them out, a pixel apart."""
    halved = frames.reshape(len(frames), HEIGHT, 2, WIDTH, 2, 3).mean(axis=(2, 4))
    halved[:, -1:], halved[:, :, -1:] = 255, 255
    rows = halved.reshape(ROWS, COLUMNS, HEIGHT, WIDTH, 3).transpose(0, 2, 1, 3, 4)
    return rows.reshape(ROWS * HEIGHT, COLUMNS * WIDTH, 3).round().astype(np.uint8)


def main() -> None:
    seen = pictures()
    first, *others = [Image.fromarray(picture) for picture in (*seen[FIRST:], *seen[:FIRST])]
    first.save(OUT, save_all=True, append_images=others, duration=1000 // FPS, loop=0, quality=45, method=6)
    print(f"{OUT.name}: {1 + len(others)} pictures, {OUT.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
