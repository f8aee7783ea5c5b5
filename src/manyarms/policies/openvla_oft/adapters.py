"""LoRA: small matrices that learn beside frozen ones."""

from __future__ import annotations

import torch
from torch import nn

from manyarms.errors import ConfigError
from manyarms.policies.openvla_oft.model import OpenVlaModel


def add_adapters(network: OpenVlaModel, rank: int, alpha: int | None) -> None:
    """Put an adapter on every linear layer that is used but the last, in float32; freeze all else."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError(f"lora_rank needs {error.name}", do="pip install 'manyarms[vla]'") from error
    used = [name for name, part in network.named_modules() if isinstance(part, nn.Linear) and _learns(part)]
    targets = [name for name in used if not name.endswith("lm_head")]
    config = LoraConfig(
        r=rank, lora_alpha=min(rank // 2 or 1, 16) if alpha is None else alpha, lora_dropout=0.0, target_modules=targets
    )
    network.requires_grad_(False)
    inject_adapter_in_model(config, network)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_" in name:
            parameter.data = parameter.data.to(torch.float32)


def _learns(part: nn.Linear) -> bool:
    return part.weight.requires_grad
