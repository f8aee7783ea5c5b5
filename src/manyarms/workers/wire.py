"""What travels between the main side and a worker outside shared memory: frames of JSON with raw arrays behind.

Nothing is pickled, so nothing can fail to unpickle, and the two sides may run different Pythons. Values come back with
the types they had: tuples, numpy scalars and arrays, bytes, NaN. Numpy is imported only when an array turns up, so that
an interpreter without numpy can still say so.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from typing import Any, Dict, List

#: Changes whenever either side would misread the other.
PROTOCOL = 1

# Bytes on the command pipe. One below GROUP names a row of the worker: run the command in its control words.
GROUP = 254
"""All rows of a lock-step group at once."""
MAX_ROWS_PER_WORKER = 250

#: One record on the bell: which row is done, and with which command (the sequence number it was sent with).
RECORD = struct.Struct("<II")

_PLAIN = (bool, int, float, str)
_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<4sI")
_MAGIC = b"arms"


class Disconnected(ConnectionError):
    """The other side has gone."""


def encode(value: Any) -> bytes:
    """Turn a value into bytes."""
    blobs: List[bytes] = []
    text = json.dumps(_pack(value, blobs), separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *blobs])


def decode(data: Any) -> Any:
    """Turn bytes from `encode` back into the value."""
    view = memoryview(data)
    (size,) = _LENGTH.unpack_from(view)
    start = _LENGTH.size
    return _unpack(json.loads(bytes(view[start : start + size])), _Blobs(view[start + size :]))


def _pack(value: Any, blobs: List[bytes]) -> Any:
    """Turn a value into what JSON can hold, exactly; what it cannot is tagged."""
    kind = type(value)
    if value is None or kind in _PLAIN:
        return value
    if kind is list:
        return [_pack(item, blobs) for item in value]
    if isinstance(value, dict):
        if all(type(key) is str and not key.startswith("~") for key in value):
            return {key: _pack(item, blobs) for key, item in value.items()}
        return {"~d": [[_pack(key, blobs), _pack(item, blobs)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"~t": [_pack(item, blobs) for item in value]}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"~b": _blob(bytes(value), blobs)}
    return _pack_foreign(value, blobs)


def _pack_foreign(value: Any, blobs: List[bytes]) -> Any:
    numpy = sys.modules.get("numpy")
    is_numpy = numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))
    if numpy is not None and is_numpy and value.dtype.names is None and not value.dtype.hasobject:
        body = [value.dtype.str, _blob(value.tobytes(), blobs)]
        return {"~n": body} if isinstance(value, numpy.generic) else {"~a": [*body, list(value.shape)]}
    for plain in (*_PLAIN, list):
        if isinstance(value, plain):  # an enum, or another subclass
            return _pack(plain(value), blobs)  # type: ignore[call-arg,arg-type]
    # Anything else is told, not sent: an object of one interpreter means nothing in another.
    return repr(value)[:1000]


def _blob(data: bytes, blobs: List[bytes]) -> List[int]:
    offset = sum(map(len, blobs))
    blobs.append(data)
    return [offset, len(data)]


class _Blobs:
    """Raw data behind the text, each piece used once and in its order: what is decoded is no larger than what came."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._used = data, 0

    def take(self, where: List[int]) -> bytes:
        """Return the next piece."""
        offset, size = where
        if offset != self._used or not 0 <= size <= len(self._data) - offset:
            raise ValueError("there are no %r bytes at %r" % (size, offset))
        self._used += size
        return bytes(self._data[offset : offset + size])


def _unpack(value: Any, blobs: _Blobs) -> Any:
    if isinstance(value, list):
        return [_unpack(item, blobs) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, body),) = value.items()
        if tag == "~t":
            return tuple(_unpack(item, blobs) for item in body)
        if tag == "~b":
            return blobs.take(body)
        if tag == "~d":
            return {_unpack(key, blobs): _unpack(item, blobs) for key, item in body}
        if tag in ("~a", "~n"):
            return _array(body, blobs)
    return {key: _unpack(item, blobs) for key, item in value.items()}


def _array(body: List[Any], blobs: _Blobs) -> Any:
    import numpy

    dtype, shape = numpy.dtype(body[0]), body[2] if len(body) == 3 else ()
    data = blobs.take(body[1])
    if not dtype.itemsize and not shape:  # an empty text, which no buffer holds
        return numpy.zeros(shape, dtype)[()]
    array = numpy.frombuffer(data, dtype).reshape(shape)
    return array.copy() if len(body) == 3 else array[()]


def frame(value: Any) -> bytes:
    """Encode a value behind a head that says how long it is."""
    data = encode(value)
    return _HEAD.pack(_MAGIC, len(data)) + data


def receive(sock: socket.socket) -> Any:
    """Read one frame; what does not begin as one is an error, not a length to wait for."""
    magic, size = _HEAD.unpack(receive_exactly(sock, _HEAD.size))
    if magic != _MAGIC:
        raise ValueError("this is not a frame: %r" % magic)
    return decode(receive_exactly(sock, size))


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    """Read `size` bytes or raise `Disconnected`."""
    parts: List[bytes] = []
    while size:
        part = sock.recv(min(size, 1 << 20))
        if not part:
            raise Disconnected("the other side closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def describe_error(error: BaseException, phase: str) -> Dict[str, Any]:
    """Put an exception into plain values, with the names to choose from where it has some."""
    return {
        "kind": "failed",
        "phase": phase,
        "type": type(error).__name__,
        "message": str(error),
        "task": str(getattr(error, "task", "")),
        "option": str(getattr(error, "option", "")),
        "known": list(getattr(error, "known", ())),
        "module": getattr(error, "name", None) if isinstance(error, ImportError) else None,
        "traceback": _frames(error),
    }


def _frames(error: BaseException) -> str:
    """Return where an exception came from, without the frames of ours that led there."""
    import traceback

    entries = traceback.extract_tb(error.__traceback__)
    here = os.path.dirname(os.path.abspath(__file__))
    theirs = [e for e in entries if os.path.dirname(os.path.abspath(e.filename)) != here and e.filename[0] != "<"]
    return "\n".join('File "%s", line %s, in %s\n  %s' % tuple(entry) for entry in (theirs or entries)[-4:])
