"""What travels between the main side and a worker outside shared memory: frames of JSON with raw arrays behind.

Nothing is pickled, so nothing can fail to unpickle, and the two sides may run different Pythons. Values come back with
the types they had: tuples, numpy scalars and arrays, bytes, NaN. Numpy is imported only when an array turns up, so that
an interpreter without numpy can still say so.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
import time
from typing import Any, Dict, List, Optional

from ..simulators.about import MissingPart

#: Changes whenever either side would misread the other.
PROTOCOL = 2

# Bytes on the command pipe. One below GROUP names a row of the worker: run the command in its control words.
GROUP = 254
"""All rows of a lock-step group at once."""
MAX_ROWS_PER_WORKER = 250

#: One record on the bell: which row is done, and with which command (the sequence number it was sent with).
RECORD = struct.Struct("<II")

#: What a frame may hold. Larger ones are no frames but noise that looks like one, or more than anyone can wait for.
MOST_BYTES = 1 << 30
MOST_TEXT = 1 << 24
"""Of its JSON, arrays and bytes not counted."""
MOST_NESTED = 100

_PLAIN = (bool, int, float, str)
_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<4sI")
_MAGIC = b"arms"

#: Arrays of these travel: truth values, numbers, dates, texts and raw bytes.
_KINDS = "biufcmMSUV"
_DTYPE = re.compile(r"[<>|][biufcmMSUV][0-9]{1,9}(\[[0-9]{0,9}[A-Za-z]{1,2}\])?")

#: What goes wrong inside while bytes are taken for what they are not.
_MISTAKES = (ValueError, TypeError, LookupError, OverflowError, RecursionError, MemoryError, struct.error)


class Disconnected(ConnectionError):
    """The other side has gone."""


class Unreadable(ValueError):
    """What the other side sent is not what it should be."""


def encode(value: Any) -> bytes:
    """Turn a value into bytes."""
    blobs: List[bytes] = []
    text = json.dumps(_pack(value, blobs), separators=(",", ":")).encode()
    if len(text) > MOST_TEXT:
        raise ValueError("too much to send: %d bytes of JSON, and %d are allowed; use arrays" % (len(text), MOST_TEXT))
    return b"".join([_LENGTH.pack(len(text)), text, *blobs])


def decode(data: Any) -> Any:
    """Turn bytes from `encode` back into the value; raise `Unreadable`, and nothing else, for any other bytes."""
    view = memoryview(data)
    try:
        (size,) = _LENGTH.unpack_from(view)
        start = _LENGTH.size
        if size > MOST_TEXT or start + size > len(view):
            raise Unreadable("it is shorter than it says")
        value = json.loads(str(view[start : start + size], "ascii"))
        if type(value) is not dict and type(value) is not list:
            if start + size != len(view):
                raise Unreadable("there are bytes that nothing names")
            return value
        blobs = _Blobs(view[start + size :])
        value = _unpack(value, blobs, 0)
    except Unreadable:
        raise
    except _MISTAKES as error:
        raise Unreadable("%s: %s" % (type(error).__name__, str(error)[:200])) from None
    if blobs.taken != len(blobs.view):
        raise Unreadable("there are bytes that nothing names")
    return value


def _pack(value: Any, blobs: List[bytes], depth: int = 0) -> Any:
    """Turn a value into what JSON can hold, exactly; what it cannot is tagged."""
    kind = type(value)
    if value is None or kind in _PLAIN:
        return value
    depth += 1
    if depth > MOST_NESTED:
        raise ValueError("nested too deeply to be sent: %d levels are allowed" % MOST_NESTED)
    if kind is list:
        return [_pack(item, blobs, depth) for item in value]
    if isinstance(value, dict):
        if all(type(key) is str and not key.startswith("~") for key in value):
            return {key: _pack(item, blobs, depth) for key, item in value.items()}
        return {"~d": [[_pack(key, blobs, depth), _pack(item, blobs, depth)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"~t": [_pack(item, blobs, depth) for item in value]}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"~b": _blob(bytes(value), blobs)}
    return _pack_foreign(value, blobs)


def _pack_foreign(value: Any, blobs: List[bytes]) -> Any:
    numpy = sys.modules.get("numpy")
    is_numpy = numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))
    if numpy is not None and is_numpy and _travels(value):
        body = [value.dtype.str, _blob(value.tobytes(), blobs)]
        return {"~n": body} if isinstance(value, numpy.generic) else {"~a": [*body, list(value.shape)]}
    for plain in (*_PLAIN, list):
        if isinstance(value, plain):  # an enum, or another subclass
            return _pack(plain(value), blobs)  # type: ignore[call-arg,arg-type]
    # Anything else is told, not sent: an object of one interpreter means nothing in another.
    return repr(value)[:1000]


def _travels(array: Any) -> bool:
    dtype = array.dtype
    return dtype.kind in _KINDS and dtype.names is None and bool(dtype.itemsize or not array.shape)


def _blob(data: bytes, blobs: List[bytes]) -> List[int]:
    offset = sum(map(len, blobs))
    blobs.append(data)
    return [offset, len(data)]


class _Blobs:
    """The bytes behind the text. Each is named once, in order: so a value is never larger than its message."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.taken = 0

    def take(self, place: Any) -> memoryview:
        offset, size = place
        if type(offset) is not int or type(size) is not int or offset != self.taken:
            raise Unreadable("its bytes are not where they should be")
        if not 0 <= size <= len(self.view) - offset:
            raise Unreadable("it is shorter than it says")
        self.taken += size
        return self.view[offset : offset + size]


def _unpack(value: Any, blobs: _Blobs, depth: int) -> Any:
    """Turn a list or dict of JSON back into what was packed."""
    depth += 1
    if depth > MOST_NESTED:
        raise Unreadable("it is nested too deeply")
    if type(value) is list:
        return [_unpack(v, blobs, depth) if type(v) is dict or type(v) is list else v for v in value]
    if len(value) == 1:
        ((tag, body),) = value.items()
        if tag[:1] == "~":
            return _untag(tag, body, blobs, depth)
    return {k: _unpack(v, blobs, depth) if type(v) is dict or type(v) is list else v for k, v in value.items()}


def _untag(tag: str, body: Any, blobs: _Blobs, depth: int) -> Any:
    if type(body) is not list:
        raise Unreadable("what is tagged %.8s is no list" % tag)
    if tag == "~t":
        return tuple(_unpack(body, blobs, depth - 1))
    if tag == "~b":
        return bytes(blobs.take(body))
    if tag == "~d":
        return dict(_unpack(body, blobs, depth - 1))
    if tag == "~a":
        dtype, place, shape = body
        return _array(dtype, blobs.take(place), shape).copy()
    if tag == "~n":
        dtype, place = body
        return _array(dtype, blobs.take(place), [])[()]
    raise Unreadable("there is no tag %.8s" % tag)


def _array(name: str, data: memoryview, shape: List[int]) -> Any:
    import numpy

    if not _DTYPE.fullmatch(name):
        raise Unreadable("arrays of %.20r do not travel" % (name,))
    dtype, size = numpy.dtype(name), 1
    for n in shape:
        if type(n) is not int or n < 0:
            raise Unreadable("an array has the shape %.80r" % (shape,))
        size *= n
    if not dtype.itemsize and not shape:
        return numpy.zeros(shape, dtype)  # an empty text, which has a byte or four all the same
    if size * dtype.itemsize != len(data) or not dtype.itemsize:
        raise Unreadable("an array has %d bytes where its shape asks for %d" % (len(data), size * dtype.itemsize))
    if not data:
        return numpy.zeros(shape, dtype)  # numpy reads nothing from an empty buffer
    return numpy.frombuffer(data, dtype).reshape(shape)


def frame(value: Any) -> bytes:
    """Encode a value behind a head that says how long it is."""
    data = encode(value)
    if len(data) > MOST_BYTES:
        raise ValueError("too much to send at once: %d bytes, and %d are allowed" % (len(data), MOST_BYTES))
    return _HEAD.pack(_MAGIC, len(data)) + data


def take_frame(heard: bytearray) -> Optional[bytes]:
    """Take the first message out of what was heard so far, or None while it is not whole."""
    if not _MAGIC.startswith(bytes(heard[: len(_MAGIC)])):
        raise Unreadable("it does not begin as a message does: %r" % bytes(heard[:20]))
    if len(heard) < _HEAD.size:
        return None
    end = _HEAD.size + _size_of(heard)
    if len(heard) < end:
        return None
    data = bytes(memoryview(heard)[_HEAD.size : end])
    del heard[:end]
    return data


def _size_of(head: Any) -> int:
    magic, size = _HEAD.unpack_from(head)
    if magic != _MAGIC:
        raise Unreadable("it does not begin as a message does: %r" % bytes(head[:20]))
    if size > MOST_BYTES:
        raise Unreadable("it says that %d bytes follow, and %d are allowed" % (size, MOST_BYTES))
    return size


def receive(sock: socket.socket, seconds: Optional[float] = None) -> Any:
    """Read one message, in `seconds` or raise `TimeoutError`."""
    deadline = None if seconds is None else time.monotonic() + seconds
    return decode(receive_exactly(sock, _size_of(receive_exactly(sock, _HEAD.size, deadline)), deadline))


def receive_exactly(sock: socket.socket, size: int, deadline: Optional[float] = None) -> bytes:
    """Read `size` bytes or raise `Disconnected`; `TimeoutError` when the deadline passes first."""
    parts: List[bytes] = []
    while size:
        if deadline is not None:
            sock.settimeout(max(1e-6, deadline - time.monotonic()))
        part = sock.recv(min(size, 1 << 20))
        if not part:
            raise Disconnected("the other side closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def describe_error(error: BaseException, phase: str) -> Dict[str, Any]:
    """Put an exception into plain values, with the names to choose from where it has some."""
    known = getattr(error, "known", ())
    return {
        "kind": "failed",
        "phase": phase,
        "type": type(error).__name__,
        "message": str(error),
        "task": str(getattr(error, "task", "")),
        "option": str(getattr(error, "option", "")) or _unexpected_argument(error),
        "known": [str(name) for name in known] if isinstance(known, (list, tuple)) else [],
        "module": str(error.name or "") if isinstance(error, ImportError) else "",
        "part": isinstance(error, MissingPart),
        "traceback": _frames(error),
    }


def _unexpected_argument(error: BaseException) -> str:
    """Return the keyword that a call was refused for, which Python tells in words only."""
    found = re.search(r"unexpected keyword argument '(\w+)'", str(error)) if isinstance(error, TypeError) else None
    return found.group(1) if found else ""


def _frames(error: BaseException) -> str:
    """Return where an exception came from, without the frames of ours that led there."""
    import traceback

    entries = traceback.extract_tb(error.__traceback__)
    here = os.path.dirname(os.path.abspath(__file__))
    theirs = [e for e in entries if os.path.dirname(os.path.abspath(e.filename)) != here and e.filename[0] != "<"]
    return "\n".join('File "%s", line %s, in %s\n  %s' % tuple(entry) for entry in (theirs or entries)[-4:])
