"""Weights on their way, room on devices, and episodes dealt to learners."""

from __future__ import annotations

import multiprocessing
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyarms.errors import LearningError
from manyarms.learning.assembly import recipe_for
from manyarms.learning.ranks import Ranks
from manyarms.learning.settings import load
from manyarms.placement import learners
from manyarms.placement.learners import shares_of
from manyarms.placement.offload import Room, move
from manyarms.placement.roles import Facts
from manyarms.placement.seats import Seat
from manyarms.placement.weights import Broadcast, Held, Weights, pack
from manyarms.policies.registry import make_policy
from manyarms.policies.trainable import TrainablePolicy
from manyarms.simulators.base import Field, Spec
from training import written

SPEC = Spec(observations={"state": Field((3,), "float32")}, actions={"": Field((2,), "float32", -1.0, 1.0)})


def policy_of(seed: int, hidden: int = 8) -> TrainablePolicy:
    made: Any = make_policy("mlp", SPEC, {"chunk": 2, "hidden": hidden, "seed": seed})
    assert isinstance(made.policy, TrainablePolicy)
    return made.policy


def test_weights_of_any_kind_come_out_as_they_went_in() -> None:
    state = {
        "floats": torch.randn(3, 5),
        "halves": torch.randn(7).to(torch.bfloat16),
        "count": torch.tensor(41),
        "flags": torch.tensor([True, False, True]),
        "none": torch.zeros(0, 4),
    }
    packed = pack(state, 3)
    packed.buffer.flags.writeable = False
    assert packed.version == 3
    found = packed.tensors()
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_a_policy_acts_with_the_version_it_was_given_or_not_at_all() -> None:
    policy, other = policy_of(0), policy_of(1)
    held = Held(policy)
    with pytest.raises(LearningError, match="version 0"):
        held.check(0)
    held.take(pack(other.trainable_state(), 7))
    held.check(7)
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
    with pytest.raises(LearningError, match="version 8"):
        held.check(8)
    held.take(pack(other.trainable_state(), 0))
    with pytest.raises(LearningError, match="here is version 0"):
        held.check(1)


def test_weights_that_do_not_fit_change_nothing() -> None:
    policy = policy_of(0)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    held = Held(policy)
    whole = pack(policy_of(1).trainable_state(), 1)
    for wrong in (pack(policy_of(1, hidden=9).trainable_state(), 1), Weights(1, whole.table[:-1], whole.buffer)):
        with pytest.raises(LearningError, match="not those of this policy"):
            held.take(wrong)
        assert held.version is None
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items())


def test_a_copy_that_was_torn_is_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(0)
    held = Held(policy)
    held.take(pack(policy_of(1).trainable_state(), 1))

    def torn(*args: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("manyarms.placement.weights.give_weights", torn)
    with pytest.raises(RuntimeError, match="out of memory"):
        held.take(pack(policy_of(2).trainable_state(), 2))
    for version in (1, 2):
        with pytest.raises(LearningError):
            held.check(version)


def _receive(address: str, rank: int, world: int, answers: Any) -> None:
    policy = policy_of(0)
    held = Held(policy)
    group = Broadcast(address, rank, world, on_gpu=False, seconds=60)
    group.receive(held, policy.trainable_state())
    answers.put((rank, held.version, float(sum(tensor.double().sum() for tensor in policy.state_dict().values()))))


@pytest.mark.slow
def test_a_broadcast_gives_all_of_them_the_same_weights() -> None:
    with socket.socket() as free:
        free.bind(("", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    others = [context.Process(target=_receive, args=(address, rank, 3, answers)) for rank in (1, 2)]
    for other in others:
        other.start()
    sent = policy_of(5)
    Broadcast(address, 0, 3, on_gpu=False, seconds=60).send(sent.trainable_state(), 4)
    found = sorted(answers.get(timeout=600) for _ in others)
    for other in others:
        other.join()
    total = float(sum(tensor.double().sum() for tensor in sent.state_dict().values()))
    assert found == [(1, 4, total), (2, 4, total)]


class _Moves(torch.nn.Linear):
    """Notes where it is sent, and stays."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.went: list[str] = []

    def to(self, device: Any) -> _Moves:  # type: ignore[override]
        self.went.append(str(device))
        return self


def test_who_shares_a_device_leaves_it_between_phases() -> None:
    module = _Moves()
    reference = _Moves()
    room = Room([module, reference], "meta", shared=True)
    with room.entered():
        assert not room.away
    assert room.away
    with room.entered():
        assert not room.away
    assert module.went == reference.went == ["cpu", "meta", "cpu"]
    with pytest.raises(RuntimeError), room.entered():
        raise RuntimeError
    assert room.away, "also after an error"


def test_a_learner_takes_its_reference_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Any] = []
    monkeypatch.setattr(learners, "Room", lambda modules, *_, **__: held.extend(modules))
    words = ["algorithm.kl_beta=0.1", "algorithm.adv_type=grpo", "algorithm.loss_type=actor", "algorithm.group_size=2"]
    config = load(written(tmp_path), words).config
    role = learners.LearnerRole(config, Seat("actor", 0, 1, "cpu", tmp_path, ()), tmp_path)
    spec = Spec(observations={"position": Field((1,), "float32")}, actions={"": Field((1,), "float32", -1.0, 1.0)})
    role.begin(Facts(spec, [None], recipe_for(config, Ranks(), 4)), None, None)
    assert held == [role._course.learner.policy, role._course.learner.reference]


@pytest.mark.parametrize(("device", "shared"), [("cpu", True), ("meta", False)])
def test_who_is_alone_or_on_a_cpu_stays(device: str, shared: bool) -> None:
    module = _Moves()
    with Room([module], device, shared=shared).entered():
        pass
    assert not module.went


def test_what_the_optimiser_remembers_moves_along() -> None:
    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    move([module], optimizer, "meta")
    kinds = {name: value.device.type for state in optimizer.state.values() for name, value in state.items()}
    assert kinds == {"step": "cpu", "exp_avg": "meta", "exp_avg_sq": "meta"}
    assert all(parameter.device.type == "meta" for parameter in module.parameters())


@given(groups=st.integers(0, 20), size=st.integers(1, 4), world=st.integers(1, 9))
def test_learners_get_whole_groups_each_once_and_evenly(groups: int, size: int, world: int) -> None:
    shares = shares_of(range(groups * size), world, size)
    assert [i for share in shares for i in share] == list(range(groups * size))
    counts = [len(share) for share in shares]
    assert all(count % size == 0 for count in counts)
    assert max(counts) - min(counts) <= size
    assert np.all(np.diff([share.start for share in shares]) >= 0)
