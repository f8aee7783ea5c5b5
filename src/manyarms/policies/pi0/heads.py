"""What training adds to π0: a critic, a head for noise, adapters, and which weights change at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from manyarms.errors import ConfigError
from manyarms.policies.pi0.config import Pi0Options
from manyarms.policies.pi0.model import vision_tower

_HIDDEN = 256
_ADAPTED = r"layers\.\d+\.(self_attn|mlp)\.(q|k|v|o|gate|up|down)_proj"


class ValueHead(nn.Module):
    """From the mean of what was seen and read, and the state, to values [R, count].

    The gradient stops at the features: the critic does not pull at the model.
    """

    def __init__(self, features: int, state: int, count: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.layers = nn.Sequential(nn.Linear(features + state, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, count))
        last = self.layers[-1]
        assert isinstance(last, nn.Linear)
        nn.init.orthogonal_(last.weight, 0.1)
        nn.init.zeros_(last.bias)

    def forward(self, features: Tensor, state: Tensor) -> Tensor:
        return self.layers(torch.cat([self.norm(features.detach()), state], -1))


class NoiseHead(nn.Module):
    """From the expert's features to how far each number of an action may stray at a step."""

    def __init__(self, features: int, width: int, bounds: tuple[float, float]) -> None:
        super().__init__()
        self._low, self._high = bounds
        self.layers = nn.Sequential(nn.Linear(features, _HIDDEN), nn.SiLU(), nn.Linear(_HIDDEN, width))
        last = self.layers[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, features: Tensor) -> Tensor:
        # log σ = log low + (log high - log low) sigmoid(z)
        share = self.layers(features.float()).sigmoid()
        return self._low * (self._high / self._low) ** share


def add_adapters(model: Any, options: Pi0Options) -> None:
    """Put adapters on the layers of the language model and the expert, or of the expert alone."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError(f"lora_rank needs {error.name}", do="pip install 'manyarms[vla]'") from error
    where = r"model\.dit\." if options.train_expert_only else r"model\.(dit|vlm\.language_model)\."
    lora = LoraConfig(r=options.lora_rank, lora_alpha=options.lora_alpha, target_modules=rf"{where}{_ADAPTED}")  # type: ignore[arg-type]
    inject_adapter_in_model(lora, model)


def choose_weights(model: Any, options: Pi0Options) -> None:
    """Say which weights change: those that options leave free, and that actions depend on."""
    for name, parameter in model.named_parameters():
        free = not options.lora_rank or ".lora_" in name
        if options.train_expert_only and name.startswith("model.vlm."):
            free = False
        parameter.requires_grad_(free)
    vlm = model.model.vlm
    if options.freeze_vision or options.train_expert_only:
        for part in (vision_tower(model), vlm.multi_modal_projector):
            part.requires_grad_(False)
    # The expert looks at keys and values of the last layer, and at nothing that comes after them.
    last = vlm.language_model.layers[-1]
    for part in (last.self_attn.q_proj, last.self_attn.o_proj, last.mlp, last.post_attention_layernorm):
        part.requires_grad_(False)
    vlm.language_model.norm.requires_grad_(False)
