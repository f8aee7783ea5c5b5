"""What one can choose about OpenVLA-OFT."""

from __future__ import annotations

from dataclasses import dataclass

from manyarms.errors import ConfigError
from manyarms.policies.trainable import CRITICS, check_bounds

_CHOICES = {
    "head": ("auto", "l1", "tokens"),
    "gripper": ("auto", "sign", "raw"),
    "precision": (None, "fp32", "bf16", "fp8"),
    "critic": CRITICS,
}

#: Far more than any model, and less than what takes a machine's memory.
_BOUNDS = {
    "num_images": (1, 3),
    "chunk": (1, 1024),
    "action_dim": (1, 1024),
    "temperature": (1e-6, 1e6),
    "log_scale": (-20, 20),
    "value_hidden": (1, 65_536),
    "lora_rank": (0, 4096),
    "lora_alpha": (1, 65_536),
    "prompt_length": (1, 8192),
    "seed": (0, 2**63 - 1),
}


@dataclass(frozen=True)
class OftConfig:
    """Which checkpoint, what it sees, how it acts and learns."""

    model_path: str
    """A folder as OpenVLA-OFT writes it; nothing is downloaded."""
    unnorm_key: str | None = None
    """The dataset whose statistics turn actions into the simulator's; default: the only one there is."""
    tokenizer: str | None = None
    """A tokenizer.json or its folder; default: the checkpoint's."""
    images: tuple[str, ...] = ()
    """One to three image fields; default: the simulator's first ones."""
    num_images: int | None = None
    """How many of them, where they are not named; default: what the checkpoint says, else two if there are so many."""
    state: tuple[str, ...] = ()
    """Fields that are its proprioception, in this order; default: all numbers, or `state`, whichever has the width."""
    proprio: bool = True
    """Tell it the state, where the checkpoint has a projector for it."""
    upside_down: bool = False
    """Turn images by 180°, as LIBERO's were for training."""
    crop_area: float = 0.9
    """How much of an image is kept: its middle. 1.0 for a checkpoint trained without augmentation, and for RLinf's."""
    stop_token: bool = True
    """Put the stop token after the actions' slots, as OFT does; RLinf's checkpoints were trained without."""
    gripper: str = "auto"
    """sign: 0..1 becomes -1 (open) or 1 (closed); raw: as it is; auto: sign where the statistics are LIBERO's."""
    head: str = "auto"
    """l1, tokens, or auto: l1 where the checkpoint has a regression head."""
    chunk: int | None = None
    """Actions a decision; default: what the checkpoint says, else 8. It is that of training."""
    action_dim: int | None = None
    """Numbers an action; default: what the checkpoint says, else the simulator's."""
    temperature: float = 1.6
    """Of the token head, where actions are drawn."""
    log_scale: float = -2.5
    """First log-spread of the Laplace distribution around the l1 head, in actions that reach from -1 to 1."""
    critic: str | None = None
    """Also estimate values, from the hidden state that predicts the chunk's first number.

    chunk_level: one per chunk; action_level: one for each of its actions.
    """
    value_hidden: int = 512
    lora_rank: int = 0
    """Learn adapters of this rank on every linear layer, and the heads; 0: all weights learn."""
    lora_alpha: int | None = None
    """Default: half the rank, at most 16."""
    gradient_checkpointing: bool = False
    """Compute layers a second time when learning, instead of keeping what they held."""
    precision: str | None = None
    """fp32, or bf16: weights too, but for heads and adapters; all weights learn in fp32. Default: bf16 on a GPU.

    fp8: as bf16, but for the language model's products when it acts; it cannot learn so. Actions differ slightly.
    """
    fast: bool = True
    """On a GPU, in one process: fused and compiled layers, CUDA graphs. Last bits differ from those of learning."""
    prompt_length: int = 64
    """Tokens that prompts are padded to, where what a row gets must not depend on its neighbours (`deterministic`)."""
    seed: int = 0
    """Of new weights and of the noise."""
    device: str | None = None
    """cpu or cuda; default: cuda where there is one."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                known = ", ".join(choice for choice in choices if choice)
                raise ConfigError(f"{name} is {getattr(self, name)!r}", do=f"choose from {known}")
        check_bounds(self, _BOUNDS)
        if len(self.images) > 3:
            raise ConfigError("OpenVLA-OFT looks at one to three images")
        if self.precision == "fp8" and not self.fast:
            raise ConfigError("precision fp8 is a part of the fast pass, but fast is false", do="precision: bf16")
