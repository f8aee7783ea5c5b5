"""How fast full-size OpenVLA-OFT gives chunks on one GPU, as its authors' code does it and as ours does.

    python benchmarks/openvla_oft.py --out docs/benchmarks/openvla_oft.json

It takes a GPU with 50 GB. Weights are random: nothing is downloaded.

All variants use the same weights in bfloat16 and go from normalised pixels and token ids on the GPU to actions on the
CPU. They are measured in turn, several rounds, and medians are compared.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from manyarms.policies.openvla_oft.adapters import add_adapters
from manyarms.policies.openvla_oft.fast import FusedNetwork, short_floats
from manyarms.policies.openvla_oft.heads import L1Head, StateProjector
from manyarms.policies.openvla_oft.model import OpenVlaConfig, OpenVlaModel, Sequence, text_ids
from manyarms.policies.openvla_oft.replay import Replayed

CHUNK, WIDTH, STATE, IMAGES, PROMPT = 8, 7, 8, 2, 32
SLOTS = CHUNK * WIDTH
FULL = {
    "timm_model_ids": ("vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"),
    "text_config": {"vocab_size": 32064, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6},  # Llama-2-7B
}
TINY = {
    "timm_model_ids": ("tinytest_dino", "tinytest_siglip"),
    "text_config": {"vocab_size": 32064, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    | {"num_attention_heads": 2, "num_key_value_heads": 2},
}

Variant = Callable[[Tensor, list[list[int]], Tensor], Tensor]


class Subject:
    """The network with random weights, and its head."""

    def __init__(self, settings: dict[str, Any], device: str) -> None:
        torch.manual_seed(0)
        config = OpenVlaConfig(**{**settings, "text_config": dict(settings["text_config"])})
        with torch.device("meta"):
            self.network = OpenVlaModel(config)
        self.network.bfloat16().to_empty(device=device)
        self.network.place_positions()
        width = config.text_config.hidden_size
        self.head = L1Head(width, CHUNK, WIDTH, width, -2.5).to(device)
        self.projector = StateProjector(STATE, width).to(device, torch.bfloat16)
        for name, parameter in self.network.named_parameters():
            one = "norm" in name and name.endswith("weight")
            nn.init.ones_(parameter) if one else nn.init.normal_(parameter, 0.0, 0.02)
        for part in (self.network, self.head, self.projector):
            part.eval()
        self.device = device

    def example(self, rows: int, ragged: bool = False) -> tuple[Tensor, list[list[int]], Tensor]:
        """Return pixels, prompts and states."""
        generator = torch.Generator(self.device).manual_seed(rows)
        pixels = torch.randn(rows, 6 * IMAGES, 224, 224, device=self.device, generator=generator).bfloat16()
        lengths = [PROMPT - (row % 7 if ragged else 0) for row in range(rows)]
        prompts = [[1, *range(100, 98 + length), 29871] for length in lengths]
        return pixels, prompts, torch.rand(rows, STATE, device=self.device, generator=generator) * 2.0 - 1.0

    # -- as the authors' code does it ---------------------------------------------------------------------------------

    def plain(self, pixels: Tensor, prompts: list[list[int]], state: Tensor) -> Tensor:
        """Eager: images one after the other, an explicit mask, all hidden states, logits of every token."""
        network = self.network
        vision, llama = network.vision_backbone, network.language_model
        seen = []
        for image in pixels.split(6, 1):
            seen.append(torch.cat([vision.featurizer(image[:, :3]), vision.fused_featurizer(image[:, 3:])], 2))
        ids, _ = text_ids(prompts, SLOTS)
        ids = ids.to(self.device)
        text = llama.model.embed_tokens(ids.clamp(min=0)) * (ids >= 0)[..., None]
        images = network.projector(torch.cat(seen, 1))
        hidden = torch.cat([text[:, :1], images, self.projector(state.bfloat16()), text[:, 1:]], 1)
        mask = torch.zeros(len(hidden), 1, hidden.shape[1], hidden.shape[1], device=self.device, dtype=hidden.dtype)
        found = llama(inputs_embeds=hidden, attention_mask=mask, output_hidden_states=True, use_cache=True)
        states = found.hidden_states[-1][:, -SLOTS - 2 : -2]
        return self.head.sample(states, None)[0].cpu()

    def one_by_one(self, pixels: Tensor, prompts: list[list[int]], state: Tensor) -> Tensor:
        """As `plain`, an observation at a time: the authors' code takes no more."""
        rows = range(len(pixels))
        return torch.cat([self.plain(pixels[i : i + 1], prompts[i : i + 1], state[i : i + 1]) for i in rows])

    # -- ours ---------------------------------------------------------------------------------------------------------

    def through(self, forward: Callable[..., Tensor]) -> Variant:
        """Return a variant that runs a pass of ours."""

        def variant(pixels: Tensor, prompts: list[list[int]], state: Tensor) -> Tensor:
            ragged = len({len(prompt) for prompt in prompts}) > 1
            ids, lengths = text_ids(prompts, SLOTS, PROMPT)
            sequence = Sequence(ids.to(self.device), lengths.to(self.device), SLOTS, ragged)
            states = forward(pixels, sequence, self.projector(state.bfloat16()))
            with short_floats():
                return self.head.sample(states, None)[0].cpu()

        return variant

    def operations(self) -> float:
        """Return how many operations a chunk takes at least: two a weight and token."""
        eyes = (self.network.vision_backbone.featurizer, self.network.vision_backbone.fused_featurizer)
        used = sum(p.numel() for eye in eyes for block in list(eye.blocks)[:-1] for p in block.parameters())
        layers = sum(p.numel() for layer in self.network.layers for p in layer.parameters())
        patches = IMAGES * self.network.vision_backbone.patches
        projector = sum(p.numel() for p in self.network.projector.parameters())
        return 2.0 * ((used + projector) * patches + layers * (patches + 1 + PROMPT + SLOTS + 1))


def seconds(variant: Variant, example: Any, least: float) -> float:
    """Return the time of a call, over calls that take `least` together."""
    calls, began = 0, time.perf_counter()
    while True:
        variant(*example)  # ends with a copy to the CPU: nothing is left running
        calls += 1
        spent = time.perf_counter() - began
        if spent > least:
            return spent / calls


def gigabytes(device: str) -> float:
    return torch.cuda.max_memory_reserved() / 1e9 if device == "cuda" else 0.0


def ours(subject: Subject, **options: bool) -> tuple[Variant, FusedNetwork]:
    """Return the pass that acting uses."""
    gpu = subject.device == "cuda"
    fused = FusedNetwork(subject.network, compiled=gpu, **options)
    return subject.through(Replayed(fused) if gpu else fused), fused


def remembered(variant: Variant, example: Any, device: str) -> tuple[Tensor, float]:
    """Return an answer, and the memory that it took."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    variant(*example)
    return variant(*example), gigabytes(device)


def difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


@torch.inference_mode()
def measured(subject: Subject, batches: list[int], rounds: int, least: float) -> list[dict[str, Any]]:
    """Measure every variant at every batch size."""
    found = []
    wide, fused = ours(subject)
    for rows in batches:
        example, ragged = subject.example(rows), subject.example(rows, ragged=True)
        cases: dict[str, tuple[Variant, Any]] = {"eager": (subject.plain, example), "ours": (wide, example)}
        if rows > 1:
            cases["ours, ragged prompts"] = (wide, ragged)
        cases["eager, one by one"] = (subject.one_by_one, example)
        answers = {name: remembered(*case, subject.device) for name, case in cases.items()}
        cases["ours, fp8"] = (ours(subject, eight_bits=True)[0], example)
        answers["ours, fp8"] = remembered(*cases["ours, fp8"], subject.device)
        times: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(rounds):
            for name, (variant, inputs) in cases.items():
                times[name].append(seconds(variant, inputs, least))
        for name in cases:
            took = statistics.median(times[name])
            answer, memory = answers[name]
            compared = name in ("ours", "ours, fp8")
            line = {
                "batch": rows,
                "variant": name,
                "ms": 1e3 * took,
                "chunks_per_s": rows / took,
                "teraflops": subject.operations() * rows / took / 1e12,
                "gigabytes": memory,
                "difference": difference(answer, answers["eager"][0]) if compared else None,
            }
            found.append(line)
            print(json.dumps(line), flush=True)
        cases.clear()  # and with them the weights in eight bits
        variant = None
        gc.collect()
    fused.release()
    return found


@torch.inference_mode()
def adapted(subject: Subject, batches: list[int], rounds: int, least: float) -> list[dict[str, Any]]:
    """Measure acting with adapters, which `learnt` has put there, beside the same network run plainly."""
    found = []
    fast, fused = ours(subject)
    plain = subject.through(subject.network)
    for rows in batches:
        example = subject.example(rows)
        answers = [variant(*example) for variant in (plain, fast)]
        times: dict[Variant, list[float]] = {plain: [], fast: []}
        for _ in range(rounds):
            for variant, spent in times.items():
                spent.append(seconds(variant, example, least))
        both = [1e3 * statistics.median(spent) for spent in times.values()]
        found.append({"batch": rows, "eager_ms": both[0], "ours_ms": both[1], "difference": difference(*answers)})
        print(json.dumps(found[-1]), flush=True)
    fused.release()
    return found


def learnt(subject: Subject, batches: list[int], rounds: int) -> list[dict[str, Any]]:
    """Measure a step of learning with adapters of rank 32: a pass forward, one back, one of AdamW."""
    add_adapters(subject.network, 32, None)
    learning = [p for part in (subject.network, subject.head) for p in part.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=1e-5)
    found = []
    for rows in batches:
        subject.network.checkpointing = rows > 1
        pixels, prompts, state = subject.example(rows)
        ids, lengths = (tensor.to(subject.device) for tensor in text_ids(prompts, SLOTS))
        if subject.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(rounds + 1):
            began = time.perf_counter()
            states = subject.network(pixels, Sequence(ids, lengths, SLOTS, False), subject.projector(state.bfloat16()))
            log_probs, _ = subject.head.evaluate(states, torch.zeros(rows, CHUNK, WIDTH, device=subject.device))
            (-log_probs.mean()).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            float(log_probs.detach().mean())
            times.append(time.perf_counter() - began)
        how = "LoRA 32, checkpointing" if rows > 1 else "LoRA 32"
        found.append({"batch": rows, "how": how, "ms": 1e3 * statistics.median(times[1:])})
        found[-1]["gigabytes"] = gigabytes(subject.device)
        print(json.dumps(found[-1]), flush=True)
    return found


def table(found: list[dict[str, Any]]) -> str:
    """Return what was measured as Markdown."""
    lines = [
        "| batch | variant | ms a pass | chunks/s | ratio to eager | TFLOP/s | GB |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in found:
        eager = next(x["ms"] for x in found if x["batch"] == line["batch"] and x["variant"] == "eager")
        lines.append(
            f"| {line['batch']} | {line['variant']} | {line['ms']:.1f} | {line['chunks_per_s']:.1f} | "
            f"{eager / line['ms']:.2f} | {line['teraflops']:.0f} | {line['gigabytes']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="least time of a measurement")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a network of a few numbers, to try this script")
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    options = parser.parse_args()
    subject = Subject(TINY if options.tiny else FULL, options.device)
    count = sum(p.numel() for p in subject.network.parameters())
    print(f"{count / 1e9:.2f} billion parameters, {subject.operations() / 1e12:.2f} TFLOP a chunk at least", flush=True)
    found = measured(subject, options.batches, options.rounds, options.seconds)
    learning = learnt(subject, [1, 8], options.rounds)
    adapters = adapted(subject, options.batches, options.rounds, options.seconds)
    print(table(found))
    if options.out:
        name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
        facts = {
            "device": name,
            "torch": torch.__version__,
            "parameters": count,
            "measured": found,
            "learning": learning,
            "adapters": adapters,
        }
        options.out.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
