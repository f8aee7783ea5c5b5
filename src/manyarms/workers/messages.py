"""What each message between the main side and a worker must hold. Both sides check here what they receive.

A message is checked when it arrives: whoever reads it later need not ask again. Loads without numpy, which the worker
may lack.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

from .wire import PROTOCOL, Unreadable

_TEXT = (str,)
_COUNT = (int,)
_NUMBER = (int, float)
_FLAG = (bool,)
_LIST = (list,)
_DICT = (dict,)
_OR_NONE = (type(None),)
_ANY = ()  # type: Tuple[type, ...]

_FAILED = {
    "kind": _TEXT,
    "phase": _TEXT,
    "type": _TEXT,
    "message": _TEXT,
    "task": _TEXT,
    "option": _TEXT,
    "known": _LIST,
    "module": _TEXT,
    "part": _FLAG,
    "traceback": _TEXT,
}

_BUILD = {"simulator": _TEXT, "options": _DICT, "search_path": _LIST}

#: The fields of every message, none of which may be missing, and the types each may have (none given: any).
FIELDS = {
    # From a worker that starts.
    "hello": {"kind": _TEXT, "protocol": _COUNT, "python": _TEXT, "numpy": (str, *_OR_NONE), "message": _TEXT},
    "spec": {"kind": _TEXT, "specs": _LIST, "lockstep": _FLAG},
    "attached": {"kind": _TEXT},
    "failed": _FAILED,
    # To a worker that starts.
    "start": {
        **_BUILD,
        "rows": _COUNT,
        "rename": _DICT,
        "cpus": _LIST,
        "max_episode_steps": (int, *_OR_NONE),
    },
    "plan": {
        "layout": _DICT,
        "rename": _DICT,
        "max_episode_steps": (int, *_OR_NONE),
        "profile": _FLAG,
        "stay_awake": _NUMBER,
        "first_row": _COUNT,
        "rows": _COUNT,
    },
    # Commands, and what they bring.
    "reset": {"task": (str, *_OR_NONE), "seed": _ANY, "init_state": _ANY, "options": (dict, *_OR_NONE)},
    "call": {"method": _TEXT, "args": (tuple, list), "kwargs": _DICT},
    # The nursery's.
    "build": _BUILD,
    "prepared": {"ready": _FLAG},
    "fork": {"env": _DICT, "name": _TEXT},
    "forked": {"pid": _COUNT},
    "reap": {"reap": _COUNT},
}  # type: Dict[str, Mapping[str, Tuple[type, ...]]]

#: A reply holds one or more of these.
_REPLIES = {"result": _ANY, "info": _DICT, "final_info": _DICT, "error": _DICT}

_SPEC = {
    "observations": _DICT,
    "actions": _DICT,
    "infos": _DICT,
    "control_rate": (*_NUMBER, *_OR_NONE),
    "horizon": (int, *_OR_NONE),
    "tasks": _LIST,
    "can_save": _FLAG,
    "partial_reset": _FLAG,
}
_FIELD = {
    "shape": _LIST,
    "dtype": _TEXT,
    "low": (*_NUMBER, bool, list, *_OR_NONE),
    "high": (*_NUMBER, bool, list, *_OR_NONE),
    "space": _TEXT,
    "camera": (str, *_OR_NONE),
    "ragged": _FLAG,
}
_TASK = {"name": _TEXT, "descriptions": _LIST}

#: A process is numbered below this, on any Linux.
_MOST_PIDS = 1 << 22


def check(value: Any, kind: str) -> Dict[str, Any]:
    """Return a message that is as its kind has to be; raise `Unreadable` for others."""
    _check_fields(value, FIELDS[kind], kind)
    if kind in ("forked", "reap") and not 1 < next(iter(value.values())) <= _MOST_PIDS:
        raise Unreadable("%s: there is no process %.40r" % (kind, value))
    for name in ("search_path", "known"):
        _check_texts(value.get(name, ()), name)
    for name in ("env", "rename"):
        _check_texts(value.get(name, {}).values(), name)
        _check_texts(value.get(name, ()), name)
    if kind == "spec":
        for spec in value["specs"]:
            _check_spec(spec)
    return value


def check_from_worker(value: Any, kinds: Tuple[str, ...]) -> Dict[str, Any]:
    """Return a message of a worker that starts, which must be one of `kinds`."""
    kind = value.get("kind") if type(value) is dict else None
    if type(kind) is not str or kind not in kinds:
        raise Unreadable("%s was to come, not %.80r" % (" or ".join(kinds) or "nothing", value))
    if kind == "hello" and type(value.get("protocol")) is int and value["protocol"] != PROTOCOL:
        return value  # what else it holds is for its own version to know
    return check(value, kind)


def check_reply(value: Any, asked: bool) -> Dict[str, Any]:
    """Return a row's reply; one to a call, where something was `asked`, must hold a result or an error."""
    if type(value) is not dict or not value:
        raise Unreadable("a reply is %.80r" % (value,))
    for name, found in value.items():
        types = _REPLIES.get(name)
        if types is None or (types and type(found) not in types):
            raise Unreadable("a reply has %.40r as %.40r" % (found, name))
    if asked and "result" not in value and "error" not in value:
        raise Unreadable("an answer has no result")
    if "error" in value:
        check(value["error"], "failed")
    return value


def check_info(value: Any) -> Dict[str, Any]:
    """Return an info."""
    if type(value) is not dict:
        raise Unreadable("an info is %.80r" % (value,))
    return value


def _check_fields(value: Any, fields: Mapping[str, Tuple[type, ...]], what: str) -> None:
    if type(value) is not dict:
        raise Unreadable("%s: it is %.80r" % (what, value))
    for name, types in fields.items():
        if name not in value or (types and type(value[name]) not in types):
            raise Unreadable("%s: %r is %.80r" % (what, name, value.get(name, "missing")))
    for name in value:
        if name not in fields:
            raise Unreadable("%s: there is no %.80r" % (what, name))


def _check_texts(values: Any, what: str) -> None:
    for value in values:
        if type(value) is not str:
            raise Unreadable("%s: %.80r is no text" % (what, value))


def _check_numbers(values: Any, what: str) -> None:
    for value in values if type(values) is list else [values]:
        if type(value) is list:
            _check_numbers(value, what)
        elif value is not None and type(value) not in (int, float, bool):
            raise Unreadable("%s: %.80r is no number" % (what, value))


def _check_spec(spec: Any) -> None:
    """Check the form of a spec; `Spec` itself says whether it makes sense."""
    _check_fields(spec, _SPEC, "spec")
    for role in ("observations", "actions", "infos"):
        for name, field in spec[role].items():
            what = "%s %.80r" % (role, name)
            _check_texts([name], what)
            _check_fields(field, _FIELD, what)
            for size in field["shape"]:
                if type(size) is not int or not 0 <= size < 1 << 31:
                    raise Unreadable("%s: its shape is %.80r" % (what, field["shape"]))
            for bound in (field["low"], field["high"]):
                _check_numbers(bound, what)
    for task in spec["tasks"]:
        _check_fields(task, _TASK, "task")
        _check_texts(task["descriptions"], "descriptions")
