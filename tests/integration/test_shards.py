"""A large policy on two ranks, its weights in shards: no rank ever holds more than half of them and one layer."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oft
import pi0_checkpoints
from manyarms.algorithms.grpo import GRPO
from manyarms.learning.learner import Learner, LearnerConfig, OptimConfig
from manyarms.learning.parallel import is_sharded
from manyarms.learning.ranks import Ranks, joined
from manyarms.learning.samples import Layout, Samples
from manyarms.policies import Observations, make_trainable
from manyarms.policies.trainable import TrainablePolicy

pytestmark = pytest.mark.slow

DECISIONS = 4


def _pi0(folder: Path) -> tuple[Any, Observations]:
    policy = make_trainable("pi0", oft.SPEC, {"model_path": str(folder), "noise": "flow_sde", "chunk": 4}).policy
    return policy, oft.observed(DECISIONS)


def _oft(folder: Path) -> tuple[Any, Observations]:
    options = {"model_path": str(folder), "head": "tokens", "prompt_length": 96, **oft.STATE}
    return make_trainable("openvla_oft", oft.SPEC, options).policy, oft.observed(DECISIONS)


KINDS = {"pi0": _pi0, "openvla_oft": _oft}


def _held(policy: TrainablePolicy) -> int:
    """Return how many numbers of the weights lie on this rank."""
    return sum((p.to_local() if is_sharded(p) else p).numel() for p in policy.parameters())


@contextmanager
def watched(policy: TrainablePolicy, most: list[int]) -> Iterator[None]:
    """Note the most that this rank holds while a layer computes."""

    def note(*_: Any) -> None:
        most[0] = max(most[0], _held(policy))

    handles = [m.register_forward_hook(note) for m in policy.modules() if isinstance(m, torch.nn.Linear)]
    yield
    for handle in handles:
        handle.remove()


def learnt(kind: str, folder: Path, ranks: Ranks, shards: bool) -> dict[str, Any]:
    """Act, take two steps of the optimiser, act again; return what came of it and what this rank held meanwhile."""
    policy, observations = KINDS[kind](folder)
    if not shards:
        policy.shards = lambda: ()  # type: ignore[method-assign]
    config = LearnerConfig(DECISIONS, training_backend="fsdp")
    algorithm = GRPO(update_epoch=1, logprob_type="token_level", group_size=2)
    learner = Learner(policy, algorithm, OptimConfig(lr=1e-4), config, ranks=ranks)
    with learner.parallel.whole():
        chunk = policy.act(observations, explore=True)
    mask = np.ones(chunk.extras["log_probs"].shape[:2], np.float32)
    advantages = np.linspace(-1.0, 1.0, DECISIONS).astype(np.float32)
    everyone = Samples(observations, chunk.extras["chosen"], chunk.extras["log_probs"], mask, advantages)
    owner = np.arange(DECISIONS) % ranks.world
    samples, layout = everyone.rows(np.flatnonzero(owner == ranks.rank)), Layout(owner, mask.sum(1), ranks)
    most = [0]
    with watched(policy, most):
        losses = [learner.update(samples, step, layout=layout)["actor/loss"] for step in range(2)]
    with learner.parallel.whole():
        after = policy.act(observations, explore=True)
    return {"most": most[0], "acted": chunk.actions[""], "after": after.actions[""], "losses": losses}


def _rank(kind: str, folder: Path, rank: int, port: int, shards: bool, answers: Any) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    torch.set_num_threads(1)
    with joined("cpu") as ranks:
        answers.put((rank, learnt(kind, folder, ranks, shards)))


def on_two_ranks(kind: str, folder: Path, shards: bool = True) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [context.Process(target=_rank, args=(kind, folder, rank, port, shards, answers)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    found = dict(answers.get(timeout=600) for _ in ranks)
    for rank in ranks:
        rank.join()
    return [found[0], found[1]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_holds_half_of_the_weights_and_one_layer_at_most(kind: str, tmp_path: Path) -> None:
    folder = (pi0_checkpoints.pi0_folder if kind == "pi0" else oft.golden_with_tokenizer)(tmp_path / kind)
    policy, _ = KINDS[kind](folder)
    largest = max(sum(p.numel() for p in module.parameters()) for module in policy.shards())
    # OpenVLA-OFT's head reads some rows of this matrix by itself.
    beside = policy.network.language_model.lm_head.weight.numel() if kind == "openvla_oft" else 0
    limit = _held(policy) / 2 + largest + beside / 2
    alone, ranks = learnt(kind, folder, Ranks(), shards=True), on_two_ranks(kind, folder)
    for found in ranks:
        assert found["most"] <= limit
        np.testing.assert_allclose(found["acted"], alone["acted"], atol=1e-5)
        np.testing.assert_allclose(found["after"], alone["after"], atol=1e-3)
        np.testing.assert_allclose(found["losses"], alone["losses"], atol=1e-4)
    assert np.abs(alone["after"] - alone["acted"]).max() > 0, "or nothing was learnt"
    if kind == "pi0":
        assert on_two_ranks(kind, folder, shards=False)[0]["most"] > limit, "or the test would not notice"
