"""Numbers as people write them: ``3`` and ``0-3``, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable

from manyarms.errors import ConfigError

_RANKS = re.compile(r"(\d+)(?:\s*-\s*(\d+))?", re.ASCII)

#: More than any cluster has; a slip of the finger shall not fill memory.
_HIGHEST = 99_999


def parse_ranks(word: str, where: str) -> range:
    """Read ``3`` or ``0-3``, both ends included."""
    found = _RANKS.fullmatch(word.strip())
    if found is None:
        raise ConfigError(f"{where}: {word!r} cannot be read", do="write a number or a range, such as 3 or 0-3")
    first = int(found[1])
    last = int(found[2] or found[1])
    if last < first:
        raise ConfigError(f"{where}: {word!r} runs backwards", do=f"write {last}-{first}")
    if last > _HIGHEST:
        raise ConfigError(f"{where}: {last} is more than any cluster has", do=f"the highest number is {_HIGHEST}")
    return range(first, last + 1)


def written(ranks: Iterable[int]) -> str:
    """Write numbers in the same way: ``0-3, 6``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
