"""Making room: what two roles share a device for is held by one of them at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn


def move(modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer | None, device: torch.device | str) -> None:
    """Move weights, gradients and what the optimiser remembers."""
    for module in modules:
        module.to(device)
    for state in optimizer.state.values() if optimizer is not None else ():
        for name, value in state.items():
            # Adam's count of steps stays where it is: it is kept on the CPU by PyTorch's own choice.
            if isinstance(value, torch.Tensor) and value.dim():
                state[name] = value.to(device)


class Room:
    """A device that a process leaves between its phases."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        device: torch.device | str,
        *,
        shared: bool,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        """Hold `modules` on `device`; where nobody else is (`shared` False), or on a CPU, they simply stay."""
        self._modules, self._optimizer, self._device = modules, optimizer, torch.device(device)
        self._leaves = shared and self._device.type != "cpu"
        self.away = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be on the device inside, and away from it afterwards."""
        if self.away:
            move(self._modules, self._optimizer, self._device)
            self.away = False
        try:
            yield
        finally:
            if self._leaves:
                move(self._modules, self._optimizer, "cpu")
                self.away = True
                if self._device.type == "cuda":
                    torch.cuda.empty_cache()
