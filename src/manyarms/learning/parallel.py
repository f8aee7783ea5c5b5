"""One policy on several ranks: copies whose gradients are averaged (DDP), or weights in shards (FSDP2)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from manyarms.algorithms.base import Algorithm
from manyarms.errors import ConfigError
from manyarms.learning.ranks import Ranks
from manyarms.policies.base import Observations
from manyarms.policies.heads import Evaluation
from manyarms.policies.trainable import TrainablePolicy

if TYPE_CHECKING:  # to import them takes every process that trains a second, and few shard
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

BACKENDS = ("ddp", "fsdp")


class _Evaluator(nn.Module):
    """What an algorithm needs of a policy, as the one forward pass that DDP and FSDP watch."""

    def __init__(self, policy: TrainablePolicy, algorithm: Algorithm) -> None:
        super().__init__()
        self.policy = policy
        self._evaluates = algorithm.needs_evaluation
        self._imitates = algorithm.needs_own_loss

    def forward(
        self, observations: Observations, chosen: np.ndarray, draw: Sequence[int]
    ) -> tuple[tuple[Tensor, Tensor, Tensor | None] | None, Tensor | None]:
        loss = self.policy.imitation_loss(observations, chosen, draw) if self._imitates else None
        if not self._evaluates:
            return None, loss
        found = self.policy.evaluate(observations, chosen)
        return (found.log_probs, found.entropy, found.values), loss


class ParallelPolicy:
    """A policy as all ranks train it."""

    def __init__(self, policy: TrainablePolicy, algorithm: Algorithm, ranks: Ranks, backend: str = "ddp") -> None:
        if backend not in BACKENDS:
            raise ConfigError(f"training_backend is {backend!r}", do=f"choose {' or '.join(BACKENDS)}")
        self.policy, self._ranks = policy, ranks
        self._evaluator: nn.Module = _Evaluator(policy, algorithm)
        self._shards: list[FSDPModule] = []
        if ranks.world > 1 and backend == "ddp":
            self._evaluator = DistributedDataParallel(self._evaluator, broadcast_buffers=False)
        elif ranks.world > 1:
            from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

            # What is returned is never written to.
            warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module .* returned a view tensor")
            units = policy.shards()
            self._shards = [fully_shard(module) for module in (*units, self._evaluator)]
            for module in units:
                if hasattr(module, "run"):  # it is not called as a module
                    register_fsdp_forward_method(module, "run")
            # Shards hear here which of them is the root: the first to be called may be another, when the policy acts.
            self._shards[-1]._get_fsdp_state()._lazy_init()

    def evaluate(
        self, observations: Observations, chosen: np.ndarray, draw: Sequence[int]
    ) -> tuple[Evaluation | None, Tensor | None]:
        """Return what the policy thinks of what was chosen, and its own loss for it, where the algorithm needs them."""
        found, loss = self._evaluator(observations, chosen, draw)
        return None if found is None else Evaluation(*found), loss

    @contextmanager
    def adding_up(self, last: bool) -> Iterator[None]:
        """Let gradients add up on this rank; only those of the `last` part travel."""
        if isinstance(self._evaluator, DistributedDataParallel):
            with nullcontext() if last else self._evaluator.no_sync():
                yield
            return
        if self._shards:
            self._shards[-1].set_requires_gradient_sync(last)  # and those in it
        yield

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Hold all weights on this rank, as acting needs them: ranks ask their policy at times of their own."""
        for module in self._shards:
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
        try:
            yield
        finally:
            for module in self._shards:
                module.set_reshard_after_forward(True, recurse=False)
                module.reshard()

    def state(self) -> dict[str, Tensor]:
        """Return all weights that a checkpoint has to hold; every rank has to ask."""
        return {name: whole_tensor(tensor) for name, tensor in self.policy.trainable_state().items()}


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Tell whether a tensor lies in shards on several ranks."""
    module = sys.modules.get("torch.distributed.tensor")  # nobody has shards who has not imported it
    return module is not None and isinstance(tensor, module.DTensor)


def whole_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor with all its shards; every rank has to ask."""
    return (tensor.full_tensor() if is_sharded(tensor) else tensor).detach()


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this rank's shard."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def sharded_like(whole: Tensor, example: Tensor) -> Tensor:
    """Cut a tensor up as another is."""
    if is_sharded(example) and whole.shape == example.shape:
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(whole.to(example.device), example.device_mesh, example.placements)
    return whole


@torch.no_grad()
def give_weights(policy: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy whole weights into a policy, sharded or not; those that are not given stay as they are."""
    for name, tensor in policy.state_dict().items():
        if name in weights:
            tensor.copy_(sharded_like(weights[name], tensor))
