"""What training relies on in a policy: policies that keep every promise, and one that breaks each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import manyarms
import oft
import pi0_checkpoints
from manyarms.cli import check
from manyarms.errors import ConfigError
from manyarms.learning.settings import from_mapping
from manyarms.learning.training import TrainResult, train
from manyarms.policies import ActionChunk, Observations
from manyarms.policies.noise import normal
from manyarms.policies.trainable import Evaluation, TrainablePolicy
from manyarms.simulators.base import Field, Spec
from manyarms.testing.policies import check_policy

SPEC = Spec(
    {"state": Field((5,)), "front_rgb": Field((24, 32, 3), "uint8", 0, 255, camera="front")},
    {"": Field((3,), "float32", -1.0, 1.0)},
)


class Whole(TrainablePolicy):
    """A policy of two methods that keeps every promise."""

    cameras = ()

    def __init__(self, spec: Spec, *, chunk: int = 2, critic: str | None = None) -> None:
        super().__init__()
        self.chunk, self.critic = chunk, critic
        self.field = "state" if "state" in spec.observations else "position"
        self.reads = (self.field,)
        width, self.numbers = spec.observations[self.field].shape[0], spec.actions[""].shape[0]
        self.mean = nn.Linear(width, self.numbers * chunk)
        self.value = nn.Linear(width, chunk if critic == "action_level" else 1) if critic else None
        self.spread = nn.Parameter(torch.zeros(self.numbers))
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                parameter.copy_(torch.linspace(-0.2, 0.2 + i, parameter.numel()).view(parameter.shape) * 0.3)

    def distribution(self, observations: Observations) -> torch.distributions.Normal:
        mean = self.mean(self.state(observations)).view(-1, self.chunk, self.numbers)
        return torch.distributions.Normal(mean, self.spread.exp().expand_as(mean))

    def state(self, observations: Observations) -> Tensor:
        return torch.from_numpy(np.asarray(observations.fields[self.field], np.float32))

    def estimates(self, observations: Observations) -> Tensor | None:
        if self.value is None:
            return None
        values = self.value(self.state(observations))
        return values if self.critic == "action_level" else values[:, 0]

    @torch.no_grad()
    def act(self, observations: Observations, explore: bool = True) -> ActionChunk:
        found = self.distribution(observations)
        chosen = found.mean
        if explore:
            chosen = found.mean + found.stddev * torch.from_numpy(normal(0, observations, (self.chunk, self.numbers)))
        extras = {"chosen": chosen, "log_probs": found.log_prob(chosen), "values": self.estimates(observations)}
        kept = {name: tensor.numpy() for name, tensor in extras.items() if tensor is not None}
        return ActionChunk.of(chosen.clamp(-1.0, 1.0).numpy(), **kept)

    def evaluate(self, observations: Observations, chosen: np.ndarray | Tensor) -> Evaluation:
        found = self.distribution(observations)
        return Evaluation(found.log_prob(torch.as_tensor(chosen)), found.entropy(), self.estimates(observations))


class Columns(Whole):
    def estimates(self, observations: Observations) -> Tensor | None:
        values = super().estimates(observations)
        return None if values is None else values[:, None]


class Detached(Whole):
    def evaluate(self, observations: Observations, chosen: np.ndarray | Tensor) -> Evaluation:
        found = super().evaluate(observations, chosen)
        return replace(found, log_probs=found.log_probs.detach())


class FromTheGlobalGenerator(Whole):
    @torch.no_grad()
    def act(self, observations: Observations, explore: bool = True) -> ActionChunk:
        torch.rand(1)
        return super().act(observations, explore)


class OtherProbabilities(Whole):
    def evaluate(self, observations: Observations, chosen: np.ndarray | Tensor) -> Evaluation:
        found = super().evaluate(observations, chosen)
        return replace(found, log_probs=found.log_probs + 0.5)


class Neighbourly(Whole):
    def distribution(self, observations: Observations) -> torch.distributions.Normal:
        found = super().distribution(observations)
        return torch.distributions.Normal(found.mean - found.mean.mean(0), found.stddev)


class Restless(Whole):
    def act(self, observations: Observations, explore: bool = True) -> ActionChunk:
        return super().act(observations, True)


class SameNoise(Whole):
    def act(self, observations: Observations, explore: bool = True) -> ActionChunk:
        return super().act(replace(observations, steps=observations.steps * 0), explore)


class Idle(Whole):
    def __init__(self, spec: Spec, **options: Any) -> None:
        super().__init__(spec, **options)
        self.unused = nn.Linear(2, 2)


class Forgetful(Whole):
    def trainable_state(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in super().trainable_state().items() if name != "mean.bias"}


class Drifting(Whole):
    """Its randomness goes on, whoever is asked."""

    def __init__(self, spec: Spec, **options: Any) -> None:
        super().__init__(spec, **options)
        self._rng = np.random.default_rng(0)

    def act(self, observations: Observations, explore: bool = True) -> ActionChunk:
        steps = observations.steps + (self._rng.integers(1000) if explore else 0)
        return super().act(replace(observations, steps=steps), explore)


class WithoutProbabilities(Whole):
    def act(self, observations: Observations, explore: bool = True) -> ActionChunk:
        return ActionChunk(super().act(observations, explore).actions)


@pytest.mark.parametrize("critic", [None, "chunk_level", "action_level"])
@pytest.mark.parametrize("name", ["mlp", "pixel", f"{__name__}:Whole"])
def test_policies_keep_all_promises(name: str, critic: str | None) -> None:
    options: dict[str, Any] = {"critic": critic} if critic else {}
    check_policy(name, SPEC, **options)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["flow_sde", "flow_sde_one", "flow_noise"])
def test_pi0_keeps_all_promises(noise: str, tmp_path: Path) -> None:
    folder = str(pi0_checkpoints.pi0_folder(tmp_path / "pi0"))
    options = {"model_path": folder, "chunk": 4, "noise": noise, "critic": "chunk_level"}
    check_policy("pi0", oft.SPEC, 2e-3, **options)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["l1", "tokens"])
def test_openvla_oft_keeps_all_promises(head: str, tmp_path: Path) -> None:
    folder = str(oft.golden_with_tokenizer(tmp_path / "oft"))
    options = {"model_path": folder, "head": head, "critic": "action_level", "prompt_length": 96, **oft.STATE}
    check_policy("openvla_oft", oft.SPEC, 2e-3, **options)


class ImitatesTheMean(Whole):
    def imitation_loss(
        self, observations: Observations, chosen: np.ndarray | Tensor, draw: Sequence[int] = ()
    ) -> Tensor:
        return super().imitation_loss(observations, chosen, draw).mean()


class ImitatesByChance(Whole):
    def imitation_loss(
        self, observations: Observations, chosen: np.ndarray | Tensor, draw: Sequence[int] = ()
    ) -> Tensor:
        return super().imitation_loss(observations, chosen, draw) * np.random.default_rng().random()


class ImitatesTogether(Whole):
    def imitation_loss(
        self, observations: Observations, chosen: np.ndarray | Tensor, draw: Sequence[int] = ()
    ) -> Tensor:
        loss = super().imitation_loss(observations, chosen, draw)
        return loss - loss.mean(0)


BROKEN: list[tuple[Callable[..., Any], str]] = [
    (Columns, r"must have the shape \(\d+,\), not \(\d+, 1\)"),
    (Detached, "have no gradient"),
    (FromTheGlobalGenerator, "global generator"),
    (OtherProbabilities, "other log_probs than act"),
    (Neighbourly, "other rows beside it|for 1 rows than for 7"),
    (Restless, "the same with and without explore"),
    (SameNoise, "the same at another step"),
    (Idle, "no gradient reaches unused.weight"),
    (Forgetful, "lacks something"),
    (Drifting, "asked again"),
    (WithoutProbabilities, "no 'chosen'"),
    (ImitatesTheMean, r"imitation_loss has the shape \(\)"),
    (ImitatesByChance, "not the same the second time"),
    (ImitatesTogether, "depends on its neighbours"),
]


@pytest.mark.parametrize(("broken", "says"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_promise_is_named(broken: Any, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_policy(f"{__name__}:{broken.__name__}", SPEC, critic="chunk_level")


def trained(policy: str, folder: Path) -> TrainResult:
    """Make two updates on the walker."""
    logger = {"log_path": str(folder), "experiment_name": "own", "logger_backends": [], "live": False}
    config = {
        "env": {
            "train": {"simulator": "standins:Walker", "total_num_envs": 2, "options": {"cameras": []}},
            "eval": {"episodes": 2},
        },
        "algorithm": {"adv_type": "gae", "episodes_per_step": 4, "logprob_type": "action_level"},
        "actor": {"model": {"model_type": policy, "num_action_chunks": 3}},
        "runner": {"max_steps": 2, "val_check_interval": -1, "logger": logger},
    }
    return train(from_mapping(config, "own"))


def test_a_policy_of_two_methods_is_trained_saved_and_evaluated(tmp_path: Path) -> None:
    result = trained(f"{__name__}:Whole", tmp_path)
    assert result.updates == 2
    checkpoint = result.folder / "checkpoints" / "global_step_2"
    options = json.loads((checkpoint / "policy.json").read_text())["options"]
    assert {name: options[name] for name in ("chunk", "critic")} == {"chunk": 3, "critic": "chunk_level"}
    assert "device" not in options, "it does not ask for one"
    found = manyarms.evaluate(
        "standins:Walker", policy=str(checkpoint), episodes=2, seed=1_000_000, options={"cameras": []}, trust_code=True
    )
    assert [one.total_reward for one in found.results] == [one.total_reward for one in result.evaluations[-1][1]]


@pytest.mark.parametrize(
    ("name", "says"),
    [("Columns", "must have the shape"), ("Detached", "have no gradient"), ("FromTheGlobalGenerator", "global")],
)
def test_training_refuses_what_would_go_wrong_in_silence(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        trained(f"{__name__}:{name}", tmp_path)


def test_what_is_no_policy_that_learns_points_to_the_page_that_helps(tmp_path: Path) -> None:
    for name in ("random", "expert"):
        with pytest.raises(ConfigError, match=r"docs/add/policy\.md"):
            trained(name, tmp_path)


def test_check_on_the_command_line_takes_a_policy(capsys: pytest.CaptureFixture[str]) -> None:
    told = ["standins:Walker", "--policy", f"{__name__}:Whole", "--options", "cameras=[]"]
    assert check.main([*told, "--policy-options", "critic=chunk_level"]) == 0
    assert "6 of 6 checks hold" in capsys.readouterr().out
    assert check.main(["standins:Walker", "--policy", f"{__name__}:Idle", "--options", "cameras=[]"]) == 1
    assert "no gradient reaches unused.weight" in capsys.readouterr().out
