"""π0 as a policy: one model for any number of rows, that acts, tells probabilities and learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manyarms.errors import ConfigError
from manyarms.policies import noise
from manyarms.policies.base import ActionChunk, Observations
from manyarms.policies.checkpoints import CheckpointFolder
from manyarms.policies.heads import Evaluation
from manyarms.policies.pi0 import flow, loading
from manyarms.policies.pi0.config import Pi0Options, options_from
from manyarms.policies.pi0.fast import Draw, FastPath
from manyarms.policies.pi0.flow import Coefficients
from manyarms.policies.pi0.fused import FusedWeights
from manyarms.policies.pi0.heads import NoiseHead, ValueHead, add_adapters, choose_weights
from manyarms.policies.pi0.model import Inputs, in_shards, prefix_of, velocities
from manyarms.policies.pi0.preprocessing import Preprocessing
from manyarms.policies.trainable import TrainablePolicy, placed, seeded
from manyarms.simulators.base import Spec


class Pi0Policy(TrainablePolicy):
    """Acts by following the flow from noise, which belongs to the episode, to a chunk of actions.

    With noise of its own at the steps it explores, and tells the log-probabilities of what it drew; they come from the
    very pass that learning uses. `chosen` is the chain: points and their times.
    """

    def __init__(self, spec: Spec, **options: Any) -> None:
        config = options_from(options)
        device, precision = placed(config.device, config.precision)
        config = replace(config, device=device, precision=precision)
        folder = CheckpointFolder.open(config.model_path)
        architecture = loading.architecture(folder, config.horizon)
        seeing = Preprocessing(spec, config, folder, architecture)
        super().__init__()
        with seeded(config.seed):
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            model = loading.load(folder, dtype, device, config.horizon)
            if config.lora_rank:
                add_adapters(model, config)
            choose_weights(model, config)
            self.chunk, self.critic = _chunk(config, architecture), config.critic
            self.config, self._seeing, self.model = config, seeing, model
            noise_head = _noise_head(config, model)
            self.value, self.noise_head = _value_head(config, model, self.chunk), noise_head
        self._steps = config.steps or architecture.num_inference_steps
        if config.noise.startswith("flow_sde") and self._steps < 2:
            raise ConfigError(f"{config.noise} needs at least two steps", do="raise steps")
        self._shape = (architecture.chunk_size, architecture.max_action_dim)
        self._action_width = seeing.action_width
        self.cameras, self.reads = seeing.cameras, (*seeing.images, *seeing.fields)
        self._fast: list[FastPath] = []
        self.eval()

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.model.action_out_proj.weight.device

    @property
    def explores(self) -> bool:  # type: ignore[override]
        return self.config.noise != "none"

    @property
    def has_own_loss(self) -> bool:  # type: ignore[override]
        # The others keep no end of the chain, or have a head that this loss does not reach.
        return self.config.noise in ("none", "flow_sde")

    @property
    def imitation_horizon(self) -> int:
        return self._shape[0]

    def trainable_state(self) -> dict[str, Tensor]:
        """Return what can change, and the heads; everything else is in the checkpoint that `model_path` names."""
        learning = {name for name, p in self.named_parameters() if p.requires_grad or not name.startswith("model.")}
        return {name: tensor for name, tensor in self.state_dict().items() if name in learning}

    def shards(self) -> Sequence[nn.Module]:
        return in_shards(self.model)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Pi0Policy:
        """Move or convert weights, and forget what was made of them where they lay."""
        self._fast.clear()
        return super()._apply(fn, recurse)

    # -- acting -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, observations: Observations, explore: bool = True) -> ActionChunk:
        inputs = self._seeing.inputs(observations, self.device)
        chain = self._drawn(observations, inputs, explore and self.explores)
        actions = observations.like_these(self._seeing.to_simulator(chain[:, -1, : self.chunk], observations))
        if not explore:
            return ActionChunk.of(actions)
        if not self.explores:  # there are no log-probabilities, but it can imitate itself
            return ActionChunk.of(actions, chosen=observations.like_these(_ended(chain[:, -1]).float()))
        chosen = self._kept(observations, chain)
        found = self._judged(inputs, chosen)
        extras = {"chosen": chosen, "log_probs": found.log_probs}
        if found.values is not None:
            extras["values"] = found.values
        return ActionChunk.of(actions, **{name: observations.like_these(t.float()) for name, t in extras.items()})

    def _drawn(self, observations: Observations, inputs: Inputs, explore: bool) -> Tensor:
        """Return the chain from noise to actions, [R, S + 1, H, D]."""
        seed, steps = self.config.seed, self._steps
        start = torch.from_numpy(noise.normal(seed, observations, self._shape, "flow")).to(self.device)
        times = flow.times_of(steps).to(self.device)
        shape = (len(inputs), steps, *self._shape)
        epsilon = torch.zeros(1, device=self.device).expand(shape)
        if explore:
            epsilon = torch.from_numpy(noise.normal(seed, observations, shape[1:], "explore")).to(self.device)
        if explore and self.config.noise == "flow_noise":
            return self._drawn_by_head(inputs, start, times, epsilon)
        draw = Draw(start, times, self._transitions(observations, times, explore), epsilon)
        fast = self.config.fast if self.config.fast is not None else self.device.type == "cuda"
        if fast and FusedWeights.possible(self.model):
            return self._fast_path().draw(inputs, draw)
        return self._drawn_plainly(inputs, draw)

    def _fast_path(self) -> FastPath:
        if not self._fast:
            dtype = torch.bfloat16 if self.config.precision == "bf16" else torch.float32
            self._fast.append(FastPath(self.model, dtype, compiled=self.config.compile))
        return self._fast[0]

    def _transitions(self, observations: Observations, times: Tensor, explore: bool) -> Coefficients:
        """Return how each step moves, [R, S, H, D]: noise goes only into numbers that reach the simulator."""
        t, after = (part[None, :, None, None] for part in (times[:-1], times[1:]))
        shape = (len(observations), self._steps, *self._shape)
        moves = flow.euler(t, after)
        if explore:
            noisy = self._executed().expand(shape)
            if self.config.noise == "flow_sde_one":
                step = torch.arange(self._steps, device=self.device)
                noisy = noisy & (step == self._noisy_step(observations)[:, None])[..., None, None]
            moves = flow.chosen_where(noisy, flow.flow_sde(t, after, self.config.noise_level), moves)
        return Coefficients(*(one.expand(shape) for one in (moves.alpha, moves.beta, moves.gamma)))

    def _executed(self) -> Tensor:
        """Return which numbers [H, D] of the model's chunk the simulator is given."""
        mask = torch.zeros(self._shape, dtype=torch.bool, device=self.device)
        mask[: self.chunk, : self._action_width] = True
        return mask

    def _noisy_step(self, observations: Observations) -> Tensor:
        drawn = noise.uniform(self.config.seed, observations, (), "step")
        return torch.from_numpy((drawn * self._steps).astype(np.int64)).to(self.device)

    def _drawn_plainly(self, inputs: Inputs, draw: Draw) -> Tensor:
        with self._computing():
            prefix = prefix_of(self.model, inputs)
            points = [draw.noise]
            for i, t in enumerate(draw.times[:-1]):
                x, steps = points[-1], draw.steps
                velocity, _ = velocities(self.model, prefix, inputs.state, x[:, None], t.expand(len(x), 1))
                # x' = α x + β v + γ ε
                moved = steps.alpha[:, i] * x + steps.beta[:, i] * velocity[:, 0]
                points.append(moved + steps.gamma[:, i] * draw.epsilon[:, i])
        return torch.stack(points, 1)

    def _drawn_by_head(self, inputs: Inputs, start: Tensor, times: Tensor, epsilon: Tensor) -> Tensor:
        assert self.noise_head is not None
        executed = self._executed()
        points = [start]
        with self._computing():
            prefix = prefix_of(self.model, inputs)
            for i, (t, after) in enumerate(pairwise(times)):
                x = points[-1]
                velocity, features = velocities(self.model, prefix, inputs.state, x[:, None], t.expand(len(x), 1))
                spread = self.noise_head(features)[:, 0] * executed
                # x' = x - Δ v + σ ε
                points.append(x + (after - t) * velocity[:, 0] + spread * epsilon[:, i])
        return torch.stack(points, 1)

    def _kept(self, observations: Observations, chain: Tensor) -> Tensor:
        """Return the part of a chain that probabilities are of: all of it, or the one step with noise."""
        times = flow.times_of(self._steps).to(chain.device).expand(len(chain), -1)
        if self.config.noise == "flow_sde_one":
            step = self._noisy_step(observations)[:, None] + torch.arange(2, device=chain.device)
            rows = torch.arange(len(chain), device=chain.device)[:, None]
            chain, times = chain[rows, step], times.gather(1, step)
        return flow.packed(chain, times)

    # -- learning -----------------------------------------------------------------------------------------------------

    def prepare_to_learn(self) -> None:
        """Keep weights that change in float32: steps of the optimiser are too small for bfloat16."""
        for parameter in self.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        self._fast.clear()  # it may have held the weights as they were

    def evaluate(self, observations: Observations, chosen: np.ndarray | Tensor) -> Evaluation:
        taken = torch.as_tensor(chosen, device=self.device)
        return self._judged(self._seeing.inputs(observations, self.device), taken)

    def _judged(self, inputs: Inputs, chosen: Tensor) -> Evaluation:
        """Return log-probabilities [R, K, A] of a chain's transitions, added up over its steps; entropies; values."""
        remat = self.config.gradient_checkpointing and self.training
        points, times = flow.unpacked(chosen.float(), self._shape)
        t, after = times[:, :-1, None, None], times[:, 1:, None, None]
        with self._computing():
            prefix = prefix_of(self.model, inputs, features=self.value is not None, remat=remat)
            velocity, features = velocities(
                self.model, prefix, inputs.state, points[:, :-1], times[:, :-1], remat=remat
            )
        if self.noise_head is not None:
            moves = flow.euler(t, after)
            spread = self.noise_head(features)[..., : self.chunk, : self._action_width]
        else:
            moves = flow.flow_sde(t, after, self.config.noise_level)
            spread = moves.gamma
        mean = (moves.alpha * points[:, :-1] + moves.beta * velocity)[..., : self.chunk, : self._action_width]
        reached = points[:, 1:, : self.chunk, : self._action_width]
        spread = spread.expand_as(mean)
        log_probs = flow.log_prob(reached, mean, spread).sum(1)
        return Evaluation(log_probs, flow.entropy(spread).sum(1), self._values(prefix.features, inputs))

    def _values(self, features: Tensor | None, inputs: Inputs) -> Tensor | None:
        if self.value is None or features is None:
            return None
        values = self.value(features, inputs.state)
        return values if self.critic == "action_level" else values[:, 0]

    def values(self, observations: Observations) -> Tensor:
        inputs = self._seeing.inputs(observations, self.device)
        with self._computing():
            prefix = prefix_of(self.model, inputs, features=True)
        values = self._values(prefix.features, inputs)
        if values is None:
            raise ConfigError("this policy has no critic", do="critic: chunk_level")
        return values

    def encode_actions(self, observations: Observations, actions: np.ndarray) -> Tensor:
        return _ended(self._seeing.from_simulator(actions, observations).to(self.device))

    def imitation_loss(
        self, observations: Observations, chosen: np.ndarray | Tensor, draw: Sequence[int] = ()
    ) -> Tensor:
        """Return the loss of flow matching: how far velocities are from those that lead to where a chain ends."""
        inputs = self._seeing.inputs(observations, self.device)
        points, _ = flow.unpacked(torch.as_tensor(chosen, device=self.device).float(), self._shape)
        epsilon, t = self._examples(observations, draw)
        between, wanted = flow.noised(points[:, -1], epsilon, t[:, None, None])
        remat = self.config.gradient_checkpointing and self.training
        with self._computing():
            prefix = prefix_of(self.model, inputs, remat=remat)
            found, _ = velocities(self.model, prefix, inputs.state, between[:, None], t[:, None], remat=remat)
        # L = |v(x_t, t) - u|²
        return (found[:, 0] - wanted).square()

    def _examples(self, observations: Observations, draw: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return noise [R, H, D] and times [R] for flow matching."""
        config, purpose = self.model.config, "/".join(("imitate", *map(str, draw)))
        drawn = [
            (
                rng.standard_normal(self._shape, np.float32),
                rng.beta(config.time_sampling_beta_alpha, config.time_sampling_beta_beta),
            )
            for rng in noise.generators(self.config.seed, observations, purpose)
        ]
        when = np.array([t for _, t in drawn]) * config.time_sampling_scale + config.time_sampling_offset
        epsilon = np.stack([array for array, _ in drawn])
        return torch.from_numpy(epsilon).to(self.device), torch.from_numpy(when.astype(np.float32)).to(self.device)

    def _computing(self) -> AbstractContextManager[Any]:
        """Compute in bfloat16 where that is wanted, whatever precision weights are kept in."""
        if self.config.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def _ended(points: Tensor) -> Tensor:
    """Return chains [R, 1, 1 + H D] that are nothing but their ends [R, H, D]."""
    return flow.packed(points[:, None], torch.zeros(len(points), 1, device=points.device))


def _chunk(config: Pi0Options, architecture: Any) -> int:
    if config.chunk is not None and config.chunk > architecture.chunk_size:
        raise ConfigError(
            f"chunk is {config.chunk}, but this π0 gives {architecture.chunk_size} actions", do="lower it"
        )
    return config.chunk or architecture.chunk_size


def _noise_head(config: Pi0Options, model: Any) -> NoiseHead | None:
    """Return the head of flow_noise, in float32."""
    if config.noise != "flow_noise":
        return None
    low, high = config.noise_bounds
    width = model.config.dit_config.hidden_size
    return NoiseHead(width, model.config.max_action_dim, (low, high)).to(model.action_out_proj.weight.device)


def _value_head(config: Pi0Options, model: Any, chunk: int) -> ValueHead | None:
    """Return the critic's head, in float32."""
    if config.critic is None:
        return None
    width = model.config.vlm_config.text_config.hidden_size
    count = chunk if config.critic == "action_level" else 1
    return ValueHead(width, model.config.max_state_dim, count).to(model.action_out_proj.weight.device)
