"""Weights as the fast path reads them: joined where one product can do the work of several, in one precision.

Where nothing has to be converted, the model's own weights become views of the joined ones, and no memory is spent.
Adapters stay beside them: put into weights of bfloat16, small steps of what they learn would be rounded away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from manyarms.policies.pi0.model import vision_tower


class Matrix(NamedTuple):
    """A product, W x, and what adapters add to it where there are some: U D x."""

    weight: Tensor
    down: Tensor | None = None  # [ranks, inputs]
    up: Tensor | None = None  # [outputs, ranks], scaled


class GemmaLayer(NamedTuple):
    """A layer of the language model or of the expert; norms hold 1 + weight."""

    first_norm: Tensor
    qkv: Matrix
    out: Matrix
    second_norm: Tensor
    gate_up: Matrix
    down: Matrix


class VisionLayer(NamedTuple):
    """A layer of SigLIP: weights and biases."""

    first_norm: tuple[Tensor, Tensor]
    qkv: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]
    second_norm: tuple[Tensor, Tensor]
    up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]


class FusedWeights:
    """All weights of a model for the fast path; `refresh` follows a model that learns."""

    @torch.inference_mode(False)  # weights that become views must go on being counted and trained
    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        self._watched = list(model.parameters())
        self._derived: list[tuple[Tensor, Callable[[], Tensor]]] = []
        vlm, expert = model.model.vlm, model.model.dit
        vision = vision_tower(model)
        embed = model.embed_action_time
        self.patch = self._linear(vision.embeddings.patch_embedding)
        self.places = self._copy(lambda: vision.embeddings.position_embedding.weight)
        self.vision = [self._vision(layer) for layer in vision.encoder.layers]
        self.vision_norm = self._linear(vision.post_layernorm)
        self.projector = self._linear(vlm.multi_modal_projector.linear)
        self.words = self._copy(lambda: vlm.language_model.embed_tokens.weight)
        self.language = [self._gemma(layer) for layer in vlm.language_model.layers]
        self.expert = [self._gemma(layer) for layer in expert.layers]
        self.expert_norm = self._norm(expert.norm)
        self.state = self._linear(embed.state_proj)
        self.actions = self._linear(embed.action_in_proj)
        self.time_in = self._linear(embed.action_time_mlp_in)
        self.time_out = self._linear(embed.action_time_mlp_out)
        self.velocity = self._linear(model.action_out_proj)
        self._stamp = self._seen()

    @staticmethod
    def possible(model: nn.Module) -> bool:
        """Tell whether all weights are here; those in shards are not."""
        return not any(isinstance(parameter, DTensor) for parameter in model.parameters())

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring what was derived from weights up to date, in place, where weights have changed since."""
        stamp = self._seen()
        if stamp != self._stamp:
            for tensor, source in self._derived:
                tensor.copy_(source())
            self._stamp = stamp

    def _seen(self) -> int:
        return sum(parameter._version for parameter in self._watched)

    def _gemma(self, layer: Any) -> GemmaLayer:
        attention, mlp = layer.self_attn, layer.mlp
        return GemmaLayer(
            self._norm(layer.input_layernorm),
            self._matrix([attention.q_proj, attention.k_proj, attention.v_proj]),
            self._matrix([attention.o_proj]),
            self._norm(layer.post_attention_layernorm),
            self._matrix([mlp.gate_proj, mlp.up_proj]),
            self._matrix([mlp.down_proj]),
        )

    def _vision(self, layer: Any) -> VisionLayer:
        attention, mlp = layer.self_attn, layer.mlp
        inputs = [attention.q_proj, attention.k_proj, attention.v_proj]
        bias = self._copy(lambda: torch.cat([module.bias for module in inputs]))
        return VisionLayer(
            self._linear(layer.layer_norm1),
            (self._joined(inputs), bias),
            self._linear(attention.out_proj),
            self._linear(layer.layer_norm2),
            self._linear(mlp.fc1),
            self._linear(mlp.fc2),
        )

    def _linear(self, module: Any) -> tuple[Tensor, Tensor]:
        return self._copy(lambda: module.weight), self._copy(lambda: module.bias)

    def _norm(self, module: Any) -> Tensor:
        return self._derive(lambda: 1.0 + module.weight.float())

    def _copy(self, source: Callable[[], Tensor]) -> Tensor:
        """Return a weight itself where it will do, else a converted copy."""
        found = source()
        if isinstance(found, nn.Parameter) and found.dtype == self.dtype:
            return found.detach()
        return self._derive(lambda: source().to(self.dtype))

    def _derive(self, source: Callable[[], Tensor]) -> Tensor:
        with torch.no_grad():
            made = source().detach().clone()
        self._derived.append((made, source))
        return made

    def _matrix(self, modules: Sequence[Any]) -> Matrix:
        """Return layers that read the same input as one, their adapters beside them."""
        weight = self._joined([getattr(module, "base_layer", module) for module in modules])
        found = [_adapters(module) for module in modules]
        if not any(found):
            return Matrix(weight)
        down = self._derive(lambda: torch.cat([a.weight for parts in found for a, _, _ in parts]).to(self.dtype))
        return Matrix(weight, down, self._derive(lambda: _ups(modules, found).to(self.dtype)))

    def _joined(self, modules: Sequence[Any]) -> Tensor:
        """Return the weights of layers that read the same input as one."""
        plain = all(type(module) is nn.Linear and module.weight.dtype == self.dtype for module in modules)
        if not plain:
            return self._derive(lambda: torch.cat([module.weight for module in modules]).to(self.dtype))
        if len(modules) == 1:
            return modules[0].weight.detach()
        whole = torch.cat([module.weight.detach() for module in modules])
        start = 0
        for module in modules:
            rows = module.weight.shape[0]
            module.weight.data = whole[start : start + rows]
            start += rows
        return whole


def _adapters(module: Any) -> list[tuple[Any, Any, float]]:
    """Return the adapters of a layer: down, up and scale of each."""
    names = [name for name in getattr(module, "active_adapters", ()) if name in module.lora_A]
    return [(module.lora_A[name], module.lora_B[name], module.scaling[name]) for name in names]


def _ups(modules: Sequence[Any], found: Sequence[list[tuple[Any, Any, float]]]) -> Tensor:
    """Return what leads from the ranks of all adapters to the outputs of their own layers, [outputs, ranks]."""
    blocks = []
    for module, parts in zip(modules, found, strict=True):
        none = module.weight.new_zeros(module.weight.shape[0], 0, dtype=torch.float32)
        blocks.append(torch.cat([none, *(up.weight.float() * scale for _, up, scale in parts)], 1))
    return torch.block_diag(*blocks)


def product(x: Tensor, matrix: Matrix) -> Tensor:
    found = functional.linear(x, matrix.weight)
    if matrix.down is None or matrix.up is None:
        return found
    return found + functional.linear(functional.linear(x, matrix.down), matrix.up)
