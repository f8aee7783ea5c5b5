"""An activity's goal, judged by bddl over a set of facts."""

from __future__ import annotations

from typing import Any

from bddl.backend_abc import BDDLBackend
from bddl.condition_evaluation import compile_state, create_scope, evaluate_state, get_ground_state_options
from bddl.logic_base import BinaryAtomicFormula, UnaryAtomicFormula
from bddl.parsing import gen_natural_language_conditions, parse_domain, parse_problem

import omnigibson as og

from .world import Thing

_DOMAIN = "omnigibson"
_PREDICATES = parse_domain(_DOMAIN)[-1]


class Facts(BDDLBackend):
    """Predicates that are true when they are among the facts, of things that exist."""

    def get_predicate_class(self, predicate_name) -> Any:
        if len(_PREDICATES[predicate_name]) == 1:
            base, judge = UnaryAtomicFormula, lambda self, one: one.knows((predicate_name, one.name))
        else:
            base, judge = (
                BinaryAtomicFormula,
                lambda self, one, two: one.knows((predicate_name, one.name, two.name), two),
            )
        members = {"STATE_NAME": predicate_name, "_evaluate": judge, "_sample": lambda self, *args: None}
        return type(str(predicate_name), (base,), members)


class Goals:
    """What is to be done in a scene, and what is true in it."""

    def __init__(self, scene, activity, definition):
        self.facts = set()
        self._scene = scene
        _, objects, self._initial, goal = parse_problem(activity, definition, _DOMAIN)
        future = {name for condition in self._initial if condition[0] == "future" for name in condition[1:]}
        self.scope = {name: Thing(scene, name, name not in future) for name in create_scope(objects)}
        backend = Facts()
        self.conditions = compile_state(goal, backend, scope=self.scope, object_map=objects)
        self.options = get_ground_state_options(self.conditions, backend, scope=self.scope, object_map=objects)
        self.words = gen_natural_language_conditions(goal)

    def begin(self, name=None):
        """Make true what is true at the start, of one thing or of all."""
        self.facts.difference_update([fact for fact in self.facts if name in (None, fact[1])])
        initial = [tuple(c) for c in self._initial if c[0] not in ("inroom", "not", "future")]
        self.facts.update(fact for fact in initial if name in (None, fact[1]))

    def fulfil(self):
        for condition in self.options[0]:
            if not condition.evaluate():
                self._make(condition.body, True)
                return

    def undo(self):
        for condition in reversed(self.options[0]):
            if condition.evaluate():
                self._make(condition.body, False)
                return

    def _make(self, body, wanted):
        if body[0] == "not":
            body, wanted = body[1], not wanted
        fact = tuple(body)
        if wanted:
            self.facts.add(fact)
            self._scene.appear(fact[1:])
        else:
            self.facts.discard(fact)

    def reached(self):
        return evaluate_state(self.conditions)

    def potential(self):
        _, found = evaluate_state(self.options[0])
        return -len(found["satisfied"]) / (len(found["satisfied"]) + len(found["unsatisfied"]))


class Judged:
    """A condition of releases from 3.9 on, which must be told who judges."""

    def __init__(self, condition):
        self._condition = condition

    def evaluate(self, judge):
        assert callable(judge)
        return self._condition.evaluate()


def ground_options(goals):
    if not og.__version__.startswith("3.9"):
        return goals.options
    return [[Judged(condition) for condition in option] for option in goals.options]
