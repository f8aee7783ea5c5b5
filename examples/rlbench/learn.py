"""``--mode train``: environments, a small network and DDP in one loop, to see that all of it works together.

The network learns where a chunk of actions leaves the arm. That needs no reward and no success, so the loss falls on
any task when the way from the simulators to the gradients is sound. To solve tasks there is ``manyarms train``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from flags import RunFlags
from manyarms.learning.ranks import Ranks
from play import POSES, Tally, Wanderer, show
from rlbench_vec_env import from_flags

#: Passes over everything seen so far, after each chunk.
_EPOCHS = 16

#: How far chunks carry the hand, in metres: what the network predicts is about one.
_REACH = 0.05


def train(flags: RunFlags, counts: Sequence[int], ranks: Ranks, **options: Any) -> list[float]:
    """Play and learn; return the loss of each update, on chunks the network had not seen."""
    torch.manual_seed(flags.seed)
    say = print if ranks.first else (lambda *_, **__: None)
    say(f"envs_per_rank={list(counts)}")
    say(flags.summary(), flush=True)
    first = flags.seed + sum(counts[: ranks.rank])
    tally = Tally(counts[ranks.rank])
    losses: list[float] = []
    # Episodes outlast the run: a chunk in which they begin anew teaches nothing.
    options |= {"max_episode_steps": flags.train_updates * flags.action_chunk + 1}
    with from_flags(flags, counts[ranks.rank], **options) as env:
        observations = env.reset(seed=first)
        wanderer = Wanderer(flags.mode_of_arm, observations, first)
        student = Student(flags, ranks)
        began = time.perf_counter()
        for update in range(flags.train_updates):
            before = {name: observations[name].astype(np.float64) for name in ("gripper_pose", "joint_positions")}
            actions = wanderer.chunk(observations, flags.action_chunk)
            observations, *_ = env.step_chunk(actions)
            assert env.last_chunk is not None
            tally.count(env.last_chunk)
            # An environment that began anew, or ended early, did not go where its actions point.
            whole = env.last_chunk.num_steps == flags.action_chunk
            gone = (observations["gripper_pose"] - before["gripper_pose"])[:, :3]
            losses.append(student.learn(_moves(actions, before, flags.mode_of_arm)[whole], gone[whole]))
            seconds = time.perf_counter() - began
            say(f"update {update + 1}/{flags.train_updates} loss={losses[-1]:.4f} ({seconds:.1f} s)", flush=True)
        tally.seconds = time.perf_counter() - began
        tally.restarts = len(env.envs.failures)
    third = max(1, len(losses) // 3)
    say(f"loss {np.nanmean(losses[:third]):.4f} -> {np.nanmean(losses[-third:]):.4f}, first and last {third} updates")
    show(ranks.gather(tally), flags, say)
    return losses


class Student:
    """Predicts how far a chunk of actions carries the hand, and keeps what this rank has seen."""

    def __init__(self, flags: RunFlags, ranks: Ranks) -> None:
        width = flags.action_chunk * (3 if flags.mode_of_arm in POSES else 7)
        hidden = flags.train_hidden
        network = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        network = nn.Sequential(*network, nn.Linear(hidden, 3)).to(ranks.device)
        self._network = network if ranks.world == 1 else DistributedDataParallel(network)
        self._optimiser = torch.optim.Adam(network.parameters(), lr=flags.train_lr)
        self._ranks = ranks
        self._moves, self._gone = self._tensor(np.zeros((0, width))), self._tensor(np.zeros((0, 3)))

    def learn(self, moves: np.ndarray, gone: np.ndarray) -> float:
        """Return how far off the network is on every rank's new chunks, NaN if there are none; then learn from all."""
        new = self._tensor(moves), self._tensor(gone / _REACH)
        with torch.no_grad():
            error, count = self._ranks.add_up([float(self._error(*new)), float(len(moves))])
        self._moves, self._gone = torch.cat([self._moves, new[0]]), torch.cat([self._gone, new[1]])
        # DDP takes the mean of the ranks' gradients; each counts by how much it has seen.
        total = self._ranks.add_up([float(len(self._moves))])[0]
        for _ in range(_EPOCHS):
            self._optimiser.zero_grad()
            (self._error(self._moves, self._gone) * self._ranks.world / max(total, 1.0)).backward()
            self._optimiser.step()
        return error / count if count else float("nan")

    def _error(self, moves: Tensor, gone: Tensor) -> Tensor:
        return ((self._network(moves) - gone) ** 2).mean(1).sum()

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.as_tensor(array, dtype=torch.float32, device=self._ranks.device)


def _moves(actions: np.ndarray, before: Mapping[str, np.ndarray], arm_mode: str) -> np.ndarray:
    """Return how far each action lies from where the arm was, [N, K * (3 or 7)]."""
    if arm_mode in POSES:
        moves = (actions[:, :, :3] - before["gripper_pose"][:, None, :3]) / _REACH
    elif arm_mode == "joint_position":
        moves = actions[:, :, :-1] - before["joint_positions"][:, None]
    else:
        moves = actions[:, :, :-1]
    return moves.reshape(len(moves), moves.shape[1] * moves.shape[2])
