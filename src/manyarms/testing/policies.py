"""What every policy that learns must hold to: the checks of `manyarms.policies.checking`, by the policy's name."""

from __future__ import annotations

from typing import Any

from manyarms.policies.checking import CHECKS, check_saving
from manyarms.policies.registry import make_trainable
from manyarms.policies.trainable import TrainablePolicy
from manyarms.simulators.base import Spec


def check_policy(name: str, spec: Spec, tolerance: float = 1e-3, **options: Any) -> None:
    """Check a policy by name or import string; an `AssertionError` says which promise it breaks."""
    for check in policy_checks(name, spec, tolerance, **options).values():
        check()


def policy_checks(name: str, spec: Spec, tolerance: float = 1e-3, **options: Any) -> dict[str, Any]:
    """Return the checks of a policy by name, each to be called."""

    def make() -> TrainablePolicy:
        return make_trainable(name, spec, options, trust_code=True).policy

    policy = make()
    policy.eval()
    checks: dict[str, Any] = {
        check.__name__.removeprefix("check_").replace("_", " "): lambda check=check: check(policy, spec, tolerance)
        for check in CHECKS
    }
    return {**checks, "saving": lambda: check_saving(make, spec)}


__all__ = ["check_policy", "policy_checks"]
