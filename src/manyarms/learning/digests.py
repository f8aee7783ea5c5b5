"""Digests of a checkpoint's files: what has changed since it was written is not gone on from."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

from manyarms.decoding import only_file, read_text
from manyarms.errors import ConfigError

PREFIX = "global_step_"

#: In the format of `sha256sum --check`.
_DIGESTS = "SHA256SUMS"
DIGESTED = ("model.safetensors", "optimizer.safetensors", "trainer.json")


def write_digests(folder: Path) -> None:
    """Write down the digests of a checkpoint's files, once all of them are written."""
    lines = [f"{_digest(folder / name)}  {name}\n" for name in DIGESTED]
    (folder / _DIGESTS).write_text("".join(lines))


def check_digests(path: Path, *names: str) -> None:
    """Refuse files of a checkpoint that are not as they were written; earlier versions wrote no digests."""
    bad = _corrupted(path, names)
    if bad:
        before = _sound_before(path)
        raise ConfigError(
            f"{path} is corrupted",
            why=f"{bad} is not as it was written",
            do=f"use the checkpoint before it: {before}" if before else "begin anew, or take another checkpoint",
        )


def _corrupted(path: Path, names: tuple[str, ...]) -> str | None:
    """Return the first of some files that is not what its digest says."""
    sums = path / _DIGESTS
    if not sums.exists():
        return None
    try:
        known = {
            name: digest
            for digest, _, name in (line.partition("  ") for line in read_text(only_file(sums)).splitlines())
        }
        return next((name for name in names if known.get(name) != _digest(path / name)), None)
    except ValueError:
        return _DIGESTS
    except OSError as error:
        raise ConfigError(f"{path} is no checkpoint", why=str(error)) from None


def _sound_before(path: Path) -> Path | None:
    """Return the newest checkpoint beside another, and before it, of which all is as it was written."""
    earlier = [other for other in steps_of(path.parent) if _step(other) < (_step(path) if _is_step(path) else math.inf)]
    for other in reversed(earlier):
        try:
            if other != path and _corrupted(other, DIGESTED) is None:
                return other
        except ConfigError:
            continue
    return None


def _digest(file: Path) -> str:
    with only_file(file).open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def steps_of(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first."""
    return sorted((path for path in folder.glob(f"{PREFIX}*") if _is_step(path)), key=_step)


def _is_step(path: Path) -> bool:
    return path.name.startswith(PREFIX) and path.name[len(PREFIX) :].isdecimal()


def _step(path: Path) -> int:
    return int(path.name[len(PREFIX) :])
