"""Files that nobody ever sees half of, and words for those that cannot be written."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from manyarms.errors import ConfigError, DiskError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a place to write to, which becomes `path` once all is written; of what fails nothing is left."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield beside
        beside.replace(path)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a text, or say why that cannot be."""
    try:
        with whole(path) as beside:
            beside.write_text(text)
    except OSError as error:
        raise not_written(path, error) from error


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, or say why that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made", why=str(error), do="choose a place that can be written to, or make room there"
        ) from error


def not_written(path: Path, error: OSError) -> DiskError:
    """Return what to say of a file that could not be written."""
    # What safetensors raises has no number, only words.
    full = error.errno in (errno.ENOSPC, errno.EDQUOT) or os.strerror(errno.ENOSPC) in str(error)
    do = "make room there, then go on with --resume" if full else "choose a place that can be written to"
    return DiskError(f"{path} cannot be written", why=error.strerror or str(error), do=do)
