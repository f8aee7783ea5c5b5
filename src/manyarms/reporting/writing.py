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
