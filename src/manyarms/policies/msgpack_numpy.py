"""NumPy in msgpack, in the encoding of openpi's clients and servers.

An array is a map ``{b"__ndarray__": True, b"data": bytes, b"dtype": "<f4", b"shape": [...]}``, a scalar is
``{b"__npgeneric__": True, b"data": number, b"dtype": "<f4"}``. Nothing is pickled: what arrives cannot run code.
Scalars that are Python numbers or strings too (``np.float64``, ``np.str_``) travel as such and lose their dtype.
"""

from __future__ import annotations

import math
import re
from itertools import count
from typing import Any

import msgpack
import numpy as np

_REFUSED_KINDS = "OVc"
_MOST_AXES = 64
_MOST_ITEMS = 1 << 16
"""Of a list or a map; numbers by the million travel as arrays."""
_MOST_CONTAINERS = 1 << 20
"""Lists and maps in all, which take a hundred times as much memory as they have bytes."""

_KNOWN_DTYPE = re.compile(r"[<>|=]?(?:[biufSU]\d{1,9}|[mM]8(?:\[\w+\])?)")


def pack(value: Any) -> bytes:
    """Turn a value into bytes."""
    packed = msgpack.packb(value, default=_encode)
    assert isinstance(packed, bytes)
    return packed


def unpack(data: bytes) -> Any:
    """Turn bytes back into a value; whatever is wrong with them is a ValueError. Arrays are read-only."""
    containers = count(1)

    def counted(value: Any) -> Any:
        if next(containers) > _MOST_CONTAINERS:
            raise ValueError(f"it has more than {_MOST_CONTAINERS} lists and maps")
        return _decode(value) if isinstance(value, dict) else value

    most = min(len(data), _MOST_ITEMS)
    try:
        return msgpack.unpackb(
            data, object_hook=counted, list_hook=counted, ext_hook=_refused, max_array_len=most, max_map_len=most
        )
    except (ValueError, TypeError, LookupError, OverflowError, MemoryError, msgpack.UnpackException) as error:
        raise ValueError(f"this is not msgpack as openpi writes it: {error or type(error).__name__}") from error


def _encode(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"msgpack cannot hold a {type(value).__name__}")
    if value.dtype.kind in _REFUSED_KINDS:
        raise ValueError(f"arrays of dtype {value.dtype} are not sent")
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    plain = value.item()
    if not isinstance(plain, bool | int | float):
        raise ValueError(f"scalars of dtype {value.dtype} are not sent")
    return {b"__npgeneric__": True, b"data": plain, b"dtype": value.dtype.str}


def _decode(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" in value:
        return _array(value[b"data"], _dtype(value[b"dtype"]), value[b"shape"])
    if b"__npgeneric__" in value:
        return _dtype(value[b"dtype"]).type(value[b"data"])
    return value


def _refused(code: int, data: bytes) -> Any:
    raise ValueError(f"extensions such as {code} are not read")


def _array(data: Any, dtype: np.dtype[Any], shape: Any) -> np.ndarray:
    axes = isinstance(shape, list) and len(shape) <= _MOST_AXES and all(type(n) is int and n >= 0 for n in shape)
    if not isinstance(data, bytes) or not axes:
        raise ValueError(f"an array of shape {shape!r:.100} cannot be")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"an array {shape} of {dtype} does not have {len(data)} bytes")
    return np.ndarray(tuple(shape), dtype, data)


def _dtype(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or not _KNOWN_DTYPE.fullmatch(name):
        raise ValueError(f"arrays of dtype {name!r:.100} are not read")
    return np.dtype(name)


__all__ = ["pack", "unpack"]
