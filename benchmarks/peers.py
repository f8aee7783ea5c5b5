"""One way of stepping many environments a class, each used as its documentation says.

A peer has `step(actions)` for N environments. Those that need packages of their own run in an environment of their own
(`requirements`); `benchmarks/vector.py` makes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import workloads


class Peer:
    """Makes `num_envs` environments of a workload and steps them all."""

    name: ClassVar[str]
    requirements: ClassVar[tuple[str, ...]] = ()
    takes_chunks: ClassVar[bool] = False

    def __init__(self, workload: str, num_envs: int, chunk: int) -> None:
        self.workload, self.num_envs, self.chunk = workload, num_envs, chunk
        shape = (num_envs, chunk, 8) if chunk > 1 else (num_envs, 8)
        self.actions = np.zeros(shape, np.float32)
        self.factories: list[Callable[[], Any]] = [partial(workloads.make, workload, chunk)] * num_envs
        self.envs: Any = None

    def start(self) -> None:
        """Start all processes and reset."""
        raise TypeError("a peer must say how it starts")

    def step(self) -> None:
        """Step every environment once, or by one chunk."""
        self.envs.step(self.actions)

    def close(self) -> None:
        self.envs.close()


class GymnasiumAsync(Peer):
    name = "gymnasium AsyncVectorEnv"
    copy = True

    def start(self) -> None:
        from gymnasium.vector import AsyncVectorEnv

        self.envs = AsyncVectorEnv(self.factories, context="spawn", copy=self.copy)
        self.envs.reset(seed=0)


class GymnasiumAsyncNoCopy(GymnasiumAsync):
    name = "gymnasium AsyncVectorEnv, copy=False"
    copy = False


class GymnasiumSync(Peer):
    name = "gymnasium SyncVectorEnv (no processes)"

    def start(self) -> None:
        from gymnasium.vector import SyncVectorEnv

        self.envs = SyncVectorEnv(self.factories, copy=False)
        self.envs.reset(seed=0)


class Manyarms(Peer):
    name = "manyarms"
    takes_chunks = True
    settings: ClassVar[dict[str, Any]] = {"copy": False}

    def start(self) -> None:
        import manyarms

        os.environ["WORKLOAD"] = self.workload
        self.envs = manyarms.make_vec("workloads:make_from_environment", self.num_envs, **self.settings)
        self.envs.reset(seed=0)
        self.step = partial(self.envs.step if self.chunk == 1 else self.envs.step_chunk, self.actions)  # type: ignore[method-assign]


class ManyarmsCopy(Manyarms):
    name = "manyarms, copy=True"
    settings: ClassVar[dict[str, Any]] = {"copy": True}


class ManyarmsShared(Manyarms):
    name = "manyarms, 4 rows a worker"
    settings: ClassVar[dict[str, Any]] = {"copy": False, "rows_per_worker": 4}


PEERS: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (GymnasiumAsync, GymnasiumAsyncNoCopy, GymnasiumSync, Manyarms, ManyarmsCopy, ManyarmsShared)
}
