"""What a folder with other people's weights holds, told by its headers: nothing is loaded to look at it.

A model that reads such folders has a module in `KINDS` with ``looks_like(folder) -> bool`` and ``inspect(folder) ->
Inspection``; neither may import PyTorch before it is asked.
"""

from __future__ import annotations

import importlib
import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyarms.decoding import read_object
from manyarms.errors import ConfigError, ManyarmsError

if TYPE_CHECKING:
    from torch import Tensor

#: Kinds of checkpoints: name of the policy -> the module that knows them.
KINDS = {
    "pi0": "manyarms.policies.pi0.inspection",
    "openvla_oft": "manyarms.policies.openvla_oft.inspection",
}

_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "U8": 1, "I8": 1, "BOOL": 1}
_LFS = b"version https://git-lfs"

#: Bytes of a header, as safetensors itself has it.
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as its file's header describes it."""

    shape: tuple[int, ...]
    dtype: str
    """As safetensors writes it: F32, BF16, …"""
    file: Path

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.count * _BYTES.get(self.dtype, 1)


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder with a config and weights."""

    path: Path
    config: dict[str, Any]
    """``config.json``; empty where there is none."""
    tensors: dict[str, TensorInfo]
    """By the names in the files."""

    @classmethod
    def open(cls, path: str | Path) -> CheckpointFolder:
        """Read a folder's config and the headers of its weights; what is wrong with them is an error that says so."""
        path = Path(path).expanduser()
        if not path.is_dir():
            raise ConfigError(f"there is no folder {path}", do="model_path: a folder with config.json and safetensors")
        return cls(path, read_json(path / "config.json", needed=False), _tensors(path))

    @contextmanager
    def made_by_its_config(self) -> Iterator[None]:
        """Say whose config.json no model could be made of: libraries check little of it, and raise anything."""
        try:
            yield
        except (ManyarmsError, MemoryError):
            raise
        except Exception as error:
            raise ConfigError(
                f"{self.path / 'config.json'} describes no model that can be made",
                why=" ".join(str(error).split())[:300] or type(error).__name__,
                do="get the file again, from where the weights are from",
            ) from error

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield tensors by name, file by file; numbers that are not finite are refused."""
        import torch
        from safetensors import SafetensorError, safe_open

        files: dict[Path, list[str]] = {}
        for name in names:
            files.setdefault(self.tensors[name].file, []).append(name)
        for file, inside in files.items():
            try:
                with safe_open(file, "pt") as opened:
                    for name in inside:
                        tensor = opened.get_tensor(name)
                        if tensor.is_floating_point() and tensor.itemsize == 1:
                            tensor = tensor.float()  # PyTorch computes little with eight bits
                        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                            raise ConfigError(
                                f"{file} is corrupted", why=f"{name} is not finite", do="get the file again"
                            )
                        yield name, tensor
            except (OSError, SafetensorError) as error:
                raise ConfigError(f"{file} cannot be read", why=str(error), do="get the file again") from error

    @property
    def num_parameters(self) -> int:
        return sum(tensor.count for tensor in self.tensors.values())

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors.values())


@dataclass(frozen=True)
class Fit:
    """How the weights that were found suit those that are wanted."""

    missing: list[str]
    unexpected: list[str]
    misshapen: list[str]
    """As sentences: name, shape found, shape wanted."""

    def __bool__(self) -> bool:
        return not (self.missing or self.unexpected or self.misshapen)

    @property
    def problems(self) -> list[str]:
        """What is wrong, a sentence each."""
        groups = (("missing", self.missing), ("unexpected", self.unexpected), ("of another shape", self.misshapen))
        return [f"{len(names)} {what}: {_some(names)}" for what, names in groups if names]


def fit(found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> Fit:
    """Compare names and shapes."""
    return Fit(
        sorted(set(wanted) - set(found)),
        sorted(set(found) - set(wanted)),
        [
            f"{name} {list(found[name])} instead of {list(wanted[name])}"
            for name in sorted(wanted)
            if name in found and tuple(found[name]) != tuple(wanted[name])
        ],
    )


@dataclass(frozen=True)
class Inspection:
    """What `manyarms policy inspect` tells about a folder."""

    kind: str
    """The policy that takes it."""
    facts: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)


def inspect(path: str | Path) -> Inspection:
    """Tell what a folder is, and whether it would load."""
    folder = CheckpointFolder.open(path)
    for module in KINDS.values():
        kind = importlib.import_module(module)
        if kind.looks_like(folder):
            return kind.inspect(folder)
    told = folder.config.get("model_type") or folder.config.get("type") or "no model_type"
    raise ConfigError(
        f"{path} is no checkpoint of {' or '.join(KINDS)}",
        why=f"its config.json says {told}, its first weights are {_some(list(folder.tensors))}",
    )


def read_json(path: Path, *, needed: bool = True) -> dict[str, Any]:
    """Read a JSON object; {} for a file that is not there and not needed."""
    try:
        return read_object(path)
    except FileNotFoundError:
        if not needed:
            return {}
        raise ConfigError(f"there is no {path}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read", why=str(error)) from error


def _tensors(folder: Path) -> dict[str, TensorInfo]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _sharded(folder, index)
    single = folder / "model.safetensors"
    if single.is_file():
        return _header(single)
    beside = sorted(path.name for path in folder.iterdir())
    raise ConfigError(
        f"{folder} holds no model.safetensors",
        why=f"there is {', '.join(beside[:8]) or 'nothing'}",
        do="give the folder of a PyTorch checkpoint in safetensors; those of JAX have to be converted first",
    )


def _sharded(folder: Path, index: Path) -> dict[str, TensorInfo]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ConfigError(f"{index} has no weight_map")
    found: dict[str, TensorInfo] = {}
    strange = [name for name in places.values() if not isinstance(name, str) or Path(name).name != name]
    if strange:
        raise ConfigError(f"{index} names {strange[0]!r:.200}", why="weights lie beside it, by their plain file names")
    for name in sorted(set(places.values())):
        if not (folder / name).is_file():
            raise ConfigError(f"there is no {folder / name}", why=f"{index.name} names it", do="get the file again")
        found |= _header(folder / name)
    lost = sorted(set(places) - set(found))
    if lost:
        raise ConfigError(f"{index} names weights that no file holds", why=_some(lost), do="get the files again")
    return found


def _header(path: Path) -> dict[str, TensorInfo]:
    """Read the header of a safetensors file, and hold the file's size against it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(8)
        if (first + file.read(len(_LFS)))[: len(_LFS)] == _LFS:
            raise ConfigError(f"{path} is a Git LFS pointer, not the weights", do="git lfs pull")
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else size
        if length > size - 8:
            raise ConfigError(
                f"{path} is truncated or no safetensors file",
                why=f"it begins with a header of {length:,} bytes, but has {size:,} in all",
                do="get the file again",
            )
        if length > _LONGEST_HEADER:
            raise ConfigError(f"{path} is no safetensors file", why=f"its header claims to have {length:,} bytes")
        file.seek(8)
        text = file.read(length)
    try:
        entries = {name: entry for name, entry in json.loads(text).items() if name != "__metadata__"}
        tensors = {
            name: TensorInfo(tuple(entry["shape"]), str(entry["dtype"]), path) for name, entry in entries.items()
        }
        ends = {name: tuple(entry["data_offsets"]) for name, entry in entries.items()}
        torn = [n for n, (start, end) in ends.items() if end - start != tensors[n].num_bytes]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is corrupted", why=f"its header: {error}", do="get the file again") from error
    if torn:
        raise ConfigError(f"{path} is corrupted", why=f"{torn[0]} has another size than its shape says")
    wanted = 8 + length + max((end for _, end in ends.values()), default=0)
    if size != wanted:
        what = "truncated" if size < wanted else "corrupted"
        raise ConfigError(
            f"{path} is {what}", why=f"it should have {wanted:,} bytes and has {size:,}", do="get the file again"
        )
    return tensors


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


__all__ = ["KINDS", "CheckpointFolder", "Fit", "Inspection", "TensorInfo", "fit", "inspect", "read_json"]
