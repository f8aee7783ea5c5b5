"""What a row is told to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manyarms.simulators.base import Task
from manyarms.vector import EpisodeId

#: Where simulators say it, in this order.
_KEYS = ("descriptions", "task_description", "language_instruction")


def text_of(episode: EpisodeId, info: Mapping[str, Any], tasks: Sequence[Task], vary: bool = False) -> str:
    """Return the task in words: as the simulator puts it at the start of the episode, else from its spec."""
    for key in _KEYS if info else ():
        said = info.get(key)
        if isinstance(said, str) and said:
            return said
        if isinstance(said, (list, tuple)) and said:
            return _pick(episode, said, vary)
    named = [task for task in tasks if task.name == episode.task] or (list(tasks) if len(tasks) == 1 else [])
    if named and named[0].descriptions:
        return _pick(episode, named[0].descriptions, vary)
    return (episode.task or (named[0].name if named else "")).replace("_", " ")


def _pick(episode: EpisodeId, texts: Sequence[Any], vary: bool) -> str:
    return str(texts[episode.key[0] % len(texts)] if vary else texts[0])
