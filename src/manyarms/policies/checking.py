"""What a policy that learns must hold to: training relies on each of these promises, and would go wrong in silence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from manyarms.errors import ConfigError
from manyarms.policies.base import ActionChunk, Observations
from manyarms.policies.trainable import Batched, Evaluation, TrainablePolicy
from manyarms.simulators.base import Field, Spec
from manyarms.vector import EpisodeId

#: How far log-probabilities of a number may lie apart on average when acting and when learning, before training begins:
#: fast paths and bfloat16 differ in last bits, a mistake by much more.
_APART = 0.1


def made_up(spec: Spec, rows: int, seed: int = 0) -> Observations:
    """Return observations that a simulator could give, in the middle of unlike episodes."""
    rng = np.random.default_rng(seed)
    told = [(*task.descriptions, task.name)[0] for task in spec.tasks] or ["go there"]
    texts = [told[i % len(told)] for i in range(rows)]
    fields = {name: _drawn(rng, field, rows) for name, field in spec.observations.items()}
    return Observations(fields, texts, [EpisodeId("", i) for i in range(rows)], np.arange(rows) * 3)


def _drawn(rng: np.random.Generator, field: Field, rows: int) -> np.ndarray:
    shape, dtype = (rows, *field.shape), np.dtype(field.dtype)
    low = -1.0 if field.low is None else np.maximum(field.low, -1e3)
    high = 1.0 if field.high is None else np.minimum(field.high, 1e3)
    return rng.uniform(low, high, shape).astype(dtype)


def check_shapes(
    policy: TrainablePolicy, observations: Observations, asked: Batched | None = None
) -> tuple[ActionChunk, Evaluation]:
    """Act (as a runner has it `asked`) and evaluate: shapes, values, log-probabilities with a gradient."""
    state = torch.random.get_rng_state()
    chunk = policy.act(observations, explore=True) if asked is None else asked.act(observations)
    rows, actions, extras = len(observations), policy.chunk, chunk.extras
    assert chunk.length == actions, f"act gives {chunk.length} actions, but chunk is {actions}"
    assert len(chunk) == rows, f"act gives {len(chunk)} chunks for {rows} rows"
    for name in ("chosen", "log_probs"):
        assert name in extras, f"act(explore=True) gives no {name!r} among its extras: it cannot be reinforced"
    told = np.asarray(extras["log_probs"])
    assert told.ndim == 3 and told.shape[:2] == (rows, actions), (  # noqa: PT018
        f"log_probs have the shape {told.shape}; it must be [rows, chunk, numbers per action]: {rows}, {actions}, …"
    )
    assert np.isfinite(told).all(), "log_probs are not finite"
    found = policy.evaluate(observations, extras["chosen"])
    assert tuple(found.log_probs.shape) == told.shape, (
        f"evaluate gives log_probs of the shape {tuple(found.log_probs.shape)}, act {told.shape}"
    )
    assert tuple(found.entropy.shape) == told.shape, f"entropy has the shape {tuple(found.entropy.shape)}"
    assert found.log_probs.requires_grad, (
        "the log_probs that evaluate gives have no gradient: they are detached, or no weight has requires_grad"
    )
    _check_values(policy, found.values, rows, "evaluate")
    if policy.critic is not None:
        assert "values" in extras, "it has a critic, but act(explore=True) gives no 'values' among its extras"
        _check_values(policy, torch.as_tensor(extras["values"]), rows, "act")
        _check_values(policy, policy.values(observations), rows, "values")
    same = torch.equal(torch.random.get_rng_state(), state)
    assert same, "it draws from PyTorch's global generator: take manyarms.policies.noise, which belongs to the episode"
    return chunk, found


def _check_values(policy: TrainablePolicy, values: Tensor | None, rows: int, who: str) -> None:
    wanted = {None: None, "chunk_level": (rows,), "action_level": (rows, policy.chunk)}[policy.critic]
    shape = None if values is None else tuple(values.shape)
    assert shape == wanted, f"critic is {policy.critic}: the values of {who} must have the shape {wanted}, not {shape}"


def check_before_training(policy: Batched, spec: Spec, *, evaluates: bool = True, imitates: bool = False) -> None:
    """Refuse, after one pass, what would otherwise go wrong in silence.

    An algorithm `evaluates` what was chosen, `imitates` it by the policy's own loss, or both.
    """
    try:
        if evaluates:
            chunk, found = check_shapes(policy.policy, made_up(spec, 2), policy)
            apart = _apart(chunk, found).mean()
            assert apart < _APART, f"evaluate finds other log_probs than act gave: {apart:.2g} apart on average"
        if imitates:
            _own_loss(policy.policy, made_up(spec, 2), policy)
    except AssertionError as error:
        raise ConfigError(
            f"{type(policy.policy).__name__} cannot be trained",
            why=str(error),
            do="`manyarms check SIMULATOR --policy NAME` checks all that training relies on; docs/add/policy.md",
        ) from None


def _apart(chunk: ActionChunk, found: Evaluation) -> np.ndarray:
    return np.abs(found.log_probs.detach().float().cpu().numpy() - chunk.extras["log_probs"])


def check_log_probs(policy: TrainablePolicy, spec: Spec, tolerance: float) -> None:
    """What learning computes of a choice is what acting computed, in batches of any size."""
    observations = made_up(spec, 7)
    chunk, found = check_shapes(policy, observations)
    assert _apart(chunk, found).max() < tolerance, "evaluate finds other log_probs than act gave"
    for rows in ([4], [6, 0, 3]):
        part = policy.evaluate(observations.rows(rows), chunk.extras["chosen"][rows])
        apart = (part.log_probs - found.log_probs[rows]).abs().max()
        assert apart < tolerance, f"evaluate finds other log_probs for {len(rows)} rows than for 7"


def check_rows_do_not_disturb_each_other(policy: TrainablePolicy, spec: Spec, tolerance: float) -> None:
    """What a row gets does not depend on who else is asked, nor on how often."""
    observations = made_up(spec, 7)
    together = policy.act(observations, explore=True)
    for rows in ([4], [6, 0, 3]):
        some = policy.act(observations.rows(rows), explore=True)
        for name, array in some.actions.items():
            apart = np.abs(array.astype(float) - together.actions[name][rows]).max()
            assert apart < tolerance, f"a row's actions differ by {apart:.2g} with other rows beside it, or asked again"


def check_exploring(policy: TrainablePolicy, spec: Spec, tolerance: float) -> None:
    """Without `explore` it does what it finds best, always the same; with it, what the episode's own noise says."""
    observations = made_up(spec, 4)
    later = Observations(observations.fields, observations.texts, observations.episodes, observations.steps + 1)
    best, again = (policy.act(observations, explore=False).actions for _ in range(2))
    drawn, elsewhere = policy.act(observations, explore=True).actions, policy.act(later, explore=True).actions
    for name, array in best.items():
        assert np.array_equal(array, again[name]), "act(explore=False) is not the same the second time"
    if policy.explores:
        told = any(not np.array_equal(drawn[name], best[name]) for name in drawn)
        assert told, "act does the same with and without explore"
        moved = any(not np.array_equal(drawn[name], elsewhere[name]) for name in drawn)
        assert moved, "act(explore=True) draws the same at another step: noise belongs to episode and step"


def check_gradients(policy: TrainablePolicy, spec: Spec, tolerance: float) -> None:
    """Every weight that may change has a part in what is learnt: ranks would wait for the others."""
    observations = made_up(spec, 4)
    _, found = check_shapes(policy, observations)
    total = found.log_probs.sum() + found.entropy.sum() + (0.0 if found.values is None else found.values.sum())
    policy.zero_grad(set_to_none=True)
    total.backward()
    lost = [name for name, p in policy.named_parameters() if p.requires_grad and p.grad is None]
    policy.zero_grad(set_to_none=True)
    assert not lost, f"no gradient reaches {', '.join(lost[:3])}: set requires_grad to False where nothing is to change"


def check_imitating_itself(policy: TrainablePolicy, spec: Spec, tolerance: float) -> None:
    """What it would imitate of itself is weighed row by row, and the same each time."""
    if not policy.has_own_loss:
        return
    observations = made_up(spec, 5)
    chosen, loss = _own_loss(policy, observations)
    again = policy.imitation_loss(observations, chosen, (0, 0))
    assert torch.equal(again, loss), "imitation_loss is not the same the second time: noise belongs to the episode"
    rows = [4, 0]
    part = policy.imitation_loss(observations.rows(rows), chosen[rows], (0, 0))
    assert (part - loss[rows]).abs().max() < tolerance, "imitation_loss of a row depends on its neighbours"


def _own_loss(
    policy: TrainablePolicy, observations: Observations, asked: Batched | None = None
) -> tuple[np.ndarray, Tensor]:
    """Act (as a runner has it `asked`), and return what was chosen and the policy's own loss for it."""
    extras = (policy.act(observations, explore=True) if asked is None else asked.act(observations)).extras
    assert "chosen" in extras, "act(explore=True) gives no 'chosen' among its extras: it cannot imitate itself"
    loss = policy.imitation_loss(observations, extras["chosen"], (0, 0))
    rows, actions = len(observations), policy.chunk
    assert loss.dim() == 3 and loss.shape[0] == rows and loss.shape[1] >= actions, (  # noqa: PT018
        f"imitation_loss has the shape {tuple(loss.shape)}; it must be [rows, chunk, numbers]: {rows}, {actions}, …"
    )
    assert loss.requires_grad, "imitation_loss has no gradient"
    return extras["chosen"], loss


def check_saving(make: Callable[[], TrainablePolicy], spec: Spec) -> None:
    """A policy made with the same options and given what was saved acts as the one that was saved."""
    policy, other = make(), make()
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                step = torch.arange(parameter.numel(), device=parameter.device) % 3
                parameter.add_(0.01 * step.view(parameter.shape))
    state, known = policy.trainable_state(), other.state_dict()
    strange = sorted(set(state) - set(known))
    assert not strange, f"trainable_state() has {strange[0]!r}, which state_dict() has not"
    with torch.no_grad():
        for name, tensor in state.items():
            known[name].copy_(tensor)
    observations = made_up(spec, 3)
    first, second = (one.act(observations, explore=True).actions for one in (policy, other))
    same = all(np.array_equal(first[name], second[name]) for name in first)
    assert same, "a policy that is made again with the saved weights acts otherwise: trainable_state() lacks something"


#: Each takes a policy, what it sees, and how far numbers may lie apart.
CHECKS: Sequence[Callable[[TrainablePolicy, Spec, float], None]] = (
    check_log_probs,
    check_rows_do_not_disturb_each_other,
    check_exploring,
    check_gradients,
    check_imitating_itself,
)
