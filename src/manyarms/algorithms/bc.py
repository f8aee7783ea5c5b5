"""Behaviour cloning: make what the demonstrator did likely."""

from __future__ import annotations

from torch import Tensor

from manyarms.algorithms.losses import masked_mean


def cloning_loss(log_probs: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of -log π(a) over the numbers of all actions that were demonstrated.

    `log_probs` [B, K, A], `mask` [B, K].
    """
    # L = -mean log π(a | s)
    return -masked_mean(log_probs, mask[..., None].expand_as(log_probs))
