"""The same network faster on a GPU: fused layers, compiled, and whole passes replayed as CUDA graphs.

Its parts: `matrices.py` (products), `rows.py` (what lies between them), `eyes.py` (vision), and for Triton `swiglu.py`
and `kernels.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from manyarms.errors import ConfigError
from manyarms.policies.openvla_oft import rows
from manyarms.policies.openvla_oft.eyes import FusedEye
from manyarms.policies.openvla_oft.matrices import Adapters, Matrix, base, matrix, plain_parts, separate
from manyarms.policies.openvla_oft.model import OpenVlaModel, Sequence, picked, slot_places, visible
from manyarms.policies.openvla_oft.replay import Replayed
from manyarms.policies.openvla_oft.rows import Pending, Rounded

_MANY_TOKENS = 4096
"""From so many on, SwiGLU is done within the product before it."""


class FastPass:
    """The fastest pass there is for a network; made when it is first needed, shared by all who act with it."""

    def __init__(self, network: OpenVlaModel, *, eight_bits: bool = False) -> None:
        self._network, self._eight_bits = network, eight_bits
        self._fused: FusedNetwork | None = None
        self._replayed: Replayed | None = None

    def __call__(self, pixels: Tensor, sequence: Sequence, state: Tensor | None = None) -> Tensor:
        """Return what the network would; the tensor is valid until the next call."""
        if self._replayed is None:
            fits = FusedNetwork.fits(self._network)
            if self._eight_bits and not fits:
                raise ConfigError("precision fp8 is for the layers of OpenVLA-OFT alone", do="precision: bf16")
            self._fused = FusedNetwork(self._network, eight_bits=self._eight_bits) if fits else None
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


@contextmanager
def short_floats() -> Iterator[None]:
    """Multiply matrices of float32 by eleven bits of each number: much faster, and three more than bfloat16 has."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Layer(NamedTuple):
    """Weights of a layer of the language model."""

    norm1: Tensor
    qkv: Matrix
    out: Matrix
    norm2: Tensor
    gate_up: Matrix
    down: Matrix
    heads: int
    epsilon: float


class _Layer8(NamedTuple):
    """Matrices of a layer in eight bits, adapters put into them."""

    qkv: Rounded
    out: Rounded
    gate_up: Rounded
    down: Rounded


class FusedNetwork:
    """`OpenVlaModel.forward` without gradients; `release` gives the network its matrices back.

    With `eight_bits`, products of all layers but the last are of numbers of eight bits, for which weights are copied.
    """

    def __init__(self, network: OpenVlaModel, *, compiled: bool = True, eight_bits: bool = False) -> None:
        self._network = network
        self._adapters = Adapters()
        self._layers = [_fused(layer, self._adapters) for layer in network.layers]
        self._eights = [_in_eight_bits(layer) for layer in self._layers[:-1]] if eight_bits else None
        wrap: Callable[[Any], Any] = torch.compile if compiled else (lambda function: function)
        self._rotated, self._turned, self._gated = wrap(_rotated), wrap(_turned), wrap(_gated)
        vision, projector = network.vision_backbone, network.projector
        self._eyes = [FusedEye(eye, self._adapters) for eye in (vision.featurizer, vision.fused_featurizer)]
        self._projector = [matrix(self._adapters, part) for part in (projector.fc1, projector.fc2, projector.fc3)]
        self._swiglu = _swiglu() if compiled else None
        self._beside: torch.cuda.Stream | None = None

    @staticmethod
    def fits(network: OpenVlaModel) -> bool:
        """Tell whether all parts are plain, but for adapters on all or none, with as many keys as queries."""
        text, vision, projector = network.config.text_config, network.vision_backbone, network.projector
        parts = [part for layer in network.layers for part in _parts(layer)]
        plain = plain_parts(parts) and all(base(part).bias is None for part in parts)
        plain = plain and all(map(FusedEye.fits, (vision.featurizer, vision.fused_featurizer)))
        plain = plain and plain_parts([projector.fc1, projector.fc2, projector.fc3])
        return plain and text.num_key_value_heads == text.num_attention_heads and text.hidden_act == "silu"

    def __call__(self, pixels: Tensor, sequence: Sequence, state: Tensor | None = None) -> Tensor:
        network = self._network
        self._adapters.refresh()
        hidden = network.joined(self._projected(self._features(pixels)), sequence, state)
        before = hidden.shape[1] - sequence.ids.shape[1]
        mask = visible(sequence, hidden.shape[1]) if sequence.ragged else None
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        cos, sin = network.language_model.model.rotary_emb(hidden, positions)
        if self._eights is None:
            for layer in self._layers[:-1]:
                self._layer(hidden, layer, cos, sin, mask)
        else:
            self._through_eights(hidden, self._eights, cos, sin, mask)
        places = slot_places(sequence, before)
        return network.language_model.model.norm(self._last_layer(hidden, self._layers[-1], cos, sin, mask, places))

    def _layer(self, hidden: Tensor, w: _Layer, cos: Tensor, sin: Tensor, mask: Tensor | None) -> None:
        """Add what a layer makes of `hidden` to it: the products do so themselves, and no sum is written by itself."""
        flat = hidden.flatten(0, 1)
        x = w.qkv.product(rows.rms_norm(flat, w.norm1, w.epsilon))
        w.out.add_product(flat, self._attended(x.unflatten(0, hidden.shape[:2]), w.heads, cos, sin, mask))
        self._add_thought(flat, w)

    def _add_thought(self, flat: Tensor, w: _Layer) -> None:
        """Add what a layer's second half, its MLP, makes of tokens."""
        x = rows.rms_norm(flat, w.norm2, w.epsilon)
        if self._swiglu is not None and self._swiglu_pays(x, w.gate_up):
            x = self._swiglu(x, w.gate_up.weight)
        else:
            x = self._gated(w.gate_up.product(x))
        w.down.add_product(flat, x)

    def _attended(self, x: Tensor, heads: int, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """Return what tokens see, from queries, keys and values side by side [rows, tokens, 3 width]."""
        query, key = self._rotated(x, cos, sin, heads)
        value = _by_head(x.chunk(3, -1)[2], heads)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return seen.transpose(1, 2).reshape(x.shape[0] * x.shape[1], -1)

    def _last_layer(
        self, hidden: Tensor, w: _Layer, cos: Tensor, sin: Tensor, mask: Tensor | None, places: Tensor
    ) -> Tensor:
        """As `_layer`, for some tokens only: nobody reads what the others become."""
        count, tokens, width = hidden.shape
        x = rows.rms_norm(hidden.flatten(0, 1), w.norm1, w.epsilon)
        first, others = w.qkv.split(width)
        key, value = (_by_head(part, w.heads) for part in others.product(x).view(count, tokens, -1).chunk(2, -1))
        wanted = picked(x.view(hidden.shape), places).flatten(0, 1)
        query = _by_head(first.product(wanted).view(count, -1, width), w.heads)
        query, key = self._turned(query, cos[0][places], sin[0][places]), self._turned(key, cos, sin)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        flat = picked(hidden, places).flatten(0, 1)
        w.out.add_product(flat, seen.transpose(1, 2).reshape(flat.shape))
        self._add_thought(flat, w)
        return flat.view(count, -1, width)

    def _through_eights(
        self, hidden: Tensor, layers: list[_Layer8], cos: Tensor, sin: Tensor, mask: Tensor | None
    ) -> None:
        """As `_layer`, for all layers: what one adds is added when the next one reads it."""
        flat = hidden.flatten(0, 1)
        pending: Pending | None = None
        for w, eight in zip(self._layers, layers, strict=False):
            x = rows.product(rows.rounded_rms_norm(flat, pending, w.norm1, w.epsilon), eight.qkv).to(flat.dtype)
            seen = self._attended(x.unflatten(0, hidden.shape[:2]), w.heads, cos, sin, mask)
            pending = rows.pending_product(rows.rounded(seen), eight.out)
            x = rows.product(rows.rounded_rms_norm(flat, pending, w.norm2, w.epsilon), eight.gate_up)
            pending = rows.pending_product(rows.rounded_gate(x), eight.down)
        if pending is not None:
            flat.copy_(flat + pending.value())

    def _projected(self, features: Tensor) -> Tensor:
        first, second, third = self._projector
        flat = second.gelu_of_product(first.gelu_of_product(features.flatten(0, 1)))
        return third.product(flat).unflatten(0, features.shape[:2])

    @staticmethod
    def _swiglu_pays(x: Tensor, matrix: Matrix) -> bool:
        return x.is_cuda and x.dtype == torch.bfloat16 and len(x) >= _MANY_TOKENS and not matrix.adapters

    def _features(self, pixels: Tensor) -> Tensor:
        """Run both vision transformers at the same time: for few images, neither fills the GPU."""
        count, channels, *side = pixels.shape
        images = pixels.reshape(count * channels // 6, 6, *side)
        left, right = self._eyes
        if not pixels.is_cuda:
            both = [left(images[:, :3]), right(images[:, 3:])]
            return torch.cat(both, -1).reshape(count, -1, self._network.vision_backbone.dim)
        self._beside = self._beside or torch.cuda.Stream()
        here = torch.cuda.current_stream()
        self._beside.wait_stream(here)
        with torch.cuda.stream(self._beside):
            second = right(images[:, 3:])
        first = left(images[:, :3])
        here.wait_stream(self._beside)
        second.record_stream(here)
        return torch.cat([first, second], -1).reshape(count, -1, self._network.vision_backbone.dim)

    def release(self) -> None:
        """Make the network's matrices its own again."""
        for layer in self._network.layers:
            query, key, value, _, gate, up, _ = _parts(layer)
            separate([query, key, value, gate, up])


def _fused(layer: Any, adapters: Adapters) -> _Layer:
    query, key, value, out, gate, up, down = _parts(layer)
    return _Layer(
        layer.input_layernorm.weight,
        matrix(adapters, query, key, value),
        matrix(adapters, out),
        layer.post_attention_layernorm.weight,
        matrix(adapters, gate, up),
        matrix(adapters, down),
        layer.self_attn.config.num_attention_heads,
        layer.input_layernorm.variance_epsilon,
    )


def _parts(layer: Any) -> tuple[Any, ...]:
    """Return the linear parts of a layer: query, key, value, out, gate, up, down."""
    attention, mlp = layer.self_attn, layer.mlp
    inputs = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    return (*inputs, mlp.gate_proj, mlp.up_proj, mlp.down_proj)


def _in_eight_bits(layer: _Layer) -> _Layer8:
    return _Layer8(*(rows.rounded(part.merged()) for part in (layer.qkv, layer.out, layer.gate_up, layer.down)))


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


def _swiglu() -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return the kernel of its own, where there is a GPU it was made for."""
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    if not hopper or not all(map(find_spec, ("triton", "triton.tools.tensor_descriptor"))):
        return None
    from manyarms.policies.openvla_oft.swiglu import swiglu

    return swiglu
