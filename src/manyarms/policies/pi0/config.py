"""What can be chosen about a π0 policy, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from manyarms.errors import ConfigError
from manyarms.policies.pi0.flow import NOISES
from manyarms.policies.pi0.units import NORMALISATIONS
from manyarms.policies.trainable import CRITICS, check_bounds, configured

#: Far more than any model, and less than what takes a machine's memory.
_BOUNDS = {
    "chunk": (1, 1024),
    "horizon": (1, 1024),
    "steps": (1, 1000),
    "prompt_length": (1, 8192),
    "noise_level": (0, 100),
    "lora_rank": (0, 4096),
    "lora_alpha": (0, 65_536),
    "seed": (0, 2**63 - 1),
}


@dataclass(frozen=True)
class Pi0Options:
    """A checkpoint of π0, how it sees, how it acts and how it learns."""

    model_path: str
    """A folder with config.json and model.safetensors: of openpi (PyTorch), LeRobot or transformers."""
    chunk: int | None = None
    """Actions a decision; default: all that the model gives."""
    horizon: int | None = None
    """Actions the model gives at once, where no config.json says so: as its training had it, 50 in openpi's own."""
    steps: int | None = None
    """Of denoising; default: as the checkpoint says."""
    images: Mapping[str, str] | tuple[str, ...] = ()
    """Image fields in the order of π0's, or base_0_rgb, left_wrist_0_rgb, right_wrist_0_rgb: field; default: all."""
    state: tuple[str, ...] = ()
    """Fields whose numbers are the state, in this order; default: all numbers, or `state` if statistics fit it."""
    norm_stats: str | None = None
    """Statistics; default: norm_stats.json in the folder or below it."""
    normalise: str | None = None
    """z_score, quantile, min_max or none; default: as LeRobot's config.json says, else z_score."""
    relative: int | tuple[int, ...] | None = None
    """How many first numbers of actions count from the state, or openpi's mask: [6, -1]; default: as LeRobot says."""
    tokenizer: str | None = None
    """tokenizer.json, or a folder with it; default: the checkpoint's."""
    prompt_length: int = 48
    """Tokens there is room for."""
    clip_actions: bool = True
    """Keep actions within the simulator's bounds."""

    noise: str = "none"
    """none: the flow alone; for reinforcement learning flow_sde, flow_sde_one (at one step, drawn) or flow_noise."""
    noise_level: float = 0.5
    """How strong the noise of flow_sde is."""
    noise_bounds: tuple[float, ...] = (0.02, 0.3)
    """Between which the head of flow_noise keeps its spread."""
    train_expert_only: bool = False
    """Leave the vision-language model as it is."""
    freeze_vision: bool = False
    """Leave its eyes as they are."""
    lora_rank: int = 0
    """Train adapters of this rank instead of the weights; 0: the weights."""
    lora_alpha: float = 16.0
    gradient_checkpointing: bool = False
    """Compute layers again for the gradient instead of keeping what they were."""
    critic: str | None = None
    """Also estimate values, for PPO: chunk_level (one per chunk) or action_level (one for each of its actions)."""

    precision: str | None = None
    """fp32 or bf16; default: bf16 on a GPU. While learning, weights that change are kept in float32."""
    fast: bool | None = None
    """Draw with fused weights and CUDA graphs; default: on a GPU."""
    compile: bool = True
    """On a GPU, compile the layers of the fast path."""
    seed: int = 0
    """Of noise, and of the first weights of heads and adapters."""
    device: str | None = None
    """cpu or cuda; default: cuda where there is one."""

    def __post_init__(self) -> None:
        for name, choices in (
            ("normalise", (None, *NORMALISATIONS, "none")),
            ("noise", NOISES),
            ("critic", CRITICS),
            ("precision", (None, "fp32", "bf16")),
        ):
            if getattr(self, name) not in choices:
                known = ", ".join(str(choice) for choice in choices if choice)
                raise ConfigError(f"{name} is {getattr(self, name)!r}", do=f"choose from {known}")
        check_bounds(self, _BOUNDS)
        if self.noise.startswith("flow_sde") and self.noise_level <= 0:
            raise ConfigError(f"noise_level is {self.noise_level}", do="give it a number above 0, or noise: none")
        if len(self.noise_bounds) != 2 or not 0 < self.noise_bounds[0] < self.noise_bounds[1] < 100:
            raise ConfigError(f"noise_bounds is {self.noise_bounds}", do="give two rising numbers above 0, below 100")
        if self.fast and self.noise == "flow_noise":
            raise ConfigError("the fast path has no head for flow_noise", do="leave fast out, or use flow_sde")
        parts = self.relative if isinstance(self.relative, tuple) else (self.relative or 0,)
        if any(not isinstance(part, int) for part in parts):
            raise ConfigError(f"relative is {self.relative}", do="give a number, or numbers as in [6, -1]")


def options_from(given: Mapping[str, Any]) -> Pi0Options:
    """Read options as the command line and configs give them."""
    if not given.get("model_path"):
        raise ConfigError("policy 'pi0' needs a checkpoint", do="model_path: FOLDER")
    return configured(Pi0Options, given, "policy 'pi0'")
