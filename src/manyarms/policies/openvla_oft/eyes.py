"""Vision transformers faster: patches cut by a product, sums and norms in one reading, GELU within its product."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import functional

from manyarms.policies.openvla_oft import rows
from manyarms.policies.openvla_oft.matrices import Adapters, Matrix, matrix, plain_parts
from manyarms.policies.openvla_oft.vision import VisionTransformer


class _Block(NamedTuple):
    norm1: Any
    qkv: Matrix
    out: Matrix
    factor1: Tensor | None
    norm2: Any
    up: Matrix
    down: Matrix
    factor2: Tensor | None
    heads: int


class FusedEye:
    """`VisionTransformer.forward` without gradients; what it reads are the transformer's own weights."""

    def __init__(self, eye: VisionTransformer, adapters: Adapters) -> None:
        self._eye = eye
        self._blocks = [_block(block, adapters) for block in list(eye.blocks)[:-1]]

    @staticmethod
    def fits(eye: VisionTransformer) -> bool:
        """Tell whether all layers are plain, but for adapters on all or none."""
        return plain_parts([part for block in list(eye.blocks)[:-1] for part in _parts(block)])

    def __call__(self, images: Tensor) -> Tensor:
        x = self._embedded(images)
        shape = x.shape
        x = x.flatten(0, 1)
        added: Tensor | None = None
        factor: Tensor | None = None
        for block in self._blocks:
            added, factor = _through(block, x, added, factor, shape[0]), block.factor2
        if added is not None:
            x = x + (added if factor is None else added * factor)
        return x.view(shape)[:, -self._eye.patches :]

    def _embedded(self, images: Tensor) -> Tensor:
        """Return what the first block reads: as `VisionTransformer.embedded`, with a product for the convolution."""
        eye, convolution = self._eye, self._eye.patch_embed.proj
        count, colours, height, width = images.shape
        side = convolution.kernel_size[0]
        cut = images.reshape(count, colours, height // side, side, width // side, side).permute(0, 2, 4, 1, 3, 5)
        cut = cut.reshape(count, -1, colours * side * side)
        return eye.placed(functional.linear(cut, convolution.weight.flatten(1), convolution.bias))


def _parts(block: Any) -> tuple[Any, ...]:
    return block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2


def _block(block: Any, adapters: Adapters) -> _Block:
    qkv, out, up, down = (matrix(adapters, part) for part in _parts(block))
    factors = (getattr(scale, "scale_factor", None) for scale in (block.ls1, block.ls2))
    first, second = factors
    return _Block(block.norm1, qkv, out, first, block.norm2, up, down, second, block.attn.heads)


def _through(w: _Block, x: Tensor, added: Tensor | None, factor: Tensor | None, count: int) -> Tensor:
    """Add to `x` what is to be added, and return what is to be added next, times the block's second factor."""
    y = w.qkv.product(rows.layer_norm(x, added, factor, w.norm1))
    query, key, value = y.view(count, len(x) // count, 3, w.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    seen = functional.scaled_dot_product_attention(query, key, value)
    y = w.out.product(seen.transpose(1, 2).reshape(x.shape))
    return w.down.product(w.up.gelu_of_product(rows.layer_norm(x, y, w.factor1, w.norm2)))
