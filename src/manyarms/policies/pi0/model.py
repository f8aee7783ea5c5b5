"""π0's two passes over the modules of transformers: what is seen and read, once; the velocity of actions, many times.

Both are differentiable, and the second takes many points of a chain at once, so that acting and learning share them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Inputs:
    """What the model is fed of R rows."""

    images: Tensor  # [R, C, 3, side, side] in -1..1
    image_mask: Tensor  # [R, C], which of them are there
    tokens: Tensor  # [R, T]
    token_mask: Tensor  # [R, T]
    state: Tensor  # [R, state width]

    def __len__(self) -> int:
        return len(self.state)


@dataclass(frozen=True)
class Prefix:
    """What the expert attends to of images and words."""

    keys: list[Tensor]  # of every layer: [R, heads, P, width]
    values: list[Tensor]
    mask: Tensor  # [R, P]
    features: Tensor | None
    """Mean over what was seen and read, [R, hidden]."""


def vision_tower(model: Any) -> Any:
    """Return SigLIP; some versions of transformers wrap it once more."""
    tower = model.model.vlm.vision_tower
    return getattr(tower, "vision_model", tower)


def embedded(model: Any, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return images and words as one sequence [R, P, hidden], and its mask [R, P]."""
    vlm = model.model.vlm
    rows, cameras = inputs.image_mask.shape
    table = vlm.language_model.embed_tokens
    seen = vision_tower(model)(inputs.images.flatten(0, 1).to(table.weight.dtype)).last_hidden_state
    images = vlm.multi_modal_projector(seen)  # [R C, patches, hidden]
    patches = images.shape[1]
    images = images.reshape(rows, cameras * patches, -1)
    # Gemma scales the embeddings of words, but not those of images, by √hidden.
    words = run_of(table, _look_up)(inputs.tokens) * math.sqrt(table.embedding_dim)
    mask = torch.cat([inputs.image_mask.repeat_interleave(patches, 1), inputs.token_mask], 1)
    return torch.cat([images.to(words.dtype), words], 1), mask


def prefix_of(model: Any, inputs: Inputs, *, features: bool = False, remat: bool = False) -> Prefix:
    """Read images and words; all of them see each other, as far as they are there."""
    language = model.model.vlm.language_model
    x, mask = embedded(model, inputs)
    turns = rotations(model, mask.cumsum(1) - 1)
    keys, values = [], []
    last = len(language.layers) - 1
    for index, layer in enumerate(language.layers):
        # Of the last layer nothing but keys and values is ever looked at, unless features are wanted.
        whole = index < last or features
        x, key, value = _called(run_of(layer, _layer), remat, x, turns, None, mask[:, None, None, :], whole)
        keys.append(key)
        values.append(value)
    pooled = None
    if features:
        weight = mask[..., None].float()
        pooled = (language.norm(x).float() * weight).sum(1) / weight.sum(1).clamp(min=1.0)
    return Prefix(keys, values, mask, pooled)


def velocities(
    model: Any, prefix: Prefix, state: Tensor, points: Tensor, times: Tensor, *, remat: bool = False
) -> tuple[Tensor, Tensor]:
    """Return velocities [R, G, H, D] at G points of each row's chain, and the expert's features [R, G, H, hidden].

    Points of a row do not see each other: each has the state and its own actions, and all share the prefix.
    """
    expert = model.model.dit
    rows, groups, horizon, _ = points.shape
    x = suffix_embeddings(model, state, points, times).flatten(1, 2)  # [R, G (1 + H), hidden]
    start = prefix.mask.sum(1)[:, None, None]
    positions = (start + torch.arange(1 + horizon, device=x.device)).expand(rows, groups, -1)
    turns = rotations(model, positions.flatten(1))
    mask = suffix_mask(prefix.mask, groups, horizon)
    for index, layer in enumerate(expert.layers):
        past = (prefix.keys[index], prefix.values[index])
        x, _, _ = _called(run_of(layer, _layer), remat, x, turns, past, mask, True)
    found = expert.norm(x).unflatten(1, (groups, 1 + horizon))[:, :, 1:]
    return model.action_out_proj(found).float(), found


def suffix_embeddings(model: Any, state: Tensor, points: Tensor, times: Tensor) -> Tensor:
    """Return the state and the actions of every point, with the time in them: [R, G, 1 + H, hidden]."""
    embed = model.embed_action_time
    dtype = embed.state_proj.weight.dtype
    actions = embed.action_in_proj(points.to(dtype))  # [R, G, H, hidden]
    when = time_embedding(model, times)[:, :, None, :].expand_as(actions).to(actions.dtype)
    mixed = embed.action_time_mlp_in(torch.cat([actions, when], -1))
    mixed = embed.action_time_mlp_out(functional.silu(mixed))
    first = embed.state_proj(state.to(dtype))[:, None, None, :].expand(-1, points.shape[1], -1, -1)
    return torch.cat([first, mixed], 2)


def time_embedding(model: Any, times: Tensor) -> Tensor:
    """Return times [R, G] as waves of many lengths, [R, G, hidden]."""
    config = model.config
    share = torch.linspace(0.0, 1.0, config.dit_config.hidden_size // 2, device=times.device)
    period = config.min_period * (config.max_period / config.min_period) ** share
    angles = times.float()[..., None] * (2.0 * math.pi / period)
    return torch.cat([angles.sin(), angles.cos()], -1)


def suffix_mask(prefix: Tensor, groups: int, horizon: int) -> Tensor:
    """Return who sees whom, [R, 1, G (1 + H), P + G (1 + H)]: the state sees itself, actions see it and each other."""
    device = prefix.device
    size = groups * (1 + horizon)
    group = torch.arange(groups, device=device).repeat_interleave(1 + horizon)
    is_state = torch.arange(size, device=device) % (1 + horizon) == 0
    inside = (group[:, None] == group[None, :]) & (is_state[None, :] | ~is_state[:, None])
    before = prefix[:, None, :].expand(-1, size, -1)
    return torch.cat([before, inside.expand(len(prefix), -1, -1)], 2)[:, None]


def rotations(model: Any, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [R, 1, T, width / 2] that turn queries and keys by their positions [R, T]."""
    config = model.config.vlm_config.text_config
    half = config.head_dim // 2
    base = config.rope_parameters["rope_theta"]
    rates = base ** -(torch.arange(half, device=positions.device, dtype=torch.float32) / half)
    angles = positions[:, None, :, None].float() * rates
    return angles.cos(), angles.sin()


def turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Turn queries or keys [R, heads, T, width]."""
    cos, sin = turns
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def attended(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Return attention with fewer heads of keys than of queries, [R, T, heads width]."""
    heads = query.shape[1]
    if key.shape[1] != heads:
        key, value = (t.repeat_interleave(heads // t.shape[1], 1) for t in (key, value))
    found = functional.scaled_dot_product_attention(query, key, value, mask)
    return found.transpose(1, 2).flatten(2)


def run_of(part: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs a part: in shards its method `run`, before which FSDP gathers its weights, else `function`."""
    return getattr(part, "run", None) or partial(function, part)


def in_shards(model: Any) -> list[Any]:
    """Return the parts whose weights are gathered one at a time; those that are not called as modules get a `run`."""
    vlm = model.model.vlm
    table, layers = vlm.language_model.embed_tokens, [*vlm.language_model.layers, *model.model.dit.layers]
    for part, function in ((table, _look_up), *((layer, _layer) for layer in layers)):
        part.run = MethodType(function, part)
    return [table, *vision_tower(model).encoder.layers, *layers]


def _look_up(table: Any, tokens: Tensor) -> Tensor:
    """Return the rows of a table; as a module, that of some versions of transformers scales them, of others not."""
    return functional.embedding(tokens, table.weight)


def _layer(
    layer: Any,
    x: Tensor,
    turns: tuple[Tensor, Tensor],
    past: tuple[Tensor, Tensor] | None,
    mask: Tensor,
    whole: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a layer of Gemma makes of x, and its keys and values; not `whole`: only these."""
    attention = layer.self_attn
    normed = layer.input_layernorm(x)
    shape = (*x.shape[:2], -1, attention.head_dim)
    key = turned(attention.k_proj(normed).view(shape).transpose(1, 2), turns)
    value = attention.v_proj(normed).view(shape).transpose(1, 2)
    if not whole:
        return x, key, value
    query = turned(attention.q_proj(normed).view(shape).transpose(1, 2), turns)
    keys, values = key, value
    if past is not None:
        keys = torch.cat([past[0].to(key.dtype), key], 2)
        values = torch.cat([past[1].to(value.dtype), value], 2)
    x = x + attention.o_proj(attended(query, keys, values, mask))
    return x + layer.mlp(layer.post_attention_layernorm(x)), key, value


def _called(function: Callable[..., Any], remat: bool, *arguments: Any) -> Any:
    """Call; with `remat`, keep nothing for the gradient but the arguments."""
    if remat and torch.is_grad_enabled():
        return checkpoint(function, *arguments, use_reentrant=False)
    return function(*arguments)
