"""π0's checkpoints: of openpi, LeRobot or transformers, told apart by their names and brought to transformers' own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from manyarms import trust
from manyarms.errors import ConfigError
from manyarms.policies.checkpoints import CheckpointFolder, Fit, fit

#: Names of openpi (LeRobot's begin with `model.`, too) -> names of transformers, tried in this order.
_RENAMED = (
    (r"^(?:model\.)?(?=paligemma_with_expert\.|state_proj\.|action_(?:in|out)_proj\.|action_time_mlp_)", ""),
    (r"^(state_proj|action_in_proj|action_time_mlp_in|action_time_mlp_out)\.", r"embed_action_time.\1."),
    (r"^paligemma_with_expert\.gemma_expert\.lm_head\.", "model.dit.embed_tokens."),
    (r"^paligemma_with_expert\.gemma_expert\.model\.", "model.dit."),
    (r"^paligemma_with_expert\.paligemma\.(?:language_model\.)?lm_head\.", "model.vlm.language_model.embed_tokens."),
    (r"^paligemma_with_expert\.paligemma\.(?:model\.)?language_model\.(?:model\.)?", "model.vlm.language_model."),
    (r"^paligemma_with_expert\.paligemma\.(?:model\.)?", "model.vlm."),
    (r"^(model\.vlm\.vision_tower\.)vision_model\.", r"\1"),
)

#: The expert reads no words: its table of them is in checkpoints, and is left out.
_UNUSED = "model.dit.embed_tokens.weight"

#: width, layers, inner width, heads, heads of keys, width of a head
_GEMMA = {"gemma_2b": (2048, 18, 16384, 8, 1, 256), "gemma_300m": (1024, 18, 4096, 8, 1, 256)}

_NEEDS = "pip install 'manyarms[vla]'"


def native_name(name: str) -> str:
    """Return what transformers calls a weight of any of the layouts."""
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def layout_of(folder: CheckpointFolder) -> str:
    """Tell whose names a checkpoint uses."""
    names = list(folder.tensors)
    if any(name.startswith("model.paligemma_with_expert.") for name in names):
        return "LeRobot"
    if any(name.startswith("paligemma_with_expert.") for name in names):
        return "openpi"
    return "transformers"


def architecture(folder: CheckpointFolder, horizon: int | None = None) -> Any:
    """Return transformers' config for a folder's, whoever wrote it; what is no π0 is refused.

    `horizon` is how many actions the model gives, which no weight tells: for folders without a config.
    """
    try:
        from transformers import PI0Config
    except ImportError as error:
        raise ConfigError("policy 'pi0' needs transformers with PI0", why=str(error), do=_NEEDS) from error
    with folder.made_by_its_config():
        return _architecture(folder, horizon, PI0Config)


def _architecture(folder: CheckpointFolder, horizon: int | None, kind: Any) -> Any:
    config = folder.config
    told = config.get("model_type") or config.get("type")
    if config.get("pi05") or told in ("pi05", "pi0_fast") or any("time_mlp_in" in n for n in _odd(folder)):
        raise ConfigError(
            f"{folder.path} is a checkpoint of {told or 'pi05'}", why="it has other layers than π0", do="give one of π0"
        )
    if not config and layout_of(folder) == "openpi":
        return _from_variants(_told_by_weights(folder, horizon), kind)
    if config.get("model_type") == "pi0":
        return _of_horizon(kind.from_dict(trust.without_code(config)), horizon)
    if told == "pi0" or "paligemma_variant" in config:
        return _of_horizon(_from_variants(config, kind), horizon)
    if not config:
        raise ConfigError(
            f"there is no {folder.path / 'config.json'}", do="put the checkpoint's own beside its weights"
        )
    raise ConfigError(
        f"{folder.path} is no checkpoint of π0",
        why=f"its config.json says {told or ', '.join(list(config)[:6])}",
        do="see what it is: manyarms policy inspect",
    )


def fit_of(folder: CheckpointFolder, config: Any) -> Fit:
    """Hold a folder's weights against what the model has."""
    with folder.made_by_its_config():
        wanted = {_plain(name): tuple(t.shape) for name, t in _empty(config).state_dict().items()}
    found = {native: folder.tensors[name].shape for native, name in _places(folder).items()}
    return fit(found, wanted)


def load(folder: CheckpointFolder, dtype: torch.dtype, device: str, horizon: int | None = None) -> Any:
    """Return transformers' π0 with the weights of a folder, all of them and no others."""
    config = architecture(folder, horizon)
    with folder.made_by_its_config():
        model = _empty(config)
    names = {_plain(name): name for name in model.state_dict()}
    places = _places(folder)
    fits = fit_of(folder, config)
    if not fits:
        raise ConfigError(
            f"the weights in {folder.path} do not fit its config.json",
            why="; ".join(fits.problems),
            do="manyarms policy inspect tells more",
        )
    sources = {source: native for native, source in places.items()}
    for source, tensor in folder.read(sources):
        _put(model, names[sources[source]], tensor.to(device=device, dtype=dtype))
    return model.to(device).eval()


def random_model(config: Any, dtype: torch.dtype, device: str) -> Any:
    """Return a π0 with weights drawn at random, for measuring."""
    model = _empty(config)
    for name, parameter in model.named_parameters():
        fan_in = parameter.shape[-1] if parameter.dim() > 1 else 0
        scale = 0.5 / max(1, fan_in) ** 0.5 if fan_in else 0.0
        _put(model, name, torch.randn(parameter.shape, dtype=dtype, device=device) * scale)
    return model.to(device).eval()


def _odd(folder: CheckpointFolder) -> list[str]:
    return [name for name in folder.tensors if not re.search(r"action_time_mlp_in\.", name)]


def _places(folder: CheckpointFolder) -> dict[str, str]:
    """Return where each weight lies, by transformers' names; a table of words that is there twice counts once."""
    found: dict[str, str] = {}
    for name in folder.tensors:
        native = native_name(name)
        if native != _UNUSED and not (native in found and "lm_head" in name):
            found[native] = name
    return found


def _of_horizon(config: Any, horizon: int | None) -> Any:
    """Return a config, which must be of as many actions as the option says where that is given."""
    if horizon is not None and horizon != config.chunk_size:
        raise ConfigError(
            f"horizon is {horizon}, but config.json says {config.chunk_size}",
            do="leave horizon out; chunk says how many of them are taken",
        )
    return config


def _told_by_weights(folder: CheckpointFolder, horizon: int | None) -> dict[str, Any]:
    """Return what openpi's config would have said of weights that it saved without one."""
    if horizon is None:
        raise ConfigError(
            f"there is no {folder.path / 'config.json'}",
            why="openpi's training saves none, and weights do not tell how many actions were learnt at once",
            do="horizon: as its training had it (openpi's own: 50)",
        )
    shapes = {native_name(name): tensor.shape for name, tensor in folder.tensors.items()}
    return {
        "paligemma_variant": _variant(shapes, "model.vlm.language_model."),
        "action_expert_variant": _variant(shapes, "model.dit."),
        "action_horizon": horizon,
        "action_dim": shapes.get("embed_action_time.action_in_proj.weight", (0, 32))[1],
    }


def _variant(shapes: dict[str, tuple[int, ...]], prefix: str) -> str:
    """Return which Gemma has the layers that begin with `prefix`."""
    gates = [
        shape for name, shape in shapes.items() if name.startswith(prefix) and name.endswith("mlp.gate_proj.weight")
    ]
    for name, (width, layers, inner, *_) in _GEMMA.items():
        if gates and len(gates) == layers and set(gates) == {(inner, width)}:
            return name
    raise ConfigError(
        f"{prefix}… has {len(gates)} layers {sorted(set(gates))}",
        why=f"without a config.json only {', '.join(_GEMMA)} are known",
        do="put a config.json beside the weights",
    )


def _from_variants(config: dict[str, Any], kind: Any) -> Any:
    """Read a config of openpi or LeRobot, which name sizes by variant."""
    sizes = []
    for key, default in (("paligemma_variant", "gemma_2b"), ("action_expert_variant", "gemma_300m")):
        variant = config.get(key, default)
        if variant not in _GEMMA:
            raise ConfigError(f"{key} is {variant!r}", do=f"known: {', '.join(_GEMMA)}")
        names = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")
        sizes.append(dict(zip((*names, "num_key_value_heads", "head_dim"), _GEMMA[variant], strict=True)))
    made = kind(
        chunk_size=config.get("chunk_size", config.get("action_horizon", 50)),
        max_action_dim=config.get("max_action_dim", config.get("action_dim", 32)),
        max_state_dim=config.get("max_state_dim", config.get("action_dim", 32)),
        num_inference_steps=config.get("num_inference_steps", config.get("num_steps", 10)),
    )
    for part, size in ((made.vlm_config.text_config, sizes[0]), (made.dit_config, sizes[1])):
        for name, value in size.items():
            setattr(part, name, value)
    return made


def _plain(name: str) -> str:
    return name.replace(".vision_tower.vision_model.", ".vision_tower.")


def _empty(config: Any) -> Any:
    """Return the model without memory for its weights, and without what π0 never uses."""
    from transformers import PI0ForConditionalGeneration

    with _weightless():
        model = PI0ForConditionalGeneration(config)
    model.model.dit.embed_tokens = None
    return model


@contextmanager
def _weightless() -> Iterator[None]:
    """Give parameters made meanwhile no memory; buffers, which checkpoints do not hold, are made as ever."""
    plain = nn.Module.register_parameter

    def register(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        plain(module, name, None if parameter is None else nn.Parameter(parameter.to("meta")))

    nn.Module.register_parameter = register  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = plain  # type: ignore[method-assign]


def _put(model: nn.Module, name: str, tensor: torch.Tensor) -> None:
    where, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(where), leaf, nn.Parameter(tensor))
