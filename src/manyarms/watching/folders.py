"""Which folders hold runs, of what kind, newest first; which files of theirs may be shown."""

from __future__ import annotations

from pathlib import Path

from manyarms.errors import ConfigError

TRAINING, EVALUATION = "training", "evaluation"

#: How far below a folder runs are looked for: runs/<name> and runs/<group>/<name>.
DEPTH = 2

_LOOKS = (
    "a training run has metrics.jsonl or run.json, an evaluation has config.json and episodes-0.jsonl; "
    "neither is here or in a folder below"
)
_GIVE = "give the folder that `manyarms train` or `manyarms eval` names at its end (usually runs/<name>), or its parent"


def kind_of(folder: Path) -> str | None:
    """Return what kind of run a folder holds; None: it holds none."""
    if (folder / "metrics.jsonl").is_file() or (folder / "run.json").is_file():
        return TRAINING
    begun = any((folder / "live").glob("*.json"))
    if (folder / "config.json").is_file():
        return EVALUATION if begun or any(folder.glob("episodes-*.jsonl")) else None
    return TRAINING if begun else None


def runs_below(folder: Path) -> list[Path]:
    """Return the runs in a folder, newest first; links that lead out of it do not count."""
    inside = folder.resolve()
    found: list[Path] = []
    level = [folder]
    for _ in range(DEPTH):
        level = [child for parent in level for child in _folders_in(parent) if child.resolve().is_relative_to(inside)]
        found += [child for child in level if kind_of(child)]
        level = [child for child in level if child not in found]
    return sorted(found, key=last_change, reverse=True)


def _folders_in(parent: Path) -> list[Path]:
    try:
        return [child for child in parent.iterdir() if not child.name.startswith(".") and child.is_dir()]
    except OSError:
        return []  # not ours to read


def last_change(folder: Path) -> float:
    """Return when a run last wrote something, in Unix seconds."""
    names = ("metrics.jsonl", "run.json", "config.json", "evaluations.jsonl", "results.json")
    paths = [*(folder / name for name in names), *folder.glob("episodes-*.jsonl"), *(folder / "live").glob("*.json")]
    return max((_changed(path) for path in paths), default=0.0)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def check(folder: Path) -> None:
    """Refuse what is neither a run nor holds some."""
    if not folder.exists():
        raise ConfigError(f"there is no folder {folder}", do=_GIVE)
    if not folder.is_dir():
        raise ConfigError(f"{folder} is a file, not the folder of a run", do=_GIVE)
    if kind_of(folder) is None and not runs_below(folder):
        raise ConfigError(f"{folder} holds no run", why=_LOOKS, do=_GIVE)


def shown_file(folder: Path, parts: list[str]) -> Path | None:
    """Return a file that the page of a run may show; None for anything else, and for links that lead out."""
    if any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
        return None
    match parts:
        case ["live", name] if name.endswith(".jpg"):
            pass
        case ["video" | "videos", *_, name] if name.endswith(".mp4"):
            pass
        case ["report.html"]:
            pass
        case _:
            return None
    try:
        path = folder.joinpath(*parts).resolve(strict=True)
    except (OSError, RuntimeError):  # not there, or links in a circle
        return None
    return path if path.is_file() and path.is_relative_to(folder.resolve()) else None
