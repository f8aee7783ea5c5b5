"""RLBench in many processes, alone or under torchrun: measure it, film it, or train a small network on it."""

from __future__ import annotations

import glob
import os
import sys
from typing import Any

from flags import RunFlags, read
from manyarms.cli import answer
from manyarms.learning.ranks import joined


def main() -> int:
    flags = read(RunFlags, lambda flags, world: flags.envs_per_rank(world))
    device, options = _gpu(flags)
    with joined(device) as ranks:
        counts = flags.envs_per_rank(ranks.world)
        if flags.mode == "train":
            from learn import train

            train(flags, counts, ranks, **options)
        else:
            from play import bench

            bench(flags, counts, ranks, profile=flags.profile_timing, **options)
    return 0


def _gpu(flags: RunFlags) -> tuple[str, dict[str, Any]]:
    """Return where this rank computes, and where its workers render."""
    if not flags.ddp_bind_gpu:
        return "cpu", {}
    gpus = len(glob.glob("/dev/nvidia[0-9]*"))
    if not gpus:
        if os.environ.get("RANK", "0") == "0":
            print("there is no GPU here: --ddp_bind_gpu binds nothing", flush=True)
        return "cpu", {}
    own = int(os.environ.get("LOCAL_RANK", "0")) % gpus
    return f"cuda:{own}", {"egl_device": own}


if __name__ == "__main__":
    sys.exit(answer(main))
