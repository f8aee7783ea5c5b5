"""A stand-in for omnigibson.transition_rules: what turns things into others."""

from __future__ import annotations


class BaseTransitionRule:
    ENABLED = True


class SlicingRule(BaseTransitionRule):
    pass


class ToggleableMachineRule(BaseTransitionRule):
    pass


class MixingToolRule(BaseTransitionRule):
    pass


class CookingSystemRule(BaseTransitionRule):
    pass


def enabled():
    return sorted(rule.__name__ for rule in BaseTransitionRule.__subclasses__() if rule.ENABLED)
