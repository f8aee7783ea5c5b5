"""Which arrays the arena holds."""

from __future__ import annotations

from gymnasium.vector import AutoresetMode

from manyarms.simulators.base import Spec
from manyarms.vector.config import VectorConfig
from manyarms.workers import words as w


def arena_fields(spec: Spec, config: VectorConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return every array of the arena: name -> dtype and shape of one row."""
    fields: dict[str, tuple[str, tuple[int, ...]]] = {
        "control": ("i4", (w.CONTROL_WORDS,)),
        "status": ("i4", (w.STATUS_WORDS,)),
        "rewards": ("f8", (config.max_chunk,)),
        "timings": ("f8", (w.TIMING_WORDS,)),
        "info": ("u1", (config.info_bytes,)),
    }
    for name, field in spec.actions.items():
        fields[f"actions/{name}"] = (field.dtype, (config.max_chunk, *field.shape))
    for name, field in spec.infos.items():
        fields[f"infos/{name}"] = (field.dtype, field.shape)
    prefixes = ["observations"]
    if config.autoreset_mode is AutoresetMode.SAME_STEP:
        prefixes.append("final")
        fields["final_info"] = ("u1", (config.info_bytes,))
    for prefix in prefixes:
        for name, field in spec.layout().items():
            fields[f"{prefix}/{name}"] = (field.dtype, field.shape)
    if config.render_every:
        frames = -(-config.max_chunk // config.render_every)
        for name, field in spec.observations.items():
            if field.camera:
                fields[f"frames/{name}"] = (field.dtype, (frames, *field.shape))
    return fields
