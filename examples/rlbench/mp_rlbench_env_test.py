"""One episode in each of N RLBench processes, chunk by chunk: what everything together takes, videos included."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack

import numpy as np

from films import Films
from flags import TestFlags, read
from manyarms import EpisodeId
from manyarms.cli import answer
from play import Wanderer
from rlbench_vec_env import RLBenchVectorEnv, from_flags


def main() -> int:
    flags = read(TestFlags)
    with ExitStack() as stack:
        env = stack.enter_context(from_flags(flags, flags.num_envs, profile=True))
        films = stack.enter_context(Films(flags, flags.num_envs))
        print(flags.summary())
        run(env, flags, films)
    print(f"{len(films.paths)} videos in {flags.output_dir}")
    return 0


def run(env: RLBenchVectorEnv, flags: TestFlags, films: Films) -> None:
    """Send chunks to the environments whose episode goes on, until none does."""
    envs, count = env.envs, env.num_envs
    done = np.zeros(count, bool)
    returns = np.zeros(count)
    envs.begin(range(count), [EpisodeId(seed=flags.seed + row, index=row) for row in range(count)])
    chunk = envs.recv(min_rows=count)
    live = np.sort(chunk.rows[~chunk.ended])
    wanderer = Wanderer(flags.mode_of_arm, envs.observations, flags.seed)
    films.begin(envs.observations)
    calls = -(-flags.max_steps // flags.action_chunk)
    exec_s = ipc_s = 0.0
    steps = 0
    began = time.perf_counter()
    for call in range(calls):
        length = min(flags.action_chunk, flags.max_steps - call * flags.action_chunk)
        envs.send(live, wanderer.chunk(envs.observations, length)[live])
        chunk = envs.recv(min_rows=len(live))
        returns[chunk.rows] += chunk.rewards.sum(axis=1)
        done[chunk.rows] |= chunk.terminated
        steps += int(chunk.num_steps.sum())
        for i, row in enumerate(chunk.rows.tolist()):
            films.add_row(row, chunk, i)
        assert chunk.timing is not None
        exec_s += chunk.timing.exec
        ipc_s += chunk.timing.ipc
        print(
            f"chunk {call + 1}/{calls}: done={done.sum()}/{count} "
            f"exec_s={chunk.timing.exec:.4f} ipc_s={chunk.timing.ipc:.4f}",
            flush=True,
        )
        live = np.sort(chunk.rows[~chunk.ended])
        if not len(live):
            break
    seconds = time.perf_counter() - began
    print(f"env_steps={steps} in {seconds:.2f} s: {steps / seconds:.1f} env-steps/s")
    print(f"exec_s={exec_s:.3f} ipc_s={ipc_s:.3f}")
    print(f"Success rate (done==True): {100 * done.mean():.1f}% ({done.sum()}/{count})")
    print(f"Average return: {returns.mean():.3f}")
    if envs.failures:
        print(f"{len(envs.failures)} workers failed: {envs.failures[-1]}")


if __name__ == "__main__":
    sys.exit(answer(main))
