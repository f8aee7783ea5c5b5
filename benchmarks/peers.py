"""One way of stepping many environments a class, each used as its documentation says.

Peers that need packages of their own name them in `requirements`; `benchmarks/vector.py` makes an environment for each.
PufferLib is missing: its package builds only with files it downloads from elsewhere.
"""

# pyright: reportMissingImports=false
# Peers are installed in environments of their own, not where this is checked.

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import workloads

_TORCH = "torch==2.13.0"
_BASE = ("numpy==2.4.6", "gymnasium==1.4.0", "psutil==7.2.2", "mujoco==4.0.0")


class Peer:
    """Makes `num_envs` environments of a workload and steps them all."""

    name: ClassVar[str]
    requirements: ClassVar[tuple[str, ...]] = ()
    workloads: ClassVar[tuple[str, ...]] = ("null_state", "null_images", "busy", "mujoco")
    """Where it is measured."""
    quiet = True
    """Whether it uses no CPU while it is not stepped."""

    def __init__(self, workload: str, num_envs: int, chunk: int, start_method: str = "fork") -> None:
        self.workload, self.num_envs, self.chunk, self.start_method = workload, num_envs, chunk, start_method
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

        self.envs = AsyncVectorEnv(self.factories, context=self.start_method, copy=self.copy)
        self.envs.reset(seed=0)


class GymnasiumAsyncNoCopy(GymnasiumAsync):
    name = "gymnasium AsyncVectorEnv, copy=False"
    copy = False


class GymnasiumSpawned(GymnasiumAsyncNoCopy):
    name = "gymnasium AsyncVectorEnv, copy=False, spawned"
    workloads = ("null_state", "null_images")

    def start(self) -> None:
        self.start_method = "spawn"
        super().start()


class GymnasiumSync(Peer):
    name = "gymnasium SyncVectorEnv (no processes)"

    def start(self) -> None:
        from gymnasium.vector import SyncVectorEnv

        self.envs = SyncVectorEnv(self.factories, copy=False)
        self.envs.reset(seed=0)


class StableBaselines(Peer):
    name = "stable-baselines3 SubprocVecEnv"
    requirements = (*_BASE, _TORCH, "stable-baselines3==2.9.2")

    def start(self) -> None:
        from stable_baselines3.common.vec_env import SubprocVecEnv

        self.envs = SubprocVecEnv(self.factories, start_method=self.start_method)
        self.envs.reset()


class TianshouSubproc(Peer):
    name = "tianshou SubprocVectorEnv"
    requirements = (*_BASE, _TORCH, "tianshou==2.0.1")

    def start(self) -> None:
        from tianshou.env import SubprocVectorEnv

        multiprocessing.set_start_method(self.start_method)
        self.envs = SubprocVectorEnv(self.factories)
        self.envs.reset()


class TianshouShmem(Peer):
    name = "tianshou ShmemVectorEnv"
    requirements = TianshouSubproc.requirements

    def start(self) -> None:
        from tianshou.env import ShmemVectorEnv

        multiprocessing.set_start_method(self.start_method)
        self.envs = ShmemVectorEnv(self.factories)
        self.envs.reset()


class TorchRL(Peer):
    name = "TorchRL ParallelEnv"
    requirements = (*_BASE, _TORCH, "torchrl==0.14.1")

    def start(self) -> None:
        import torch
        from torchrl.envs import ParallelEnv

        torch.set_num_threads(1)
        self.envs = ParallelEnv(
            self.num_envs, partial(_torchrl_env, self.workload, self.chunk), mp_start_method=self.start_method
        )
        self._state = self.envs.reset()
        self._state["action"] = torch.zeros(self.actions.shape)

    def step(self) -> None:
        self.envs.step(self._state)


def _torchrl_env(workload: str, chunk: int) -> Any:
    from torchrl.envs import GymWrapper

    return GymWrapper(workloads.make(workload, chunk))


class RayActors(Peer):
    name = "Ray actors"
    quiet = False  # its daemons talk to each other
    requirements = (*_BASE, "ray==2.60.0")

    def start(self) -> None:
        import ray

        ray.init(num_cpus=self.num_envs, include_dashboard=False, log_to_driver=False)
        remote = ray.remote(num_cpus=1)(workloads.Plain)
        path = os.path.dirname(os.path.abspath(__file__))
        options = {"runtime_env": {"env_vars": {"PYTHONPATH": path}}}
        self.envs = [remote.options(**options).remote(self.workload, self.chunk) for _ in range(self.num_envs)]
        ray.get([env.reset.remote() for env in self.envs])
        self._get = ray.get

    def step(self) -> None:
        self._get([env.step.remote(action) for env, action in zip(self.envs, self.actions, strict=True)])

    def close(self) -> None:
        import ray

        ray.shutdown()


class PipeAndPickle(Peer):
    """What LIBERO's SubprocVectorEnv does: a process each, everything pickled through a pipe, then stacked."""

    name = "pipe and pickle (as LIBERO's SubprocVectorEnv)"

    def start(self) -> None:
        context: Any = multiprocessing.get_context(self.start_method)
        pairs = [context.Pipe() for _ in range(self.num_envs)]
        self._pipes = [ours for ours, _ in pairs]
        self._processes = [
            context.Process(target=_pipe_worker, args=(theirs, factory), daemon=True)
            for (_, theirs), factory in zip(pairs, self.factories, strict=True)
        ]
        for process in self._processes:
            process.start()
        for pipe in self._pipes:
            pipe.send(None)
        for pipe in self._pipes:
            pipe.recv()

    def step(self) -> None:
        for pipe, action in zip(self._pipes, self.actions, strict=True):
            pipe.send(action)
        observations, *rest = zip(*[pipe.recv() for pipe in self._pipes], strict=True)
        if isinstance(observations[0], dict):
            {key: np.stack([observation[key] for observation in observations]) for key in observations[0]}
        else:
            np.stack(observations)
        for part in rest[:3]:
            np.stack(part)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _pipe_worker(pipe: Any, factory: Callable[[], Any]) -> None:
    env = factory()
    while True:
        action = pipe.recv()
        pipe.send(env.reset(seed=0) if action is None else env.step(action))


class Manyarms(Peer):
    name = "manyarms"
    settings: ClassVar[dict[str, Any]] = {"copy": False}
    as_simulator = False
    """Use what is written as a simulator of ours, not the environment that all others use."""

    def start(self) -> None:
        import manyarms

        os.environ["WORKLOAD"] = self.workload
        factory = workloads.SIMULATORS[self.workload] if self.as_simulator else "make_from_environment"
        self.envs = manyarms.make_vec(f"workloads:{factory}", self.num_envs, **self.settings)
        self.envs.reset(seed=0)
        self._step = partial(self.envs.step if self.chunk == 1 else self.envs.step_chunk, self.actions)

    def step(self) -> None:
        self._step()


class ManyarmsCopy(Manyarms):
    name = "manyarms, copy=True"
    settings: ClassVar[dict[str, Any]] = {"copy": True}


class ManyarmsShared(Manyarms):
    name = "manyarms, 4 rows a worker"
    settings: ClassVar[dict[str, Any]] = {"copy": False, "rows_per_worker": 4}
    workloads = ("null_state", "null_images")


class ManyarmsSimulator(Manyarms):
    name = "manyarms, a simulator"
    as_simulator = True
    workloads = ("null_state", "null_images", "mujoco")


class ManyarmsSharedSimulator(ManyarmsSimulator):
    name = "manyarms, a simulator, 4 rows a worker"
    settings: ClassVar[dict[str, Any]] = {"copy": False, "rows_per_worker": 4}
    workloads = ("null_state", "null_images")


class ManyarmsReady(Manyarms):
    """Serves whichever half of the rows is ready first: a straggler holds up nobody."""

    name = "manyarms, send and recv"

    def start(self) -> None:
        super().start()
        import manyarms

        rows = np.arange(self.num_envs)
        self._chunks = self.actions.reshape(self.num_envs, self.chunk, 8)
        self.envs.begin(rows, manyarms.EpisodeId(seed=0))
        self.envs.recv(min_rows=self.num_envs)
        self.envs.send(rows, self._chunks)
        self.done = 0

    def step(self) -> None:
        """Go on until as many rows as there are have come back, whichever they are."""
        while self.done < self.num_envs:
            ready = self.envs.recv(min_rows=max(1, self.num_envs // 2))
            self.done += len(ready)
            self.envs.send(ready.rows, self._chunks[: len(ready)])
        self.done -= self.num_envs


PEERS: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (
        *(
            GymnasiumAsync,
            GymnasiumAsyncNoCopy,
            GymnasiumSpawned,
            GymnasiumSync,
            StableBaselines,
            TianshouSubproc,
            TianshouShmem,
        ),
        *(PipeAndPickle, TorchRL, RayActors, Manyarms, ManyarmsCopy, ManyarmsShared, ManyarmsReady),
        *(ManyarmsSimulator, ManyarmsSharedSimulator),
    )
}
