"""π0 drawn fast: fused weights, the prefix read once, and on CUDA the whole chain as one graph for every batch size.

The numbers are those of `model.py` but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from manyarms.policies.pi0.flow import Coefficients
from manyarms.policies.pi0.fused import FusedWeights, GemmaLayer, VisionLayer, product
from manyarms.policies.pi0.model import Inputs, rotations, time_embedding, turned

#: Lengths that kernels like are multiples of it.
_ALIGNED = 8


@dataclass(frozen=True)
class Draw:
    """What a chain is drawn from."""

    noise: Tensor  # [R, H, D], where it begins
    times: Tensor  # [S + 1]
    steps: Coefficients  # [R, S, H, D] each
    epsilon: Tensor  # [R, S, H, D]


class FastPath:
    """Draws chains of points. Weights that change are noticed."""

    def __init__(self, model: Any, dtype: torch.dtype, *, compiled: bool = True) -> None:
        self.weights = FusedWeights(model, dtype)
        self._config = model.config
        self._on_gpu = self.weights.words.device.type == "cuda"
        self._graphs: dict[tuple[int, ...], _Graph] = {}
        self._pool: Any = None
        wanted = compiled and self._on_gpu
        self._see: Callable[..., Tensor] = _compiled(_vision_layer, wanted)
        self._read: Callable[..., Any] = _compiled(_prefix_layer, wanted)
        self._move: Callable[..., Tensor] = _compiled(_expert_layer, wanted)
        self._begin: Callable[..., Tensor] = _compiled(_suffix, wanted)
        self._end: Callable[..., Tensor] = _compiled(_velocity, wanted)

    @torch.inference_mode()
    def draw(self, inputs: Inputs, draw: Draw) -> Tensor:
        """Return the chain from noise to actions, [R, S + 1, H, D]."""
        self.weights.refresh()
        if not self._on_gpu:
            return self._chain(inputs, draw)
        rows = len(inputs)
        size = bucket(rows)
        key = (size, *inputs.images.shape[1:3], inputs.tokens.shape[1], len(draw.times))
        if key not in self._graphs:
            self._graphs[key] = self._captured(_padded(inputs, size), _padded_draw(draw, size))
        return self._graphs[key].replay(_padded(inputs, size), _padded_draw(draw, size))[:rows]

    def _captured(self, inputs: Inputs, draw: Draw) -> _Graph:
        """Record the kernels of a batch size, after a few runs in which they are chosen and compiled."""
        inputs, draw = _cloned(inputs), _cloned(draw)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch._dynamo.config.patch(recompile_limit=64):
            for _ in range(2):
                self._chain(inputs, draw)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool):
            chain = self._chain(inputs, draw)
        return _Graph(graph, inputs, draw, chain)

    def _chain(self, inputs: Inputs, draw: Draw) -> Tensor:
        keys, values, bias, turns = self._prefix(inputs, draw.noise.shape[1])
        state = functional.linear(inputs.state.to(self.weights.dtype), *self.weights.state)
        points = [draw.noise]
        for step in range(len(draw.times) - 1):
            x = points[-1]
            velocity = self._velocity(x, draw.times[step], state, (keys, values, bias, turns))
            steps = draw.steps
            # x' = α x + β v + γ ε
            moved = steps.alpha[:, step] * x + steps.beta[:, step] * velocity
            points.append(moved + steps.gamma[:, step] * draw.epsilon[:, step])
        return torch.stack(points, 1)

    # -- what is seen and read ----------------------------------------------------------------------------------------

    def _prefix(self, inputs: Inputs, horizon: int) -> tuple[list[Tensor], list[Tensor], Tensor, tuple[Tensor, Tensor]]:
        """Return keys and values with room for the expert's own, what it may see, and how its tokens are turned."""
        weights, text = self.weights, self._config.vlm_config.text_config
        x, mask = self._embedded(inputs)
        rows, length = mask.shape
        turns = rotations(self.weights.model, mask.cumsum(1) - 1)
        bias = _as_bias(mask, x.dtype)[:, None, None, :].expand(-1, 1, text.num_attention_heads * length, -1)
        suffix = 1 + horizon
        room = -(-(length + suffix) // _ALIGNED) * _ALIGNED
        keys, values = [], []
        for index, layer in enumerate(weights.language):
            last = index == len(weights.language) - 1
            x, key, value = self._read(x, layer, turns, bias, _shape(text), last)
            keys.append(functional.pad(key, (0, 0, 0, room - length)))
            values.append(functional.pad(value, (0, 0, 0, room - length)))
        # The expert's own tokens come last; between them and the prefix lies what only fills up.
        seen = torch.zeros(rows, suffix, room, dtype=torch.bool, device=mask.device)
        seen[:, :, :length] = mask[:, None, :]
        seen[:, :, room - suffix] = True
        seen[:, 1:, room - suffix :] = True
        positions = mask.sum(1)[:, None] + torch.arange(suffix, device=mask.device)
        return keys, values, _as_bias(seen, x.dtype), rotations(self.weights.model, positions)

    def _embedded(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        weights, vision = self.weights, self._config.vlm_config.vision_config
        rows, cameras = inputs.image_mask.shape
        patch, heads = vision.patch_size, vision.num_attention_heads
        side = inputs.images.shape[-1] // patch
        cut = inputs.images.to(weights.dtype).reshape(rows * cameras, 3, side, patch, side, patch)
        cut = cut.permute(0, 2, 4, 1, 3, 5).reshape(rows * cameras, side * side, -1)
        x = functional.linear(cut, weights.patch[0].flatten(1), weights.patch[1]) + weights.places
        for layer in weights.vision:
            x = self._see(x, layer, heads, vision.layer_norm_eps)
        x = functional.layer_norm(x, x.shape[-1:], *weights.vision_norm, vision.layer_norm_eps)
        images = functional.linear(x, *weights.projector).view(rows, cameras * side * side, -1)
        words = functional.embedding(inputs.tokens, weights.words) * math.sqrt(weights.words.shape[1])
        missing = -(images.shape[1] + words.shape[1]) % _ALIGNED
        words = functional.pad(words, (0, 0, 0, missing))
        read = functional.pad(inputs.token_mask, (0, missing))
        return torch.cat([images, words], 1), torch.cat([inputs.image_mask.repeat_interleave(side * side, 1), read], 1)

    # -- where actions go ---------------------------------------------------------------------------------------------

    def _velocity(self, x: Tensor, time: Tensor, state: Tensor, prefix: tuple[Any, ...]) -> Tensor:
        weights, expert = self.weights, self._config.dit_config
        keys, values, bias, turns = prefix
        when = time_embedding(weights.model, time.view(1, 1))[0].to(weights.dtype)
        hidden = self._begin(x.to(weights.dtype), when, state, weights.actions, weights.time_in, weights.time_out)
        for layer, key, value in zip(weights.expert, keys, values, strict=True):
            hidden = self._move(hidden, layer, turns, key, value, bias, _shape(expert))
        return self._end(hidden, weights.expert_norm, expert.rms_norm_eps, *weights.velocity)


@dataclass(frozen=True)
class _Graph:
    """Recorded kernels and the memory they read and write."""

    graph: Any
    inputs: Inputs
    draw: Draw
    chain: Tensor

    def replay(self, inputs: Inputs, draw: Draw) -> Tensor:
        for ours, theirs in ((self.inputs, inputs), (self.draw, draw)):
            for mine, its in zip(_tensors(ours), _tensors(theirs), strict=True):
                mine.copy_(its)
        self.graph.replay()
        return self.chain.clone()


#: Heads, heads of keys, width of a head, and the norm's epsilon.
Shape = tuple[int, int, int, float]


def _shape(config: Any) -> Shape:
    return config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.rms_norm_eps


def _vision_layer(x: Tensor, layer: VisionLayer, heads: int, epsilon: float) -> Tensor:
    rows, tokens, width = x.shape
    normed = functional.layer_norm(x, (width,), *layer.first_norm, epsilon)
    qkv = functional.linear(normed, *layer.qkv).view(rows, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
    seen = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]).transpose(1, 2).reshape(rows, tokens, width)
    x = x + functional.linear(seen, *layer.out)
    normed = functional.layer_norm(x, (width,), *layer.second_norm, epsilon)
    inner = functional.gelu(functional.linear(normed, *layer.up), approximate="tanh")
    return x + functional.linear(inner, *layer.down)


def _prefix_layer(
    x: Tensor, layer: GemmaLayer, turns: tuple[Tensor, Tensor], bias: Tensor, shape: Shape, last: bool
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = _projected(x, layer, turns, shape)
    if last:
        return x, key, value
    rows, heads, tokens, width = query.shape
    if key.shape[1] == 1:
        # One head of keys for all: queries of all heads are so many more queries.
        folded = query.reshape(rows, 1, heads * tokens, width)
        seen = functional.scaled_dot_product_attention(folded, key, value, bias).view(rows, heads, tokens, width)
    else:
        keys, values = (t.repeat_interleave(heads // t.shape[1], 1) for t in (key, value))
        seen = functional.scaled_dot_product_attention(query, keys, values, bias[:, :, :tokens])
    return _finished(x, seen, layer, shape[3]), key, value


def _expert_layer(
    x: Tensor,
    layer: GemmaLayer,
    turns: tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
    bias: Tensor,
    shape: Shape,
) -> Tensor:
    """Return what the expert's layer makes of x; its own keys and values go into the end of the room left for them."""
    query, key, value = _projected(x, layer, turns, shape)
    tokens, start = x.shape[1], keys.shape[2] - x.shape[1]
    keys[:, :, start:] = key
    values[:, :, start:] = value
    rows, heads, _, width = query.shape
    kinds = keys.shape[1]
    grouped = query.reshape(rows * kinds, heads // kinds * tokens, width)
    scores = torch.bmm(grouped, keys.view(rows * kinds, -1, width).transpose(1, 2)).float() * width**-0.5
    scores = scores.view(rows, heads, tokens, -1) + bias[:, None]
    shares = scores.softmax(-1).to(x.dtype).view(rows * kinds, heads // kinds * tokens, -1)
    seen = torch.bmm(shares, values.view(rows * kinds, -1, width)).view(rows, heads, tokens, width)
    return _finished(x, seen, layer, shape[3])


def _suffix(
    points: Tensor,
    when: Tensor,
    state: Tensor,
    actions: tuple[Tensor, Tensor],
    time_in: tuple[Tensor, Tensor],
    time_out: tuple[Tensor, Tensor],
) -> Tensor:
    """Return the tokens of the state and of actions at a time."""
    embedded = functional.linear(points, *actions)
    mixed = functional.linear(torch.cat([embedded, when.expand_as(embedded)], -1), *time_in)
    return torch.cat([state[:, None], functional.linear(functional.silu(mixed), *time_out)], 1)


def _velocity(x: Tensor, scale: Tensor, epsilon: float, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.linear(_normed(x[:, 1:], scale, epsilon), weight, bias).float()


def _projected(
    x: Tensor, layer: GemmaLayer, turns: tuple[Tensor, Tensor], shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    heads, kinds, width, epsilon = shape
    qkv = product(_normed(x, layer.first_norm, epsilon), layer.qkv)
    qkv = qkv.view(*x.shape[:2], heads + 2 * kinds, width).transpose(1, 2)
    query, key, value = qkv.split((heads, kinds, kinds), 1)
    return turned(query, turns), turned(key, turns), value.contiguous()


def _finished(x: Tensor, seen: Tensor, layer: GemmaLayer, epsilon: float) -> Tensor:
    """Add what was attended to, and the feed-forward part."""
    x = x + product(seen.transpose(1, 2).flatten(2), layer.out)
    gate, up = product(_normed(x, layer.second_norm, epsilon), layer.gate_up).chunk(2, -1)
    return x + product(functional.gelu(gate, approximate="tanh") * up, layer.down)


def _normed(x: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon) * scale).to(x.dtype)


def _as_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where something is seen, and far below where not."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -1e9)


def bucket(rows: int) -> int:
    """Return the batch size that rows are filled up to: few sizes, so that few graphs are recorded."""
    return 1 << (rows - 1).bit_length() if rows <= 8 else -(-rows // 8) * 8


def _padded(inputs: Inputs, size: int) -> Inputs:
    return Inputs(*(_rows(tensor, size) for tensor in _tensors(inputs)))


def _padded_draw(draw: Draw, size: int) -> Draw:
    steps = Coefficients(*(_rows(tensor, size) for tensor in _tensors(draw.steps)))
    return Draw(_rows(draw.noise, size), draw.times, steps, _rows(draw.epsilon, size))


def _rows(tensor: Tensor, size: int) -> Tensor:
    missing = size - len(tensor)
    return torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])]) if missing else tensor


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for one in (getattr(value, item.name) for item in fields(value)):
        found += [one] if isinstance(one, Tensor) else _tensors(one)
    return found


def _cloned(value: Any) -> Any:
    parts = {item.name: getattr(value, item.name) for item in fields(value)}
    return type(value)(**{n: p.clone() if isinstance(p, Tensor) else _cloned(p) for n, p in parts.items()})


def _compiled(function: Callable[..., Any], wanted: bool) -> Callable[..., Any]:
    """Compile a part that is the same for all layers, once for all of them: weights are arguments."""
    return torch.compile(function, dynamic=False) if wanted else function


__all__ = ["Draw", "FastPath", "bucket"]
