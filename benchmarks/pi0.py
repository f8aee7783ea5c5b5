"""π0 of full size on a GPU: transformers' own `sample_actions` beside ours, at several batch sizes.

    python benchmarks/pi0.py --out docs/benchmarks

Weights are drawn at random: how long a chunk takes does not depend on them. Both use the same model in bfloat16, are
measured in turn, round after round, from inputs on the GPU to actions on the CPU; medians are reported. How far either
is from transformers in float32 is measured on the same weights.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
import tyro

from manyarms.policies.pi0 import flow
from manyarms.policies.pi0.config import Pi0Options
from manyarms.policies.pi0.fast import Draw, FastPath
from manyarms.policies.pi0.heads import add_adapters
from manyarms.policies.pi0.loading import random_model
from manyarms.policies.pi0.model import Inputs


@dataclass(frozen=True)
class Pi0Benchmark:
    """What to measure."""

    batches: tuple[int, ...] = (1, 8, 32)
    images: int = 3
    prompt: int = 48
    """Tokens of the prompt."""
    steps: int = 10
    """Of denoising."""
    lora_rank: int = 0
    """Of adapters on the language model and the expert; 0: there are none."""
    rounds: int = 9
    compile: bool = True
    tiny: bool = False
    """A small model, to see that the benchmark runs."""
    device: str = "cuda"
    out: Path | None = None
    """A folder for pi0.json and pi0.md."""


def main(config: Pi0Benchmark) -> dict[str, Any]:
    """Measure all batch sizes; print and write the table."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if config.device == "cuda" else torch.float32
    model = random_model(architecture(config.tiny), dtype, config.device)
    if config.lora_rank:
        adapt(model, config.lora_rank)
    found: dict[str, Any] = {
        "config": {name: value for name, value in asdict(config).items() if name != "out"},
        "machine": machine(config.device),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "results": {},
    }
    memory = {rows: peak(model, config, rows) for rows in config.batches}
    fast = FastPath(model, dtype, compiled=config.compile)
    for rows in config.batches:
        result = found["results"][str(rows)] = measured(model, fast, config, rows)
        result["transformers"]["gib"], result["manyarms"]["gib"] = memory[rows], reserved(config.device)
        print(rows, result, flush=True)
    found["accuracy"] = accuracy(model, fast, config)
    if config.out:
        config.out.mkdir(parents=True, exist_ok=True)
        file = config.out / "pi0.json"
        if config.lora_rank:  # beside what was measured without
            found = {**json.loads(file.read_text()), "adapters": found}
        file.write_text(json.dumps(found, indent=1) + "\n")
        (config.out / "pi0.md").write_text(markdown(found))
    print(markdown(found))
    return found


def architecture(tiny: bool) -> Any:
    """Return the config of π0 as published, or of a model that fits anywhere."""
    from transformers import PI0Config

    config: Any = PI0Config()
    if tiny:
        vision = config.vlm_config.vision_config
        config.vlm_config.text_config.vocab_size = 1000
        for part in (config.vlm_config.text_config, config.dit_config, vision):
            part.hidden_size, part.intermediate_size, part.num_hidden_layers = 64, 128, 2
        for part in (config.vlm_config.text_config, config.dit_config):
            part.num_attention_heads, part.head_dim = 2, 32
        vision.num_attention_heads, vision.image_size = 2, 56
        vision.projection_dim = config.vlm_config.projection_dim = config.vlm_config.hidden_size = 64
    return config


def adapt(model: Any, rank: int) -> None:
    """Put adapters on the model as training does, and let them have learnt something."""
    add_adapters(model, Pi0Options("", lora_rank=rank))
    for name, parameter in model.named_parameters():
        if ".lora_B" in name:
            torch.nn.init.normal_(parameter, 0.0, 0.01)


def inputs_for(model: Any, config: Pi0Benchmark, rows: int) -> Inputs:
    """Return random images, words and states; every fourth row has a shorter prompt."""
    side, device = model.config.vlm_config.vision_config.image_size, config.device
    lengths = torch.where(torch.arange(rows, device=device) % 4 == 3, config.prompt // 2, config.prompt)
    return Inputs(
        torch.rand(rows, config.images, 3, side, side, device=device) * 2 - 1,
        torch.ones(rows, config.images, dtype=torch.bool, device=device),
        torch.randint(2, 1000, (rows, config.prompt), device=device),
        torch.arange(config.prompt, device=device) < lengths[:, None],
        torch.randn(rows, model.config.max_state_dim, device=device),
    )


def draw_for(model: Any, config: Pi0Benchmark, noise: torch.Tensor) -> Draw:
    times = flow.times_of(config.steps).to(config.device)
    plain = flow.euler(times[:-1], times[1:])
    shape = (len(noise), config.steps, *noise.shape[1:])
    steps = flow.Coefficients(
        *(one[None, :, None, None].expand(shape) for one in (plain.alpha, plain.beta, plain.gamma))
    )
    return Draw(noise, times, steps, torch.zeros(shape, device=config.device))


def theirs(model: Any, inputs: Inputs, noise: torch.Tensor, steps: int) -> torch.Tensor:
    """Call transformers' own sampler."""
    dtype = model.action_out_proj.weight.dtype
    rows, images = inputs.image_mask.shape
    vision = model.config.vlm_config.vision_config
    places = images * (vision.image_size // vision.patch_size) ** 2
    image_token = model.config.vlm_config.image_token_id
    ids = torch.full((rows, places), image_token, device=noise.device)
    return model.sample_actions(
        state=inputs.state.to(dtype),
        input_ids=torch.cat([ids, inputs.tokens], 1),
        pixel_values=inputs.images.to(dtype),
        noise=noise.to(dtype),
        attention_mask=torch.cat([torch.ones_like(ids, dtype=torch.bool), inputs.token_mask], 1).long(),
        pixel_attention_mask=inputs.image_mask,
        num_steps=steps,
    )


@torch.inference_mode()
def accuracy(model: Any, fast: FastPath, config: Pi0Benchmark) -> dict[str, float]:
    """Return how far actions are from transformers' in float32: theirs in bfloat16, and ours."""
    rows = 4
    inputs = inputs_for(model, config, rows)
    noise = torch.randn(rows, model.config.chunk_size, model.config.max_action_dim, device=config.device)
    low = theirs(model, inputs, noise, config.steps).float()
    ours = fast.draw(inputs, draw_for(model, config, noise))[:, -1]
    model.float()
    exact = theirs(model, inputs, noise, config.steps)
    whole = FastPath(model, torch.float32, compiled=False)
    full = whole.draw(inputs, draw_for(model, config, noise))[:, -1]
    return {
        "moved": float((exact - noise).abs().mean()),
        "transformers": float((low - exact).abs().max()),
        "manyarms": float((ours - exact).abs().max()),
        "manyarms_fp32": float((full - exact).abs().max()),
    }


def measured(model: Any, fast: FastPath, config: Pi0Benchmark, rows: int) -> dict[str, Any]:
    inputs = inputs_for(model, config, rows)
    noise = torch.randn(rows, model.config.chunk_size, model.config.max_action_dim, device=config.device)
    draw = draw_for(model, config, noise)
    peers: dict[str, Callable[[], torch.Tensor]] = {
        "transformers": lambda: theirs(model, inputs, noise, config.steps).float().cpu(),
        "manyarms": lambda: fast.draw(inputs, draw)[:, -1].float().cpu(),
    }
    found: dict[str, Any] = {}
    for name, call in peers.items():
        began = time.perf_counter()
        for _ in range(2):
            call()
        found[name] = {"first_seconds": time.perf_counter() - began}
    spent: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(config.rounds):
        for name, call in peers.items():
            began = time.perf_counter()
            call()
            spent[name].append(time.perf_counter() - began)
    for name, seconds in spent.items():
        found[name]["ms"] = statistics.median(seconds) * 1e3
    found["ratio"] = statistics.median(a / b for a, b in zip(spent["transformers"], spent["manyarms"], strict=True))
    return found


def peak(model: Any, config: Pi0Benchmark, rows: int) -> float:
    """Return the most memory in use during a call of transformers, in GiB."""
    if config.device != "cuda":
        return 0.0
    inputs = inputs_for(model, config, rows)
    noise = torch.randn(rows, model.config.chunk_size, model.config.max_action_dim, device=config.device)
    torch.cuda.reset_peak_memory_stats()
    theirs(model, inputs, noise, config.steps)
    return torch.cuda.max_memory_allocated() / 2**30


def reserved(device: str) -> float:
    """Return the memory that weights and graphs hold for good, in GiB."""
    if device != "cuda":
        return 0.0
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() / 2**30


def machine(device: str) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "CPU"
    versions = f"PyTorch {torch.__version__}, transformers {transformers.__version__}"
    return f"{name}, Python {platform.python_version()}, {versions}"


def markdown(found: dict[str, Any]) -> str:
    """Return the page."""
    config, accurate = found["config"], found["accuracy"]
    size = f"{found['parameters'] / 1e9:.2f} billion parameters"
    lines = [
        "# π0 on a GPU",
        "",
        f"π0 with {size}, weights drawn at random (no published ones were loaded), bfloat16,",
        f"{config['images']} images, {config['prompt']} prompt tokens, {config['steps']} denoising steps, chunks of 50",
        f"actions. {found['machine']}. Medians of {config['rounds']}",
        "rounds, in turn. Made with `python benchmarks/pi0.py --out docs/benchmarks`.",
        "",
        "| batch | transformers, eager | manyarms | ratio, by pairs | chunks/s | memory: transformers | manyarms |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for rows, result in found["results"].items():
        eager, ours = result["transformers"], result["manyarms"]
        lines.append(
            f"| {rows} | {eager['ms']:.1f} ms | {ours['ms']:.1f} ms | {result['ratio']:.1f}× | "
            f"{int(rows) / ours['ms'] * 1e3:.0f} | {eager['gib']:.1f} GiB | {ours['gib']:.1f} GiB |"
        )
    first = max(result["manyarms"]["first_seconds"] for result in found["results"].values())
    bf16, ours, full = (f"{accurate[name]:.2g}" for name in ("transformers", "manyarms", "manyarms_fp32"))
    lines += [
        "",
        "Ours reads the prefix once, joins products that share their input, compiles one layer of each kind and",
        "records the whole chain as one CUDA graph a batch size. The first call of a size takes up to "
        f"{first:.0f} s. Memory: weights and",
        "what is in use at the peak; for ours, weights and all graphs recorded up to this batch size.",
        "",
        "Largest distance of any number of an action from transformers in float32, on these weights (on average,",
        f"actions lie {accurate['moved']:.2f} from the noise they begin as): transformers in bfloat16 {bf16}, ours",
        f"in bfloat16 {ours}, ours in float32 {full}.",
        "",
    ]
    if "adapters" in found:
        lines += with_adapters(found["adapters"])
    return "\n".join(lines)


def with_adapters(found: dict[str, Any]) -> list[str]:
    """Return what the page says of another run, with adapters."""
    config, accurate = found["config"], found["accuracy"]
    times = ", ".join(
        f"{result['transformers']['ms']:.0f} against {result['manyarms']['ms']:.0f} ms at batch {rows} "
        f"({result['ratio']:.1f}×)"
        for rows, result in found["results"].items()
    )
    return [
        f"With adapters of rank {config['lora_rank']} on the language model and the expert (`--lora_rank "
        f"{config['lora_rank']} --rounds {config['rounds']}`), computed beside the weights:",
        f"{times}.",
        f"Distances from float32: transformers {accurate['transformers']:.2g}, ours {accurate['manyarms']:.2g}.",
        "",
    ]


if __name__ == "__main__":
    main(tyro.cli(Pi0Benchmark))
