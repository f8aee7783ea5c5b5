"""OpenVLA-OFT as a policy: one copy of the network for all rows, log-probabilities and values for learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manyarms.errors import ConfigError
from manyarms.policies import noise
from manyarms.policies.base import ActionChunk, Observations
from manyarms.policies.heads import Evaluation
from manyarms.policies.openvla_oft import rows
from manyarms.policies.openvla_oft.actions import Actions
from manyarms.policies.openvla_oft.adapters import add_adapters
from manyarms.policies.openvla_oft.config import OftConfig
from manyarms.policies.openvla_oft.fast import FastPass, short_floats
from manyarms.policies.openvla_oft.folder import OftFolder, load_part
from manyarms.policies.openvla_oft.heads import L1Head, StateProjector, TokenHead
from manyarms.policies.openvla_oft.senses import Inputs, Senses
from manyarms.policies.trainable import TrainablePolicy, configured, placed, seeded
from manyarms.simulators.base import Spec


class OpenVlaOftPolicy(TrainablePolicy):
    """Sees one to three images, a sentence and its own state; gives a chunk of actions a pass."""

    def __init__(self, spec: Spec, **options: Any) -> None:
        super().__init__()
        config = self.config = _configured(options)
        folder = OftFolder(config.model_path)
        dataset, statistics = folder.statistics(config.unnorm_key)
        regression = None if config.head == "tokens" else folder.action_head()
        projector = folder.state_projector() if config.proprio else None
        self._actions = Actions(spec, config, dataset, statistics["action"])
        self._actions.check("option action_dim", config.action_dim)
        self._actions.check(f"{folder.path}/config.json", folder.setting("action_dim"))
        self.chunk, self.critic = config.chunk or folder.setting("num_action_chunks") or 8, config.critic
        self._senses = Senses(spec, folder, config, self.chunk * self._actions.width)
        if projector is not None:
            self._senses.feel(spec, projector["fc1.weight"].shape[1], statistics.get("proprio"))
        self.cameras, self.reads = self._senses.cameras, self._senses.reads

        self.network = folder.network(_dtype(config), torch.device(str(config.device)))
        self._fast = FastPass(self.network, eight_bits=config.precision == "fp8")
        self.network.checkpointing = config.gradient_checkpointing
        with seeded(config.seed):
            self.head: L1Head | TokenHead = self._make_head(folder, regression)
            self.state_projector = None if projector is None else _projector(projector, str(folder.path))
            self.value = self._make_critic() if config.critic else None
            if config.lora_rank:
                add_adapters(self.network, config.lora_rank, config.lora_alpha)
        self.to(config.device)
        self._mixed = False
        """Whether weights are wider than what is computed with them."""
        self.eval()

    def _make_head(self, folder: OftFolder, regression: Mapping[str, Tensor] | None) -> L1Head | TokenHead:
        config, width = self.config, folder.config.text_config.hidden_size
        shape = (self.chunk, self._actions.width)
        output = self.network.language_model.lm_head
        if regression is None:
            if config.head == "l1":
                raise ConfigError(f"{folder.path} has no action_head--…_checkpoint.pt", do="head: tokens")
            first = folder.config.first_action_token
            return TokenHead(output, first, folder.config.n_action_bins, shape, config.temperature)
        self._actions.check(f"{folder.path}/action_head--…_checkpoint.pt", len(regression["model.fc2.bias"]))
        head = L1Head(width, *shape, len(regression["model.fc1.bias"]), config.log_scale)
        load_part(head, regression, f"{folder.path}/action_head--…_checkpoint.pt", own=("log_scale",))
        output.requires_grad_(False)
        return head

    def _make_critic(self) -> nn.Sequential:
        config, width = self.config, self.network.config.text_config.hidden_size
        last = nn.Linear(config.value_hidden, self.chunk if config.critic == "action_level" else 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return nn.Sequential(nn.Linear(width, config.value_hidden), nn.Tanh(), last)

    # -- what training and checkpoints ask ----------------------------------------------------------------------------

    def trainable_state(self) -> dict[str, Tensor]:
        state = self.state_dict()
        if not self.config.lora_rank:
            return state
        return {name: state[name] for name, parameter in self.named_parameters() if parameter.requires_grad}

    def prepare_to_learn(self) -> None:
        """Let small steps count: weights that learn are float32, whatever is computed with them."""
        if self.config.precision == "fp8":
            why = "what it chose in eight bits would be judged in sixteen"
            raise ConfigError("openvla_oft cannot learn with precision fp8", why=why, do="precision: bf16")
        self._fast.release()
        if self.config.precision == "bf16" and not self.config.lora_rank:
            self.network.float()
            self._mixed = True

    def shards(self) -> Sequence[nn.Module]:
        vision = self.network.vision_backbone
        words = self.network.language_model.model.embed_tokens
        return [words, *vision.featurizer.blocks, *vision.fused_featurizer.blocks, *self.network.layers]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OpenVlaOftPolicy:
        """Move or convert weights, and forget what was recorded of them where they lay."""
        self._fast.forget()
        return super()._apply(fn, recurse)

    # -- acting -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, observations: Observations, explore: bool = False) -> ActionChunk:
        forward = self._fastest()
        features = self._features(self._senses(observations, self.device), forward)
        drawn = None
        if explore:
            drawn = torch.from_numpy(noise.uniform(self.config.seed, observations, self.head.noise_shape))
            drawn = drawn.to(self.device)
        # What is asked for in float32 is float32, and so are probabilities to learn from.
        short = forward is self._fast and drawn is None and self.config.precision != "fp32"
        with short_floats() if short else nullcontext():
            chosen, log_probs = self.head.sample(features, drawn)
        extras = {"chosen": chosen, "log_probs": log_probs}
        values = self._values(features)
        if values is not None:
            extras["values"] = values
        actions = observations.like_these(self._actions.to_simulator(self.head.decode(chosen).cpu().numpy()))
        return ActionChunk.of(actions, **{name: observations.like_these(t) for name, t in extras.items()})

    def _fastest(self) -> Callable[..., Tensor]:
        """Return the pass that acting uses: on a GPU, a recording of it."""
        # Weights in shards lie somewhere else every time they are gathered: no recording fits them.
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        if not self.config.fast or self.device.type != "cuda" or self._mixed or several:
            return self.network
        return self._fast

    def _features(self, inputs: Inputs, forward: Callable[..., Tensor]) -> Tensor:
        """Return hidden states, one before each number of a chunk [rows, K·A, width]."""
        dtype = torch.bfloat16 if self._mixed else self.network.projector.fc3.bias.dtype
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._mixed):
            state = None
            if self.state_projector is not None and inputs.state is not None:
                state = self.state_projector(inputs.state).to(dtype)
            return forward(inputs.pixels.to(dtype), inputs.sequence, state)

    def _values(self, features: Tensor) -> Tensor | None:
        """Return [rows], or [rows, K] with a value for every action; None without a critic."""
        if self.value is None:
            return None
        values = self.value(features[:, 0].float())
        return values if self.critic == "action_level" else values[:, 0]

    # -- learning -----------------------------------------------------------------------------------------------------

    def evaluate(self, observations: Observations, chosen: np.ndarray | Tensor) -> Evaluation:
        features = self._features(self._senses(observations, self.device), self.network)
        log_probs, entropy = self.head.evaluate(features, torch.as_tensor(chosen, device=self.device))
        return Evaluation(log_probs, entropy, self._values(features))

    def values(self, observations: Observations) -> Tensor:
        values = self._values(self._features(self._senses(observations, self.device), self._fastest()))
        if values is None:
            raise ConfigError("this policy has no critic", do="critic: chunk_level")
        return values

    def encode_actions(self, observations: Observations, actions: np.ndarray) -> Tensor:
        return self.head.encode(torch.from_numpy(self._actions.from_simulator(actions)).to(self.device))


def _dtype(config: OftConfig) -> torch.dtype:
    return torch.float32 if config.precision == "fp32" else torch.bfloat16


def _projector(weights: Mapping[str, Tensor], where: str) -> StateProjector:
    width, state = weights["fc1.weight"].shape
    projector = StateProjector(state, width)
    load_part(projector, weights, f"{where}/proprio_projector--…_checkpoint.pt")
    return projector


def _configured(options: Mapping[str, Any]) -> OftConfig:
    if not options.get("model_path"):
        raise ConfigError("openvla_oft needs model_path", do="give the folder of a checkpoint; nothing is downloaded")
    config = configured(OftConfig, options, "openvla_oft")
    device, precision = placed(config.device, config.precision)
    if precision == "fp8" and not rows.eight_bits_on(device):
        raise ConfigError(f"precision fp8 needs an NVIDIA GPU of 2022 or later, not {device}", do="precision: bf16")
    return replace(config, device=device, precision=precision)


__all__ = ["OftConfig", "OpenVlaOftPolicy"]
