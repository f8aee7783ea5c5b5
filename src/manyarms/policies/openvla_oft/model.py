"""OpenVLA-OFT's network under its published parameter names: images and words in, one pass, states of actions out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModel, LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from manyarms import trust
from manyarms.errors import ConfigError
from manyarms.policies.openvla_oft.vision import VisionBackbone

STOP_TOKEN = 2
"""Stands after the actions, as it did in training."""


class OpenVlaConfig(PretrainedConfig):
    """What ``config.json`` of an OpenVLA folder says."""

    model_type = "openvla"
    sub_configs = {"text_config": LlamaConfig}  # type: ignore[assignment]  # noqa: RUF012

    def __init__(self, **settings: Any) -> None:
        text = settings.pop("text_config", None)
        self.text_config = text if isinstance(text, LlamaConfig) else LlamaConfig(**(text or {}))
        self.timm_model_ids = settings.pop("timm_model_ids", ())
        self.timm_override_act_layers = settings.pop("timm_override_act_layers", None) or (None, None)
        self.image_sizes = settings.pop("image_sizes", (224, 224))
        self.n_action_bins = settings.pop("n_action_bins", 256)
        self.pad_to_multiple_of = settings.pop("pad_to_multiple_of", 64)
        super().__init__(**settings)

    @property
    def first_action_token(self) -> int:
        """The first of the ids that stand for actions: the last ones of the vocabulary, its padding left out."""
        return self.text_config.vocab_size - self.pad_to_multiple_of - self.n_action_bins


@dataclass(frozen=True)
class Sequence:
    """Rows of what the language model reads after the images, as `text_ids` lays them out."""

    ids: Tensor  # [rows, longest prompt + slots + stop], -1 where an action's slot or padding is
    lengths: Tensor  # [rows], tokens of each prompt
    slots: int
    """Numbers of a chunk: actions times their width."""
    ragged: bool
    """Whether some prompts are shorter than the longest."""
    stop: bool = True
    """Whether a stop token stands after the actions."""


def text_ids(
    prompts: list[list[int]], slots: int, longest: int | None = None, *, stop: bool = True
) -> tuple[Tensor, Tensor]:
    """Lay out prompts, slots of actions and the stop token in rows, each from the left; return ids and lengths."""
    width = longest or max(map(len, prompts))
    ids = torch.full((len(prompts), width + slots + stop), -1, dtype=torch.int64)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
        if stop:
            row[len(prompt) + slots] = STOP_TOKEN
    return ids, torch.tensor([len(prompt) for prompt in prompts])


class Projector(nn.Module):
    """From features of patches to what the language model reads."""

    def __init__(self, vision: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(vision, 4 * vision)
        self.fc2 = nn.Linear(4 * vision, width)
        self.fc3 = nn.Linear(width, width)

    def forward(self, features: Tensor) -> Tensor:
        hidden = functional.gelu(self.fc1(features))
        return self.fc3(functional.gelu(self.fc2(hidden)))


class OpenVlaModel(PreTrainedModel):
    """Vision, projector and a Llama whose tokens all see each other."""

    config_class = OpenVlaConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def __init__(self, config: OpenVlaConfig) -> None:
        super().__init__(config)
        self.vision_backbone = VisionBackbone(
            config.timm_model_ids, config.image_sizes, config.timm_override_act_layers
        )
        text = config.text_config
        self.projector = Projector(self.vision_backbone.dim, text.hidden_size)
        text._attn_implementation = "sdpa"
        self.language_model = LlamaForCausalLM(text)
        for layer in self.layers:
            layer.self_attn.is_causal = False
        self.checkpointing = False
        """Whether training computes layers again instead of keeping what they held."""
        self.post_init()

    @property
    def layers(self) -> list[Any]:
        """The layers of the language model."""
        return list(self.language_model.model.layers)

    def place_positions(self) -> None:
        """Compute the frequencies of positions: a model that was made without memory has none."""
        rotary = LlamaRotaryEmbedding(self.config.text_config)
        self.language_model.model.rotary_emb = rotary.to(self.language_model.lm_head.weight.device)

    def embedded(self, features: Tensor, sequence: Sequence, state: Tensor | None = None) -> Tensor:
        """Return what the first layer reads: BOS, images, the state's token, prompt, empty slots of actions, stop."""
        return self.joined(self.projector(features), sequence, state)

    def joined(self, images: Tensor, sequence: Sequence, state: Tensor | None = None) -> Tensor:
        """Put images between the first token of a prompt and the others."""
        known = (sequence.ids >= 0)[..., None]
        text = self.language_model.model.embed_tokens(sequence.ids.clamp(min=0)) * known
        return torch.cat([text[:, :1], images, *([] if state is None else [state]), text[:, 1:]], 1)

    def forward(self, pixels: Tensor, sequence: Sequence, state: Tensor | None = None) -> Tensor:
        """Return the last hidden state before each number of a chunk [rows, slots, width]: it predicts that number.

        `state` is one more token [rows, 1, width]. What stands behind a row's slots and stop token is seen by nobody.
        """
        hidden = self.embedded(self.vision_backbone(pixels), sequence, state)
        before = hidden.shape[1] - sequence.ids.shape[1]
        mask = visible(sequence, hidden.shape[1]) if sequence.ragged else None
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        rotation = self.language_model.model.rotary_emb(hidden, positions)
        for layer in self.layers:
            hidden = self._through(layer, hidden, mask, rotation)
        return self.language_model.model.norm(picked(hidden, slot_places(sequence, before)))

    def _through(self, layer: Any, hidden: Tensor, mask: Tensor | None, rotation: Any) -> Tensor:
        if self.checkpointing and torch.is_grad_enabled():
            found = checkpoint(
                layer, hidden, attention_mask=mask, position_embeddings=rotation, use_reentrant=False, use_cache=False
            )
        else:
            found = layer(hidden, attention_mask=mask, position_embeddings=rotation, use_cache=False)
        return found[0] if isinstance(found, tuple) else found


def visible(sequence: Sequence, total: int) -> Tensor:
    """Return which tokens others may see [rows, 1, 1, total]."""
    behind = sequence.lengths + (total - sequence.ids.shape[1]) + sequence.slots + sequence.stop
    return (torch.arange(total, device=behind.device) < behind[:, None])[:, None, None]


def slot_places(sequence: Sequence, before: int) -> Tensor:
    """Return where the tokens stand that predict the numbers of a chunk [rows, slots]: each one before its slot."""
    slots = torch.arange(sequence.slots, device=sequence.ids.device)
    return sequence.lengths[:, None] + before - 1 + slots


def picked(hidden: Tensor, places: Tensor) -> Tensor:
    """Return some tokens of every row."""
    return hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))


def config_from(content: dict[str, Any], where: str) -> OpenVlaConfig:
    """Check what a ``config.json`` says, and take it."""
    found = content.get("model_type")
    text = content.get("text_config")
    if found != OpenVlaConfig.model_type or not isinstance(text, dict):
        raise ConfigError(
            f"{where} is of a model of type {found!r}, not of OpenVLA",
            why="its model_type is another" if found != OpenVlaConfig.model_type else "it has no text_config",
            do="manyarms policy inspect says what a folder is",
        )
    if text.get("model_type", "llama") != "llama" or content.get("use_fused_vision_backbone") is False:
        raise ConfigError(f"{where}: only Llama behind two fused vision transformers is known")
    return OpenVlaConfig(**{name: value for name, value in trust.without_code(content).items() if name != "model_type"})


AutoConfig.register(OpenVlaConfig.model_type, OpenVlaConfig, exist_ok=True)
AutoModel.register(OpenVlaConfig, OpenVlaModel, exist_ok=True)
