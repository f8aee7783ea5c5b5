"""Files of a run: nobody ever sees half of one, and what others may have written into one is held to be of its kind."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeGuard

from manyarms.decoding import parsed
from manyarms.errors import ConfigError, DiskError

#: Beyond these, sums and squares are no numbers any more, and steps no longer exact in a browser.
_LARGEST, _LARGEST_COUNT = 1e100, 2**53

#: Bytes of a document.
_LONGEST = 64 << 20


# -- writing ----------------------------------------------------------------------------------------------------------


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


def leads_out(path: Path, folder: Path) -> bool:
    """Tell whether a link in a folder, or in one of those below it, leads out of it; one that leads nowhere does."""
    try:
        return path.is_symlink() and not path.resolve(strict=True).is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # links in a circle
        return True


def check_goes_on_inside(folder: Path, *, trusted: str) -> None:
    """Refuse a run's folder of which a part is elsewhere, or no file: somebody else may have made it.

    What is written to such a part would land elsewhere, and what is cleared away there would be gone. `trusted` is
    what lifts this.
    """
    for path in _parts_of(folder):
        links = leads_out(path, folder)
        if links or (path.exists() and not (path.is_file() or path.is_dir())):
            raise ConfigError(
                f"{path} {'is a link that leads out of the folder' if links else 'is no file'}",
                why="a run writes into its folder and removes old files there",
                do=f"remove it; or, if you have made it yourself: {trusted}",
            )


#: Folders within a run's that we write to; trackers keep what they like in others.
_OURS = ("checkpoints", "episodes", "live", "tensorboard", "video", "videos")


def _parts_of(folder: Path) -> Iterator[Path]:
    """Yield what is in a run's folder, and what comes and goes meanwhile; links are not followed."""
    for root, folders, files in os.walk(folder):
        yield from (Path(root, name) for name in (*folders, *files))
        if Path(root) == folder:
            folders[:] = [name for name in folders if name in _OURS]


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


# -- reading ----------------------------------------------------------------------------------------------------------


def content(path: Path) -> bytes:
    """Return what is in a file; what is none, such as a pipe that nobody writes to, is an OSError."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "there is no such file", str(path))
    with path.open("rb") as file:
        return file.read(_LONGEST)


def document(path: Path) -> dict[str, Any]:
    """Return the object in a file; an empty one if there is none, or none yet."""
    try:
        found = parsed(content(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def number(value: object) -> float | None:
    """Return a finite number; None for anything else."""
    return value if isinstance(value, int | float) and -_LARGEST <= value <= _LARGEST else None  # NaN is not between


def is_count(value: object) -> TypeGuard[int]:
    """Return whether this is a number of things."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_COUNT


def words(value: object) -> str | None:
    """Return a text; None for anything else."""
    return value if isinstance(value, str) else None


def read_lines(path: Path, key: str = "step") -> list[dict[str, Any]]:
    """Return the lines of a file that are whole and have a count as their key; none if there is no file."""
    return [line for _, line in _whole_lines(path, key)]


def drop_after(path: Path, step: int) -> None:
    """Cut off the lines of later steps, and whatever was being written when the run ended."""
    if path.exists():
        kept = "".join(f"{text}\n" for text, line in _whole_lines(path, "step") if line["step"] <= step)
        if kept.encode() != path.read_bytes():
            write_atomically(path, kept)


def line_of(text: str | bytes, key: str) -> dict[str, Any] | None:
    """Return the object in a line; None if it was cut short by the end of its run, or is none of ours."""
    try:
        line = parsed(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and is_count(line.get(key)) else None


def _whole_lines(path: Path, key: str) -> list[tuple[str, dict[str, Any]]]:
    if not path.is_file():  # nor a pipe that nobody writes to
        return []
    lines = ((text, line_of(text, key)) for text in path.read_text(errors="replace").split("\n"))
    return [(text, line) for text, line in lines if line is not None]
