"""What an OpenVLA-OFT folder is, whether it would load, and what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from manyarms.errors import ConfigError
from manyarms.policies.checkpoints import CheckpointFolder, Inspection
from manyarms.policies.statistics import DATASET_STATISTICS

if TYPE_CHECKING:
    from manyarms.policies.openvla_oft.folder import OftFolder

_RANK = 32
"""Of the adapters whose memory is told."""


def looks_like(folder: CheckpointFolder) -> bool:
    """Tell whether a folder is an OpenVLA's."""
    return folder.config.get("model_type") == "openvla" or "vision_backbone.featurizer.pos_embed" in folder.tensors


def inspect(folder: CheckpointFolder) -> Inspection:
    """Tell about a folder; weights are not read, but for those of the small heads."""
    from manyarms.policies.openvla_oft.folder import OftFolder

    opened = OftFolder(folder.path)
    problems = [f"weights {problem}" for problem in opened.fit().problems]
    facts = [("network", _network(opened)), ("weights", f"{folder.num_bytes / 1e9:.2f} GB in {_files(folder)}")]
    for part in (_heads, _datasets, _words):
        try:
            facts += part(opened)
        except ConfigError as error:
            problems.append(str(error))
    return Inspection("openvla_oft", [*facts, *_memory(opened)], problems, list(_advice(opened, problems)))


def _network(folder: OftFolder) -> str:
    text, vision = folder.config.text_config, " + ".join(folder.config.timm_model_ids)
    layers = f"{text.num_hidden_layers} layers of {text.hidden_size}"
    return f"{folder.files.num_parameters / 1e9:.2f} billion parameters: {vision}, Llama of {layers}"


def _files(folder: CheckpointFolder) -> str:
    files = {tensor.file for tensor in folder.tensors.values()}
    kinds = sorted({tensor.dtype for tensor in folder.tensors.values()})
    return f"{len(files)} file{'s' if len(files) > 1 else ''}, {', '.join(kinds)}"


def _heads(folder: OftFolder) -> list[tuple[str, str]]:
    head, state = folder.action_head(), folder.state_projector()
    regression = "no regression: actions are tokens" if head is None else f"l1, {len(head['model.fc2.bias'])} numbers"
    told = "not used" if state is None else f"{state['fc1.weight'].shape[1]} numbers"
    chunk = folder.setting("num_action_chunks") or "not said in it; 8 unless option chunk says otherwise"
    return [("head", regression), ("proprioception", told), ("actions a chunk", str(chunk))]


def _datasets(folder: OftFolder) -> list[tuple[str, str]]:
    known = folder.datasets
    widths = [len(folder.statistics(key)[1]["action"].need("q01", "q99")[0]) for key in known]
    return [("statistics", ", ".join(f"{key} ({width} numbers)" for key, width in zip(known, widths, strict=True)))]


def _words(folder: OftFolder) -> list[tuple[str, str]]:
    from manyarms.policies.openvla_oft.preprocessing import Prompts

    text = folder.config.text_config
    Prompts(folder.path, text.bos_token_id, text.vocab_size)
    return [("tokenizer", "tokenizer.json")]


def _memory(folder: OftFolder) -> list[tuple[str, str]]:
    """Estimate; what passes hold beside the weights was measured at full size."""
    count, text = folder.files.num_parameters, folder.config.text_config
    tokens = 2 * 256 + 100
    # Bytes a row: what a layer and its MLP hold in bf16, about two and a half times over.
    row = 2.5 * tokens * 2 * (2 * text.intermediate_size + 4 * text.hidden_size)
    adapters = _RANK * 2 * 7 * text.num_hidden_layers * text.hidden_size * 1.5
    # Bytes a decision that is learnt from: what all layers keep for the way back.
    kept = 137.0 * text.hidden_size * text.num_hidden_layers * tokens
    fixed = f"{_gb(2 * count + 16 * adapters)} with lora_rank {_RANK} in bf16, {_gb(16 * count)} without"
    return [
        ("memory, acting", f"{_gb(2 * count)} in bf16, {_gb(4 * count)} in fp32; {_gb(row)} more a row in bf16"),
        ("memory, learning", f"{fixed}; {_gb(kept)} more a decision, {_gb(0.21 * kept)} with gradient_checkpointing"),
    ]


def _gb(count: float) -> str:
    return f"{count / 1e9:.2f} GB"


def _advice(folder: OftFolder, problems: list[str]) -> Iterator[str]:
    if any("tokenizer" in problem for problem in problems):
        yield "put the tokenizer.json of the model's Llama into the folder, or give option tokenizer=PATH"
    if any(DATASET_STATISTICS in problem for problem in problems):
        without = f"without {DATASET_STATISTICS}, actions cannot be turned into the simulator's"
        yield f"{without}: take it from the training run"
    if any("weights" in problem for problem in problems):
        yield "the weights and config.json are of different models: get both from the same place"
    if not problems:
        options = f"model_path={folder.path} unnorm_key={folder.datasets[0]}"
        yield f"manyarms eval SIMULATOR --policy openvla_oft --policy-options {options}"
