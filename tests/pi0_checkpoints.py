"""Folders with a tiny π0: the golden one, with a tokenizer and statistics beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from conftest import REPOSITORY

GOLDEN = REPOSITORY / "tests/data/golden/pi0_tiny"

#: For `manyarms` on the tiny model: a world it can look at, and how.
WORLD = {"image_size": [56, 56], "cameras": ["front", "wrist"]}


def byte_tokenizer(path: Path) -> None:
    """Write a tokenizer that has a token for every byte."""
    vocabulary = {"<pad>": 0, "<eos>": 1, "<bos>": 2}
    vocabulary |= {letter: i + 3 for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.save(str(path))


def statistics(state: int = 32, actions: int = 32) -> dict[str, Any]:
    """Return statistics that change every number."""
    rng = np.random.default_rng(0)

    def of(width: int) -> dict[str, list[float]]:
        mean, std = rng.normal(0, 0.1, width), rng.uniform(0.5, 1.5, width)
        # Not the same on both sides of the mean: or one way of scaling could be taken for another.
        apart = {"q01": -1.3, "q99": 2.1, "min": -1.9, "max": 3.2}
        found = {"mean": mean, "std": std, **{name: mean + count * std for name, count in apart.items()}}
        return {name: numbers.tolist() for name, numbers in found.items()}

    return {"norm_stats": {"state": of(state), "actions": of(actions)}}


def pi0_folder(path: Path, *, prefix: str = "", golden: Path = GOLDEN) -> Path:
    """Copy the golden checkpoint and put beside it what a policy needs; `prefix` goes before every weight's name."""
    shutil.copytree(golden, path, ignore=shutil.ignore_patterns("oracle.npz"))
    for file in path.iterdir():
        file.chmod(0o644)
    if prefix:
        weights = load_file(path / "model.safetensors")
        save_file({f"{prefix}{name}": tensor for name, tensor in weights.items()}, path / "model.safetensors")
    byte_tokenizer(path / "tokenizer.json")
    (path / "norm_stats.json").write_text(json.dumps(statistics()))
    return path
