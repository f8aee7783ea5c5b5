"""What every algorithm must hold to: shapes, padding that never counts, parts of a minibatch that add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from manyarms.algorithms import make_algorithm
from manyarms.algorithms.base import Algorithm, Episodes, Group, Minibatch, Targets

#: Groups of starts, decisions per episode, actions per decision, numbers per action.
_GROUPS, _DECISIONS, _ACTIONS, _NUMBERS = 3, 4, 3, 2


def check_algorithm(name: str, **settings: Any) -> None:
    """Check an algorithm by name or import string; an `AssertionError` says which promise it breaks."""
    algorithm = make_algorithm(name, **settings)
    _check_groups(algorithm)
    episodes = _episodes(algorithm, np.random.default_rng(0))
    targets = _check_targets(algorithm, episodes)
    _check_loss(algorithm, targets, episodes)


def _check_groups(algorithm: Algorithm) -> None:
    """A group is kept or not, and always alike."""
    group = Group(
        np.linspace(0.0, 1.0, algorithm.group_size), np.arange(algorithm.group_size) > 0, np.ones(algorithm.group_size)
    )
    answers = [algorithm.keeps(group) for _ in range(2)]
    assert answers[0] == answers[1], "keeps() decides differently on the same group"
    assert bool(answers[0]) is True or algorithm.max_rejected, "keeps() rejects groups, but max_rejected is 0"


def _episodes(algorithm: Algorithm, rng: np.random.Generator) -> Episodes:
    """Return made-up episodes of unlike length, some cut short by a time limit."""
    count = _GROUPS * algorithm.group_size
    shape = (count, _DECISIONS, _ACTIONS)
    lengths = rng.integers(1, _DECISIONS * _ACTIONS, count)
    lengths[0] = 1
    mask = np.arange(_DECISIONS * _ACTIONS) < lengths[:, None]
    values = rng.normal(size=shape if algorithm.critic == "action_level" else shape[:2]).astype(np.float32)
    return Episodes(
        rewards=rng.normal(size=shape) * mask.reshape(shape),
        mask=mask.reshape(shape),
        terminated=rng.random(count) < 0.5,
        success=np.arange(count) % 2 == 0,
        max_steps=np.full(count, float(_DECISIONS * _ACTIONS)),
        values=None if algorithm.critic is None else values,
        final_values=None if algorithm.critic is None else rng.normal(size=count),
    )


def _check_targets(algorithm: Algorithm, episodes: Episodes) -> Targets:
    """Advantages have a shape that weighs decisions, are finite, follow from what was executed, and repeat."""
    targets = algorithm.targets(episodes)
    shapes = (episodes.mask.shape[:1], episodes.mask.shape[:2], episodes.mask.shape)
    found = np.asarray(targets.advantages)
    assert found.shape in shapes, f"advantages have the shape {found.shape}; it must be one of {shapes}"
    assert np.isfinite(found).all(), "advantages are not finite"
    assert np.array_equal(algorithm.targets(episodes).advantages, found), "targets() gives others the second time"
    if algorithm.critic is not None:
        assert episodes.values is not None
        assert targets.returns is not None, "with a critic, targets() must give its returns"
        assert targets.returns.shape == episodes.values.shape, "returns must have the shape of Episodes.values"
    unlike = _with_padding(episodes)
    executed = _executed(episodes, found)
    same = np.allclose(np.asarray(algorithm.targets(unlike).advantages)[executed], found[executed])
    assert same, "what stands in the padding of rewards or values changes advantages: use Episodes.mask"
    return targets


def _with_padding(episodes: Episodes) -> Episodes:
    """Return the same episodes with other values where nothing was executed; rewards are 0 there by contract."""
    if episodes.values is None:
        return episodes
    mask = episodes.mask if episodes.values.ndim == 3 else episodes.decisions
    return replace(episodes, values=np.where(mask, episodes.values, 1e3).astype(np.float32))


def _executed(episodes: Episodes, x: np.ndarray) -> np.ndarray:
    return (np.ones(len(x), bool), episodes.decisions, episodes.mask)[x.ndim - 1]


def _check_loss(algorithm: Algorithm, targets: Targets, episodes: Episodes) -> None:
    """The loss is a number with a gradient; parts of a minibatch add up to it, and padding has none."""
    assert algorithm.needs_log_probs or algorithm.needs_own_loss, "it asks for nothing that depends on the policy"
    whole, outputs = _minibatch(algorithm, targets, episodes, slice(None))
    loss = algorithm.loss(whole)
    assert loss.value.shape == (), f"the loss has the shape {tuple(loss.value.shape)}; it must be a number"
    assert torch.isfinite(loss.value), "the loss is not finite"
    loss.value.backward()
    gradients = [output.grad for output in outputs if output.grad is not None]
    assert any(gradient.abs().sum() > 0 for gradient in gradients), "the loss does not depend on the policy"
    unexecuted = whole.mask == 0
    alone = not any(gradient[unexecuted].any() for gradient in gradients)
    assert alone, "actions that were not executed have a gradient: use Minibatch.mean"
    for name, value in loss.metrics.items():
        assert not value.requires_grad, f"the metric {name} holds on to the graph: detach it"
    parts = [algorithm.loss(_minibatch(algorithm, targets, episodes, part)[0]) for part in (slice(5), slice(5, None))]
    total = sum(float(part.value.detach()) for part in parts)
    assert np.isclose(total, float(loss.value.detach()), rtol=1e-4, atol=1e-5), (
        "the losses of two parts of a minibatch do not add up to that of the whole: average with Minibatch.mean"
    )


def _minibatch(
    algorithm: Algorithm, targets: Targets, episodes: Episodes, rows: slice
) -> tuple[Minibatch, list[torch.Tensor]]:
    """Return some of all decisions, and what gradients go to: log-probabilities, own losses [B, K, A]."""
    from manyarms.learning.learner import minibatch_of
    from manyarms.policies.heads import Evaluation

    rng = np.random.default_rng(1)
    decisions = episodes.decisions
    mask = episodes.mask[decisions].astype(np.float32)
    shape = (*mask.shape, _NUMBERS)
    old = rng.normal(size=shape).astype(np.float32)
    current, own = (
        torch.from_numpy(old[rows] + 0.1 * rng.normal(size=shape).astype(np.float32)[rows]).requires_grad_()
        for _ in range(2)
    )
    taught = np.asarray(targets.advantages)
    taught = np.broadcast_to(taught[:, None], decisions.shape)[decisions] if taught.ndim == 1 else taught[decisions]
    arrays = {"mask": mask, "advantages": taught.astype(np.float32)}
    if algorithm.needs_log_probs:
        arrays["log_probs"] = old
    if episodes.values is not None and targets.returns is not None:
        arrays |= {"values": episodes.values[decisions], "returns": targets.returns[decisions].astype(np.float32)}
    given = {name: torch.from_numpy(array[rows]) for name, array in arrays.items()}
    estimates = given["values"] + 0.1 if "values" in given else None
    actions = float(mask.sum())
    counts = (float(len(mask)), actions, actions * _NUMBERS)
    found = Evaluation(current, current.detach().abs(), estimates) if algorithm.needs_evaluation else None
    own_loss = own if algorithm.needs_own_loss else None
    return minibatch_of(algorithm, found, given, counts, own_loss=own_loss), [current, own]


__all__ = ["check_algorithm"]
