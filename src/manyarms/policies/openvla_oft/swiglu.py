"""The product of SwiGLU's two matrices and what follows it in one kernel of Triton: neither half is ever written.

For Hopper GPUs and many tokens: with few, the libraries' own kernels cut the work into better pieces.
"""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor  # pyright: ignore[reportMissingImports]

_ROWS, _COLUMNS, _DEPTH = tl.constexpr(128), tl.constexpr(128), tl.constexpr(64)
_GROUP = tl.constexpr(16)


@triton.jit
def _tiles(x, weights, out, rows, width, depth):
    tall, wide = tl.cdiv(rows, _ROWS), tl.cdiv(width, _COLUMNS)
    for tile in tl.range(tl.program_id(0), tall * wide, tl.num_programs(0), flatten=True):
        # Column by column within a group of rows, so that what tiles read is still in the cache.
        first = tile // (_GROUP * wide) * _GROUP
        size = min(tall - first, _GROUP)
        row = (first + tile % (_GROUP * wide) % size) * _ROWS
        column = tile % (_GROUP * wide) // size * _COLUMNS
        both = tl.zeros((_ROWS, 2 * _COLUMNS), tl.float32)
        for step in range(tl.cdiv(depth, _DEPTH)):
            matrix = tl.reshape(weights.load([0, column, step * _DEPTH]), (2 * _COLUMNS, _DEPTH))
            both = tl.dot(x.load([row, step * _DEPTH]), matrix.T, both)
        gate, up = tl.split(tl.permute(tl.reshape(both, (_ROWS, 2, _COLUMNS)), (0, 2, 1)))
        out.store([row, column], (gate * tl.sigmoid(gate) * up).to(out.dtype))


def swiglu(x: Tensor, gate_up: Tensor) -> Tensor:
    """Return silu(x gateᵀ) * (x upᵀ) [rows, width]; `gate_up` has the rows of gate, then those of up."""
    rows, depth = x.shape
    width = len(gate_up) // 2
    out = x.new_empty(rows, width)
    tiles = triton.cdiv(rows, _ROWS.value) * triton.cdiv(width, _COLUMNS.value)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    _tiles[(min(tiles, processors),)](  # pyright: ignore[reportIndexIssue]
        TensorDescriptor.from_tensor(x, [_ROWS.value, _DEPTH.value]),
        TensorDescriptor.from_tensor(gate_up.view(2, width, depth), [2, _COLUMNS.value, _DEPTH.value]),
        TensorDescriptor.from_tensor(out, [_ROWS.value, _COLUMNS.value]),
        rows,
        width,
        depth,
        num_warps=8,
        num_stages=3,
    )
    return out
