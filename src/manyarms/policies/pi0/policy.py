"""π0 as a policy: one model for any number of rows, that acts, tells probabilities and learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from manyarms.policies.pi0.model import Inputs, prefix_of, velocities
from manyarms.policies.pi0.preprocessing import Preprocessing
from manyarms.policies.trainable import TrainablePolicy, placed, seeded
from manyarms.simulators.base import Spec

#: Options that change nothing about the weights: policies that differ in these can share them.
_OF_ACTING = frozenset({"steps", "sample", "deterministic", "batch_size", "seed", "clip_actions"})


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
            self._set_up(config, seeing, model, _Heads(config, model))

    def _set_up(self, config: Pi0Options, seeing: Preprocessing, model: Any, heads: _Heads) -> None:
        architecture = model.config
        self.config, self._seeing, self.model = config, seeing, model
        self._heads, self.value, self.noise_head = heads, heads.value, heads.noise
        self.chunk = _chunk(config, architecture)
        self._steps = config.steps or architecture.num_inference_steps
        if config.noise.startswith("flow_sde") and self._steps < 2:
            raise ConfigError(f"{config.noise} needs at least two steps", do="raise steps")
        self._shape = (architecture.chunk_size, architecture.max_action_dim)
        self.cameras, self.reads = seeing.cameras, (*seeing.images, *seeing.fields)
        self._fast: list[FastPath] = []
        self._examples = np.random.default_rng(config.seed)
        self.eval()

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.model.action_out_proj.weight.device

    @property
    def action_width(self) -> int:
        return self._seeing.action_width

    @property
    def explores(self) -> bool:
        return self.config.sample and self.config.noise != "none"

    @property
    def cloned_chunk(self) -> int:
        return self._shape[0]

    @property
    def saved_names(self) -> frozenset[str]:
        """What can change, and the heads; everything else is in the checkpoint that `model_path` names."""
        return frozenset(
            name for name, p in self.named_parameters() if p.requires_grad or not name.startswith("model.")
        )

    def twin(self, spec: Spec, options: Mapping[str, Any]) -> Pi0Policy | None:
        config = options_from(options)
        config = replace(config, device=self.config.device, precision=self.config.precision)
        if replace(self.config, **{name: getattr(config, name) for name in _OF_ACTING}) != config:
            return None
        made = Pi0Policy.__new__(Pi0Policy)
        nn.Module.__init__(made)
        made._set_up(config, self._seeing, self.model, self._heads)
        made._fast = self._fast  # one set of graphs for both
        return made

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Pi0Policy:
        """Move or convert weights, and forget what was made of them where they lay."""
        self._fast.clear()
        return super()._apply(fn, recurse)

    # -- acting -------------------------------------------------------------------------------------------------------

    def _act(self, observations: Observations, count: int) -> ActionChunk:
        inputs = self._seeing.inputs(observations, self.device)
        chain = self._drawn(observations, inputs)
        actions = self._seeing.to_simulator(chain[:count, -1, : self.chunk], observations)
        if not self.explores:
            return ActionChunk.of(actions)
        chosen = self._kept(observations, chain)
        found = self._judged(inputs, chosen)
        extras = {"chosen": chosen, "log_probs": found.log_probs}
        if found.values is not None:
            extras["values"] = found.values
        return ActionChunk.of(actions, **{name: t[:count].float().cpu().numpy() for name, t in extras.items()})

    def _drawn(self, observations: Observations, inputs: Inputs) -> Tensor:
        """Return the chain from noise to actions, [R, S + 1, H, D]."""
        seed, steps = self.config.seed, self._steps
        start = torch.from_numpy(noise.normal(seed, observations, self._shape, "flow")).to(self.device)
        times = flow.times_of(steps).to(self.device)
        shape = (len(inputs), steps, *self._shape)
        epsilon = torch.zeros(1, device=self.device).expand(shape)
        if self.explores:
            epsilon = torch.from_numpy(noise.normal(seed, observations, shape[1:], "explore")).to(self.device)
        if self.explores and self.config.noise == "flow_noise":
            return self._drawn_by_head(inputs, start, times, epsilon)
        draw = Draw(start, times, self._transitions(observations, times), epsilon)
        fast = self.config.fast if self.config.fast is not None else self.device.type == "cuda"
        if fast and FusedWeights.possible(self.model):
            return self._fast_path().draw(inputs, draw)
        return self._drawn_plainly(inputs, draw)

    def _fast_path(self) -> FastPath:
        if not self._fast:
            dtype = torch.bfloat16 if self.config.precision == "bf16" else torch.float32
            self._fast.append(FastPath(self.model, dtype, compiled=self.config.compile))
        return self._fast[0]

    def _transitions(self, observations: Observations, times: Tensor) -> Coefficients:
        """Return how each step moves, [R, S, H, D]: noise goes only into numbers that reach the simulator."""
        t, after = (part[None, :, None, None] for part in (times[:-1], times[1:]))
        shape = (len(observations), self._steps, *self._shape)
        moves = flow.euler(t, after)
        if self.explores:
            noisy = self._executed().expand(shape)
            if self.config.noise == "flow_sde_one":
                step = torch.arange(self._steps, device=self.device)
                noisy = noisy & (step == self._noisy_step(observations)[:, None])[..., None, None]
            moves = flow.chosen_where(noisy, flow.flow_sde(t, after, self.config.noise_level), moves)
        return Coefficients(*(one.expand(shape) for one in (moves.alpha, moves.beta, moves.gamma)))

    def _executed(self) -> Tensor:
        """Return which numbers [H, D] of the model's chunk the simulator is given."""
        mask = torch.zeros(self._shape, dtype=torch.bool, device=self.device)
        mask[: self.chunk, : self.action_width] = True
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
            spread = self.noise_head(features)[..., : self.chunk, : self.action_width]
        else:
            moves = flow.flow_sde(t, after, self.config.noise_level)
            spread = moves.gamma
        mean = (moves.alpha * points[:, :-1] + moves.beta * velocity)[..., : self.chunk, : self.action_width]
        reached = points[:, 1:, : self.chunk, : self.action_width]
        spread = spread.expand_as(mean)
        log_probs = flow.log_prob(reached, mean, spread).sum(1)
        return Evaluation(log_probs, flow.entropy(spread).sum(1), self._values(prefix.features, inputs))

    def _values(self, features: Tensor | None, inputs: Inputs) -> Tensor | None:
        if self.value is None or features is None:
            return None
        values = self.value(features, inputs.state)
        return values if self.config.value_type == "action_level" else values[:, 0]

    @torch.inference_mode()
    def values_of(self, observations: Observations) -> np.ndarray:
        found = []
        for part, count in self._parts(observations):
            inputs = self._seeing.inputs(part, self.device)
            with self._computing():
                prefix = prefix_of(self.model, inputs, features=True)
            values = self._values(prefix.features, inputs)
            if values is None:
                raise ConfigError("this policy has no critic", do="value_head: true")
            found.append(values[:count].float().cpu().numpy())
        return np.concatenate(found)

    def imitation_loss(self, observations: Observations, actions: np.ndarray, mask: np.ndarray) -> Tensor:
        """Return the loss of flow matching: how far velocities are from those that lead to the actions."""
        inputs = self._seeing.inputs(observations, self.device)
        wanted = self._seeing.from_simulator(actions, observations).to(self.device)
        drawn = self._examples.standard_normal(wanted.shape, np.float32)
        config, rows = self.model.config, len(inputs)
        when = self._examples.beta(config.time_sampling_beta_alpha, config.time_sampling_beta_beta, rows)
        when = when * config.time_sampling_scale + config.time_sampling_offset
        t = torch.from_numpy(when.astype(np.float32)).to(self.device)
        points, velocity = flow.noised(wanted, torch.from_numpy(drawn).to(self.device), t[:, None, None])
        remat = self.config.gradient_checkpointing and self.training
        with self._computing():
            prefix = prefix_of(self.model, inputs, remat=remat)
            found, _ = velocities(self.model, prefix, inputs.state, points[:, None], t[:, None], remat=remat)
        # L = mean |v(x_t, t) - u|²
        counted = torch.from_numpy(mask).to(self.device)[..., None].expand_as(velocity)
        return ((found[:, 0] - velocity).square() * counted).sum() / counted.sum().clamp(min=1)

    def _computing(self) -> AbstractContextManager[Any]:
        """Compute in bfloat16 where that is wanted, whatever precision weights are kept in."""
        if self.config.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def _chunk(config: Pi0Options, architecture: Any) -> int:
    if config.chunk is not None and config.chunk > architecture.chunk_size:
        raise ConfigError(
            f"chunk is {config.chunk}, but this π0 gives {architecture.chunk_size} actions", do="lower it"
        )
    return config.chunk or architecture.chunk_size


class _Heads:
    """What the checkpoint does not have: in float32, from the seed."""

    def __init__(self, config: Pi0Options, model: Any) -> None:
        architecture, device = model.config, model.action_out_proj.weight.device
        self.noise: NoiseHead | None = None
        self.value: ValueHead | None = None
        if config.noise == "flow_noise":
            low, high = config.noise_bounds
            width = architecture.dit_config.hidden_size
            self.noise = NoiseHead(width, architecture.max_action_dim, (low, high)).to(device)
        if config.value_head:
            count = _chunk(config, architecture) if config.value_type == "action_level" else 1
            width = architecture.vlm_config.text_config.hidden_size
            self.value = ValueHead(width, architecture.max_state_dim, count).to(device)
