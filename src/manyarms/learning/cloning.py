"""Warm start: a policy that imitates before it explores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from manyarms.errors import ConfigError
from manyarms.learning.adamw import AdamW
from manyarms.learning.demonstrations import Demonstrations
from manyarms.learning.samples import shuffled
from manyarms.policies.trainable import TrainablePolicy


@dataclass(frozen=True)
class CloningConfig:
    """How a policy is cloned."""

    steps: int = 2000
    """Of the optimiser."""
    batch_size: int = 256
    lr: float = 1e-3
    weight_decay: float = 1e-4
    clip_grad: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1 or self.lr <= 0:
            raise ConfigError("steps and batch_size must be at least 1, lr above 0")


def clone(policy: TrainablePolicy, examples: Demonstrations, config: CloningConfig) -> Iterator[float]:
    """Train a policy on demonstrations; yield the loss of every step."""
    policy.prepare_to_learn()
    learning = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    optimizer = AdamW(learning, lr=config.lr, weight_decay=config.weight_decay)
    policy.train()
    batches = _batches(len(examples), config)
    for step in range(config.steps):
        index = next(batches)
        for group in optimizer.param_groups:
            group["lr"] = config.lr * 0.5 * (1.0 + np.cos(np.pi * step / config.steps))
        loss = _loss(policy, examples, index, step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(learning, config.clip_grad)
        optimizer.step()
        yield float(loss.detach())
    policy.eval()


def _loss(policy: TrainablePolicy, examples: Demonstrations, index: np.ndarray, step: int) -> Tensor:
    """Return the policy's loss, a mean over the numbers of all actions that were demonstrated."""
    observations = examples.observations.rows(index)
    loss = policy.imitation_loss(observations, policy.encode_actions(observations, examples.actions[index]), (step,))
    executed = torch.from_numpy(examples.mask[index]).to(loss.device)[..., None].expand_as(loss)
    return (loss * executed).sum() / executed.sum().clamp(min=1)


def _batches(count: int, config: CloningConfig) -> Iterator[np.ndarray]:
    epoch = 0
    while True:
        yield from shuffled(count, min(config.batch_size, count), (config.seed, epoch))
        epoch += 1
