"""Three ways to step many environments: as Gymnasium does, by chunks, and asynchronously."""

from __future__ import annotations

import numpy as np

import manyarms
from manyarms import EpisodeId


def main() -> None:
    rng = np.random.default_rng(0)
    with manyarms.make_vec("gym/Pendulum-v1", num_envs=4) as envs:
        # 1. As Gymnasium's vector environments: one action a row, autoreset included.
        envs.reset(seed=0)
        total = np.zeros(4)
        for _ in range(50):
            _, rewards, *_ = envs.step(envs.action_space.sample())
            total += rewards
        print("50 steps, return of each row:", total.round(1))

        # 2. By chunks: 16 actions a row in one round trip.
        chunk = envs.step_chunk(rng.uniform(-2, 2, (4, 16, 1)).astype(np.float32))
        print("one chunk, steps of each row:", chunk.num_steps, "rewards", chunk.rewards.shape)

        # 3. Asynchronously: ten episodes over four rows, each row served as soon as it is ready.
        waiting = [EpisodeId(seed=seed, index=seed) for seed in range(10)]
        returns: dict[int, float] = {}
        running: dict[int, EpisodeId] = {}
        for row in range(4):
            running[row] = waiting.pop(0)
            envs.begin([row], running[row])
        while running:
            ready = envs.recv(min_rows=1)
            live = []
            for i, row in enumerate(ready.rows.tolist()):
                episode = running[row]
                returns[episode.index] = returns.get(episode.index, 0.0) + ready.rewards[i].sum()
                if not ready.ended[i]:
                    live.append(row)
                elif waiting:
                    running[row] = waiting.pop(0)
                    envs.begin([row], running[row])
                else:
                    del running[row]
            if live:
                envs.send(live, rng.uniform(-2, 2, (len(live), 25, 1)).astype(np.float32))
        print("ten episodes:", [round(returns[i]) for i in range(10)])


if __name__ == "__main__":
    main()
