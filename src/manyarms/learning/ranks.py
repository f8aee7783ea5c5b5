"""The processes that train one policy together, as torchrun starts them; one alone is the plain case.

PyTorch is imported where ranks speak to each other: one alone does without.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from manyarms.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """Who we are among how many; what they tell each other goes through here."""

    rank: int = 0
    world: int = 1
    device: str = "cpu"
    """Where this rank computes."""

    @property
    def first(self) -> bool:
        """Whether this rank is the one that writes files and talks."""
        return self.rank == 0

    def gather(self, mine: T) -> list[T]:
        """Return what every rank has, in the order of ranks."""
        if self.world == 1:
            return [mine]
        from torch import distributed

        found: list[T | None] = [None] * self.world
        distributed.all_gather_object(found, mine)
        return found  # type: ignore[return-value]

    def add_up(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums over all ranks."""
        if self.world == 1:
            return list(numbers)
        import torch
        from torch import distributed

        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return total.tolist()

    def any(self, mine: bool) -> bool:
        """Tell whether it is so on some rank."""
        return self.add_up([float(mine)])[0] > 0

    def share(self, count: int) -> range:
        """Return which of `count` things are this rank's: shares lie one after the other, as even as can be."""
        return range(count * self.rank // self.world, count * (self.rank + 1) // self.world)

    def agree(self, policy: nn.Module) -> None:
        """Give every rank the first one's weights."""
        if self.world > 1:
            from torch import distributed

            for tensor in policy.state_dict().values():
                distributed.broadcast(tensor, 0)

    def wait(self) -> None:
        """Wait until all ranks are here."""
        if self.world > 1:
            from torch import distributed

            distributed.barrier()


def ranks_from_environment(device: str = "cpu") -> Ranks:
    """Return what torchrun says we are, without joining yet; `device` cuda becomes this rank's GPU."""
    try:
        rank, world, local = (int(os.environ.get(name, default)) for name, default in _VARIABLES)
    except ValueError as error:
        raise ConfigError("RANK, LOCAL_RANK or WORLD_SIZE is no number", why=str(error)) from None
    if world < 1 or not 0 <= rank < world:
        raise ConfigError(f"RANK is {rank} of WORLD_SIZE {world}", do="start several ranks with torchrun")
    if device == "cuda" and world > 1:
        device = f"cuda:{local}"
    return Ranks(rank, world, device)


_VARIABLES = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


@contextmanager
def joined(device: str = "cpu") -> Iterator[Ranks]:
    """Join the other ranks: nccl on GPUs, gloo on CPUs."""
    ranks = ranks_from_environment(device)
    if ranks.world == 1:
        yield ranks
        return
    import torch
    from torch import distributed
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    on_gpu = ranks.device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(ranks.device)
    store, rank, world = next(iter(rendezvous("env://")))
    # torchrun keeps its store when it starts ranks again: without a name of its own, an attempt would find in it the
    # addresses of the last one's dead ranks.
    attempt = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    distributed.init_process_group(backend, store=attempt, rank=rank, world_size=world)
    try:
        yield ranks
    finally:
        distributed.destroy_process_group()
