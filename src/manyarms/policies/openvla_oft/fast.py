"""The same network faster on a GPU: fused layers, compiled, and whole passes replayed as CUDA graphs.

Weights are not copied: matrices that multiply the same input are put side by side, and the network's own become views.
Adapters stay beside them: put into weights of bfloat16, small steps of what they learn would be rounded away.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from manyarms.policies.openvla_oft.model import OpenVlaModel, Sequence, picked, slot_places, visible
from manyarms.policies.openvla_oft.vision import VisionTransformer

_MOST_GRAPHS = 32
_MANY_TOKENS = 4096
"""From so many on, SwiGLU is done within the product before it."""


class FastPass:
    """The fastest pass there is for a network; made when it is first needed, shared by all who act with it."""

    def __init__(self, network: OpenVlaModel) -> None:
        self._network = network
        self._fused: FusedNetwork | None = None
        self._replayed: Replayed | None = None

    def __call__(self, pixels: Tensor, sequence: Sequence, state: Tensor | None = None) -> Tensor:
        """Return what the network would; the tensor is valid until the next call."""
        if self._replayed is None:
            self._fused = FusedNetwork(self._network) if FusedNetwork.fits(self._network) else None
            self._replayed = Replayed(self._fused or self._network)
        return self._replayed(pixels, sequence, state)

    def release(self) -> None:
        """Forget recordings, and make the network's matrices its own again."""
        if self._fused is not None:
            self._fused.release()
        self.forget()

    def forget(self) -> None:
        """Drop recordings, which know weights by where they lie."""
        self._fused = self._replayed = None


class _Adapter(NamedTuple):
    """What LoRA adds to a product: scale · up · down · x."""

    down: Tensor  # [rank, inputs]
    up: Tensor  # [outputs, rank]
    scale: float


class _Matrix(NamedTuple):
    """Matrices side by side, and the adapters of each: of all, or of none."""

    weight: Tensor
    adapters: tuple[_Adapter, ...] = ()

    def split(self, row: int) -> tuple[_Matrix, _Matrix]:
        """Return the first of the matrices, which ends at `row`, and the others."""
        return _Matrix(self.weight[:row], self.adapters[:1]), _Matrix(self.weight[row:], self.adapters[1:])


class _Layer(NamedTuple):
    """Weights of a layer of the language model."""

    norm1: Tensor
    qkv: _Matrix
    out: _Matrix
    norm2: Tensor
    gate_up: _Matrix
    down: _Matrix
    heads: int
    epsilon: float


class FusedNetwork:
    """`OpenVlaModel.forward` without gradients; `release` gives the network its matrices back."""

    def __init__(self, network: OpenVlaModel, *, compiled: bool = True) -> None:
        self._network = network
        self._layers = [_fused(layer) for layer in network.layers]
        wrap: Callable[[Any], Any] = torch.compile if compiled else (lambda function: function)
        self._norm, self._rotated, self._gated = wrap(_norm), wrap(_rotated), wrap(_gated)
        self._last_layer, self._block = wrap(_last_layer), wrap(_block)
        self._swiglu = _swiglu() if compiled else None
        self._beside: torch.cuda.Stream | None = None

    @staticmethod
    def fits(network: OpenVlaModel) -> bool:
        """Tell whether a network's layers are plain, but for adapters on all or none, with as many keys as queries."""
        text = network.config.text_config
        parts = [part for layer in network.layers for part in _parts(layer)]
        plain = all(type(_base(part)) is nn.Linear and _base(part).bias is None for part in parts)
        adapted = {tuple(getattr(part, "active_adapters", ())) for part in parts}
        plain = plain and len(adapted) == 1 and len(adapted.pop()) <= 1
        return plain and text.num_key_value_heads == text.num_attention_heads and text.hidden_act == "silu"

    def __call__(self, pixels: Tensor, sequence: Sequence, state: Tensor | None = None) -> Tensor:
        network = self._network
        hidden = network.embedded(self._features(pixels), sequence, state)
        before = hidden.shape[1] - sequence.ids.shape[1]
        mask = visible(sequence, hidden.shape[1]) if sequence.ragged else None
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        cos, sin = network.language_model.model.rotary_emb(hidden, positions)
        for layer in self._layers[:-1]:
            self._layer(hidden, layer, cos, sin, mask)
        hidden = self._last_layer(hidden, self._layers[-1], cos, sin, mask, slot_places(sequence, before))
        return network.language_model.model.norm(hidden)

    def _layer(self, hidden: Tensor, w: _Layer, cos: Tensor, sin: Tensor, mask: Tensor | None) -> None:
        """Add what a layer makes of `hidden` to it: the products do so themselves, and no sum is written by itself."""
        flat = hidden.flatten(0, 1)
        x = _product(self._norm(flat, w.norm1, w.epsilon), w.qkv).unflatten(0, hidden.shape[:2])
        query, key = self._rotated(x, cos, sin, w.heads)
        value = _by_head(x.chunk(3, -1)[2], w.heads)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        _add_product(flat, seen.transpose(1, 2).reshape(len(flat), -1), w.out)
        x = self._norm(flat, w.norm2, w.epsilon)
        if self._swiglu is not None and self._swiglu_pays(x, w.gate_up):
            x = self._swiglu(x, w.gate_up.weight)
        else:
            x = self._gated(_product(x, w.gate_up))
        _add_product(flat, x, w.down)

    @staticmethod
    def _swiglu_pays(x: Tensor, matrix: _Matrix) -> bool:
        return x.is_cuda and x.dtype == torch.bfloat16 and len(x) >= _MANY_TOKENS and not matrix.adapters

    def _features(self, pixels: Tensor) -> Tensor:
        """Run both vision transformers at the same time: for few images, neither fills the GPU."""
        vision = self._network.vision_backbone
        rows, channels, *side = pixels.shape
        images = pixels.reshape(rows * channels // 6, 6, *side)
        if not pixels.is_cuda:
            both = [self._seen(vision.featurizer, images[:, :3]), self._seen(vision.fused_featurizer, images[:, 3:])]
            return torch.cat(both, -1).reshape(rows, -1, vision.dim)
        self._beside = self._beside or torch.cuda.Stream()
        here = torch.cuda.current_stream()
        self._beside.wait_stream(here)
        with torch.cuda.stream(self._beside):
            second = self._seen(vision.fused_featurizer, images[:, 3:])
        first = self._seen(vision.featurizer, images[:, :3])
        here.wait_stream(self._beside)
        second.record_stream(here)
        return torch.cat([first, second], -1).reshape(rows, -1, vision.dim)

    def _seen(self, eye: VisionTransformer, images: Tensor) -> Tensor:
        x = eye.embedded(images)
        for block in list(eye.blocks)[:-1]:
            x = self._block(x, block)
        return x[:, -eye.patches :]

    def release(self) -> None:
        """Make the network's matrices its own again."""
        for layer in self._network.layers:
            query, key, value, _, gate, up, _ = map(_base, _parts(layer))
            with torch.inference_mode(False):
                for part in (query, key, value, gate, up):
                    part.weight.data = part.weight.data.clone()


def _fused(layer: Any) -> _Layer:
    query, key, value, out, gate, up, down = _parts(layer)
    return _Layer(
        layer.input_layernorm.weight,
        _side_by_side(query, key, value),
        _side_by_side(out),
        layer.post_attention_layernorm.weight,
        _side_by_side(gate, up),
        _side_by_side(down),
        layer.self_attn.config.num_attention_heads,
        layer.input_layernorm.variance_epsilon,
    )


def _parts(layer: Any) -> tuple[Any, ...]:
    """Return the linear parts of a layer: query, key, value, out, gate, up, down."""
    attention, mlp = layer.self_attn, layer.mlp
    inputs = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    return (*inputs, mlp.gate_proj, mlp.up_proj, mlp.down_proj)


def _base(part: Any) -> Any:
    """Return a linear part without its adapter."""
    return getattr(part, "base_layer", part)


def _side_by_side(*parts: Any) -> _Matrix:
    """Put matrices into one, of which they become views; one by itself is left where it lies."""
    plain = [_base(part) for part in parts]
    adapters = tuple(_adapter(part) for part in parts if part is not _base(part))
    if len(plain) == 1:
        return _Matrix(plain[0].weight, adapters)
    with torch.inference_mode(False):  # or nothing could be learnt with these weights any more
        joined = torch.cat([part.weight.data for part in plain])
        for part, view in zip(plain, joined.split([len(part.weight) for part in plain]), strict=True):
            part.weight.data = view
    return _Matrix(joined, adapters)


def _adapter(part: Any) -> _Adapter:
    """Return the weights of an adapter themselves: what they learn is seen at once."""
    (name,) = part.active_adapters
    return _Adapter(part.lora_A[name].weight, part.lora_B[name].weight, part.scaling[name])


def _product(x: Tensor, matrix: _Matrix) -> Tensor:
    found = functional.linear(x, matrix.weight)
    return (found + _adapted(x, matrix)).to(x.dtype) if matrix.adapters else found


def _add_product(total: Tensor, x: Tensor, matrix: _Matrix) -> None:
    """Add a product to `total`, without writing it by itself."""
    total.addmm_(x, matrix.weight.t())
    if matrix.adapters:
        total.add_(_adapted(x, matrix))


def _adapted(x: Tensor, matrix: _Matrix) -> Tensor:
    """Return what adapters add, in their own precision."""
    wide = x.to(matrix.adapters[0].down.dtype)
    parts = [functional.linear(functional.linear(wide, a.down), a.up) * a.scale for a in matrix.adapters]
    return torch.cat(parts, -1)


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys [rows, heads, tokens, width] by their position."""
    first, second = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]


def _by_head(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Return queries and keys turned by their position, laid out as they came: attention reads them fastest so."""
    query, key, _ = x.chunk(3, -1)
    query, key = (_turned(_by_head(part, heads), cos, sin).transpose(1, 2).contiguous() for part in (query, key))
    return query.transpose(1, 2), key.transpose(1, 2)


def _gated(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return functional.silu(gate) * up


def _last_layer(hidden: Tensor, w: _Layer, cos: Tensor, sin: Tensor, mask: Tensor | None, places: Tensor) -> Tensor:
    """As `_layer`, for some tokens only: nobody reads what the others become."""
    width = hidden.shape[-1]
    x = _norm(hidden, w.norm1, w.epsilon)
    first, others = w.qkv.split(width)
    key, value = (_by_head(part, w.heads) for part in _product(x, others).chunk(2, -1))
    query = _by_head(_product(picked(x, places), first), w.heads)
    query, key = _turned(query, cos[0][places], sin[0][places]), _turned(key, cos, sin)
    seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return _rest(picked(hidden, places), w, seen)


def _rest(hidden: Tensor, w: _Layer, seen: Tensor) -> Tensor:
    hidden = hidden + _product(seen.transpose(1, 2).flatten(2), w.out)
    gated = _gated(_product(_norm(hidden, w.norm2, w.epsilon), w.gate_up))
    return hidden + _product(gated, w.down)


def _swiglu() -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return the kernel of its own, where there is a GPU it was made for."""
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    if not hopper or not all(map(find_spec, ("triton", "triton.tools.tensor_descriptor"))):
        return None
    from manyarms.policies.openvla_oft.swiglu import swiglu

    return swiglu


def _block(x: Tensor, block: nn.Module) -> Tensor:
    return block(x)


class Replayed:
    """A pass of the network, captured once for every shape of its inputs and replayed from then on."""

    def __init__(self, forward: Callable[[Tensor, Sequence, Tensor | None], Tensor]) -> None:
        self._forward = forward
        self._graphs: dict[Any, _Graph] = {}
        self._pool: Any = None

    def __call__(self, pixels: Tensor, sequence: Sequence, state: Tensor | None = None) -> Tensor:
        """Return what `forward` would; the tensor is valid until the next call."""
        rows = len(pixels)
        laid_out = (sequence.ids.shape[1], sequence.slots, sequence.ragged, sequence.stop)
        key = (_bucket(rows), *laid_out, pixels.shape[1:], state is None)
        if key not in self._graphs:
            if len(self._graphs) >= _MOST_GRAPHS:
                return self._forward(pixels, sequence, state)
            self._graphs[key] = _Graph(self._forward, _bucket(rows), pixels, sequence, state, self._pool)
            self._pool = self._pool or self._graphs[key].pool
        return self._graphs[key](pixels, sequence, state)[:rows]


def _bucket(rows: int) -> int:
    """Return how many rows a graph for `rows` has."""
    return next((size for size in (1, 2, 4, 8) if rows <= size), -(-rows // 8) * 8)


class _Graph:
    def __init__(
        self,
        forward: Callable[[Tensor, Sequence, Tensor | None], Tensor],
        rows: int,
        pixels: Tensor,
        sequence: Sequence,
        state: Tensor | None,
        pool: Any,
    ) -> None:
        self._pixels = _grown(pixels, rows)
        self._sequence = Sequence(
            _grown(sequence.ids, rows), _grown(sequence.lengths, rows), sequence.slots, sequence.ragged, sequence.stop
        )
        self._state = None if state is None else _grown(state, rows)
        inputs = (self._pixels, self._sequence, self._state)
        apart = torch.cuda.Stream()
        apart.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(apart):  # compiles, and chooses kernels
            for _ in range(3):
                forward(*inputs)
        torch.cuda.current_stream().wait_stream(apart)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._found = forward(*inputs)
        self.pool = self._graph.pool()

    def __call__(self, pixels: Tensor, sequence: Sequence, state: Tensor | None) -> Tensor:
        rows = len(pixels)
        self._pixels[:rows].copy_(pixels)
        self._sequence.ids[:rows].copy_(sequence.ids)
        self._sequence.lengths[:rows].copy_(sequence.lengths)
        if state is not None and self._state is not None:
            self._state[:rows].copy_(state)
        self._graph.replay()
        return self._found


def _grown(tensor: Tensor, rows: int) -> Tensor:
    """Return a copy with so many rows, the last one repeated."""
    index = torch.arange(rows, device=tensor.device).clamp(max=len(tensor) - 1)
    return tensor[index].clone()
