"""What a folder with a checkpoint of π0 holds, whether it would load, and what it will need."""

from __future__ import annotations

import re
from pathlib import Path

from manyarms.errors import ConfigError
from manyarms.policies.checkpoints import CheckpointFolder, Inspection
from manyarms.vector.memory import pretty

#: Of openpi's own training, for folders that do not tell.
_ASSUMED_HORIZON = 50


def looks_like(folder: CheckpointFolder) -> bool:
    """Tell whether a folder is of π0 or of a relative of it."""
    told = str(folder.config.get("model_type") or folder.config.get("type") or "")
    return bool(re.fullmatch(r"pi0\w*", told)) or any("paligemma_with_expert." in name for name in folder.tensors)


def inspect(folder: CheckpointFolder) -> Inspection:
    """Read config, names, statistics and tokenizer; load nothing."""
    from manyarms.policies.pi0 import loading

    facts = [("what", "a checkpoint of π0"), ("layout", f"{loading.layout_of(folder)}'s names")]
    problems, advice = [], []
    try:
        config = loading.architecture(folder, None if folder.config else _ASSUMED_HORIZON)
        fits = loading.fit_of(folder, config)
        chunks = f"chunks of {config.chunk_size}" if folder.config else "chunks of any length"
        facts.append(("actions", f"{chunks}, up to {config.max_action_dim} numbers each"))
        facts.append(("state", f"up to {config.max_state_dim} numbers"))
        side = config.vlm_config.vision_config.image_size
        facts.append(("images", f"{side}×{side}; others are scaled, with their shape kept"))
        facts.append(("denoising", f"{config.num_inference_steps} steps"))
        facts.append(("weights", "all there, none too many" if fits else "; ".join(fits.problems)))
        problems += [f"weights do not fit config.json: {problem}" for problem in fits.problems]
    except ConfigError as error:
        problems.append(str(error))
    _add_statistics(folder, facts, problems, advice)
    _add_tokenizer(folder.path, facts, problems, advice)
    _add_memory(folder, facts)
    if not problems:
        length = "" if folder.config else f" horizon={_ASSUMED_HORIZON}"
        advice.insert(0, f"manyarms eval SIMULATOR --policy pi0 --policy-options model_path={folder.path}{length}")
    if not folder.config:
        advice.append("there is no config.json: say how many actions it was trained to give at once (horizon)")
    return Inspection("pi0", facts, problems, advice)


def _add_statistics(
    folder: CheckpointFolder, facts: list[tuple[str, str]], problems: list[str], advice: list[str]
) -> None:
    from manyarms.policies.pi0.units import NORMALISATIONS, load_statistics, statistics_file, told_kinds

    path = folder.path
    try:
        told = told_kinds(folder)
        facts.append(("scaled by", ", ".join(f"{kind} ({field})" for field, kind in told.items())))
        file = statistics_file(path)
        if file is None:
            problems.append("there is no norm_stats.json")
            advice.append("give the statistics it was trained with (norm_stats: PATH), or say normalise: none")
            return
        found = load_statistics(file)
    except ConfigError as error:
        problems.append(str(error))
        return
    sizes = [f"{name} of {len(next(iter(value.to_json().values())))} numbers" for name, value in found.items()]
    known = found["actions"].to_json()
    kinds = [kind for kind, how in NORMALISATIONS.items() if known.keys() >= set(how.needs)]
    facts.append(("statistics", f"{', '.join(sizes)} ({file.relative_to(path)}): normalise: {' or '.join(kinds)}"))


def _add_tokenizer(path: Path, facts: list[tuple[str, str]], problems: list[str], advice: list[str]) -> None:
    if (path / "tokenizer.json").is_file():
        facts.append(("tokenizer", "tokenizer.json"))
        return
    problems.append("there is no tokenizer.json")
    advice.append("give PaliGemma's tokenizer.json (tokenizer: PATH); nothing is downloaded")


def _add_memory(folder: CheckpointFolder, facts: list[tuple[str, str]]) -> None:
    count = folder.num_parameters
    facts.append(("parameters", f"{count / 1e6:,.1f} million, {pretty(folder.num_bytes)} on disk"))
    facts.append(
        ("memory to act", f"{pretty(2 * count)} in bf16, {pretty(4 * count)} in fp32, once for all environments")
    )
    # Weights, gradient and two moments of Adam in float32, and weights in bfloat16 to act with.
    facts.append(("memory to learn", f"{pretty(18 * count)} for all weights, without activations; less with lora_rank"))
