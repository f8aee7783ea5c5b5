"""Two vision transformers side by side, DINOv2 with registers and SigLIP, with the parameter names of timm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from manyarms.errors import ConfigError, did_you_mean

_EPSILON = 1e-6


@dataclass(frozen=True)
class VitShape:
    """What a vision transformer is made of."""

    patch: int
    dim: int
    depth: int
    heads: int
    mlp: int
    registers: int = 0
    class_token: bool = False
    layer_scale: bool = False
    pooled: bool = False
    """Whether it has a pooling head; it is not used here, but its weights are in checkpoints."""


#: By timm's names; the last two are those of the small checkpoints that tests load.
SHAPES = {
    "vit_large_patch14_reg4_dinov2.lvd142m": VitShape(14, 1024, 24, 16, 4096, 4, class_token=True, layer_scale=True),
    "vit_so400m_patch14_siglip_224": VitShape(14, 1152, 27, 16, 4304, pooled=True),
    "tinytest_dino": VitShape(56, 32, 3, 2, 128, 4, class_token=True, layer_scale=True),
    "tinytest_siglip": VitShape(56, 48, 3, 2, 192, pooled=True),
}


def shape_of(name: str) -> VitShape:
    """Return the shape of a vision transformer by its name in a checkpoint's config."""
    if name not in SHAPES:
        raise ConfigError(f"there is no vision transformer {name!r}", do=did_you_mean(name, SHAPES))
    return SHAPES[name]


class _Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, dim = x.shape
        query, key, value = self.qkv(x).view(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(query, key, value)
        return self.proj(seen.transpose(1, 2).reshape(rows, tokens, dim))


class _Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(functional.gelu(self.fc1(x)))


class _LayerScale(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.full((dim,), 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_factor


class VitBlock(nn.Module):
    """Attention and an MLP, each after a norm and added to what came in."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.dim, eps=_EPSILON)
        self.attn = _Attention(shape.dim, shape.heads)
        self.ls1 = _LayerScale(shape.dim) if shape.layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(shape.dim, eps=_EPSILON)
        self.mlp = _Mlp(shape.dim, shape.mlp)
        self.ls2 = _LayerScale(shape.dim) if shape.layer_scale else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class _Patches(nn.Module):
    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, shape.dim, shape.patch, stride=shape.patch)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)


class _Pool(nn.Module):
    """SigLIP's pooling head: only its weights are wanted, so that a checkpoint is read whole."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.latent = nn.Parameter(torch.zeros(1, 1, shape.dim))
        self.q = nn.Linear(shape.dim, shape.dim)
        self.kv = nn.Linear(shape.dim, 2 * shape.dim)
        self.proj = nn.Linear(shape.dim, shape.dim)
        self.norm = nn.LayerNorm(shape.dim, eps=_EPSILON)
        self.mlp = _Mlp(shape.dim, shape.mlp)


class VisionTransformer(nn.Module):
    """From images to what the second-to-last block makes of their patches, without a norm."""

    def __init__(self, shape: VitShape, image_side: int) -> None:
        super().__init__()
        self.dim, self.patches = shape.dim, (image_side // shape.patch) ** 2
        self.patch_embed = _Patches(shape)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, shape.dim)) if shape.class_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, shape.registers, shape.dim)) if shape.registers else None
        self.pos_embed = nn.Parameter(torch.zeros(1, self.patches, shape.dim))
        self.blocks = nn.ModuleList([VitBlock(shape) for _ in range(shape.depth)])
        self.norm = nn.LayerNorm(shape.dim, eps=_EPSILON)
        self.attn_pool = _Pool(shape) if shape.pooled else None
        # They have no part in what comes out: nothing may wait for their gradients.
        for unused in (self.blocks[-1], self.norm, self.attn_pool):
            if unused is not None:
                unused.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:  # [images, 3, side, side] -> [images, patches, dim]
        x = self.embedded(images)
        for block in list(self.blocks)[:-1]:
            x = block(x)
        return x[:, -self.patches :]

    def embedded(self, images: Tensor) -> Tensor:
        """Return what the first block reads: class and register tokens, then patches with their places."""
        return self.placed(self.patch_embed(images))

    def placed(self, patches: Tensor) -> Tensor:
        """Add to patches where they are, and put class and register tokens before them."""
        x = patches + self.pos_embed
        prefix = [token.expand(len(x), -1, -1) for token in (self.cls_token, self.reg_token) if token is not None]
        return torch.cat([*prefix, x], 1)


class VisionBackbone(nn.Module):
    """Both transformers on every image, their features joined patch by patch; images one after the other."""

    def __init__(self, names: Sequence[str], sides: Sequence[int], activations: Sequence[Any] = ()) -> None:
        super().__init__()
        if len(names) != 2 or any(activations):
            raise ConfigError(
                f"the vision backbone is {', '.join(names)} with activations {list(activations)}",
                why="only two fused transformers with their own activations are known (dinosiglip)",
            )
        self.featurizer = VisionTransformer(shape_of(names[0]), sides[0])
        self.fused_featurizer = VisionTransformer(shape_of(names[1]), sides[1])
        if self.featurizer.patches != self.fused_featurizer.patches:
            raise ConfigError(f"{names[0]} and {names[1]} do not cut images into as many patches")
        self.dim = self.featurizer.dim + self.fused_featurizer.dim
        self.patches = self.featurizer.patches

    def forward(self, pixels: Tensor) -> Tensor:
        """Take [rows, 6 an image, side, side], return [rows, patches of all images, dim]."""
        rows, channels, *side = pixels.shape
        images = pixels.reshape(rows * channels // 6, 6, *side)
        features = torch.cat([self.featurizer(images[:, :3]), self.fused_featurizer(images[:, 3:])], -1)
        return features.reshape(rows, -1, self.dim)
