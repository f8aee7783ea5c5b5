"""LIBERO's own vector environment, used as RIPT-VLA uses it. Runs in LIBERO's interpreter, without manyarms.

``python libero_peer.py BDDL_FILE NUM_ENVS IMAGE_SIZE CHUNK``: says when it is up, then for every line "<chunks>" plays
so many chunks (every action is a call, and every call brings all images) and says how long it took.
"""

import importlib
import os
import sys
import time
from functools import partial

import numpy as np


def main() -> None:
    sys.path.pop(0)  # this folder, where another libero.py lies
    bddl, num_envs, size, chunk = sys.argv[1], *map(int, sys.argv[2:])
    os.environ.setdefault("LIBERO_CONFIG_PATH", os.path.join(sys.prefix, "libero"))
    libero = importlib.import_module("libero.libero.envs")
    make = partial(
        libero.OffScreenRenderEnv, bddl_file_name=bddl, camera_heights=size, camera_widths=size, ignore_done=True
    )
    envs = libero.SubprocVectorEnv([make for _ in range(num_envs)])
    envs.seed(0)
    envs.reset()
    rng = np.random.default_rng(0)
    print("up", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            for action in rng.uniform(-0.3, 0.3, (chunk, num_envs, 7)):
                envs.step(action)
        print(time.perf_counter() - began, flush=True)
    envs.close()


if __name__ == "__main__":
    main()
