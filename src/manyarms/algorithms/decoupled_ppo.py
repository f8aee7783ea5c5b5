"""Decoupled PPO (Hilton et al. 2022): PPO on episodes of older weights, while newer ones are being played."""

from __future__ import annotations

from dataclasses import dataclass

from manyarms.algorithms.ppo import PPO


@dataclass(frozen=True, kw_only=True)
class DecoupledPPO(PPO):
    """The ratio is to the policy that the update began with; an action counts by how likely that one found it.

    That correction is a part of the clipped loss, so every algorithm that has `max_staleness` has it too.
    """

    adv_type: str = "decoupled_ppo"
    max_staleness: int = 1
    """Updates by which the weights that act are behind those that learn; needs processes of their own for both."""
