"""Specs: what they refuse, how they travel, how unlike ones are joined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from manyarms.errors import ConfigError
from manyarms.simulators.base import Field, ObservationMismatch, Spec, SpecError, Task, flatten, hold_action, nest, put
from manyarms.vector.spaces import batched_actions, field_space, merge

ACTION = {"": Field((2,), "float32", -1.0, 1.0)}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Field((-1,)), "negative size"),
        (lambda: Field((), "O"), "dtype 'O' cannot live in shared memory"),
        (lambda: Field((), "complex64"), "dtype 'c8' cannot live in shared memory"),
        (lambda: Field((), "float32", space="sphere"), "'sphere' is not one of box"),
        (lambda: Field((2, 2), ragged=True), "only one-dimensional fields"),
        (lambda: Spec({}, ACTION), "at least one observation field"),
        (lambda: Spec({"a": Field()}, {}), "at least one action field"),
        (lambda: Spec({"": Field(), "a": Field()}, ACTION), "the unnamed field must be the only one"),
        (lambda: Spec({"a": Field()}, {"a": Field((3,), ragged=True)}), "action fields cannot be ragged"),
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(wrong: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        wrong()


def test_a_spec_survives_the_journey() -> None:
    spec = Spec(
        {
            "front_rgb": Field((4, 4, 3), "uint8", 0, 255, camera="front"),
            "state": Field((2,), "float64", [-1, -np.inf], 5),
        },
        ACTION,
        infos={"n": Field((), "int32")},
        tasks=(Task("a", ("do a", "make a")),),
        control_rate=20.0,
        horizon=10,
        can_save=True,
    )
    again = Spec.from_json(spec.to_json())
    assert again.to_json() == spec.to_json()
    assert again.cameras == ("front",)
    assert field_space(again.observations["state"]) == spaces.Box(
        np.array([-1.0, -np.inf]), np.array([5.0, 5.0]), dtype=np.float64
    )


def test_nested_names_and_back() -> None:
    flat = {"a/b": 1, "a/c": 2, "d": 3}
    assert nest(flat) == {"a": {"b": 1, "c": 2}, "d": 3}
    assert flatten(nest(flat)) == flat
    assert nest({"": 5}) == 5
    assert flatten(5) == {"": 5}


def test_hold_actions_are_zero_or_the_nearest_bound() -> None:
    assert hold_action(Spec({"": Field()}, ACTION)).tolist() == [0.0, 0.0]
    assert hold_action(Spec({"": Field()}, {"a": Field((1,), "float32", 2.0, 3.0)}))["a"].tolist() == [2.0]
    held = hold_action(Spec({"": Field()}, {"": Field((), "int64", 1, 4, "discrete")}))
    assert (held, type(held)) == (1, np.int64)


def test_put_pads_ragged_fields_and_refuses_what_does_not_fit() -> None:
    out = {"x": np.ones(4), "x_length": np.zeros((), np.int32), "y": np.zeros(2, np.float32)}
    put(out, "x", [1.0, 2.0])
    assert out["x"].tolist() == [1.0, 2.0, 0.0, 0.0]
    assert out["x_length"] == 2
    put(out, "x", np.arange(4.0))
    assert out["x_length"] == 4
    for value in (np.zeros(5), np.zeros((1, 1))):
        with pytest.raises(ObservationMismatch, match="'x'"):
            put(out, "x", value)
    put(out, "y", np.zeros(2, np.float64))
    with pytest.raises(ObservationMismatch, match="complex"):
        put(out, "y", np.zeros(2, np.complex64))


def test_like_rows_are_left_as_they_are() -> None:
    spec = Spec({"": Field((3,))}, ACTION)
    merged = merge([spec, Spec({"": Field((3,))}, ACTION)])
    assert merged.spec is spec
    assert merged.rename == {}


def test_unlike_rows_are_padded_and_bounded_each_by_its_own() -> None:
    one = Spec({"": Field((3,), "float32", 0, 1)}, {"": Field((1,), "float32", -1, 1)})
    two = Spec(
        {
            "": Field((5,), "float32", -2, 2),
        },
        {"": Field((2,), "float32", -3, 3)},
    )
    merged = merge([one, two])
    assert merged.rename == {"": "observation"}
    field = merged.spec.observations["observation"]
    assert (field.shape, field.ragged, field.low, field.high) == ((5,), True, -2, 2)
    space = batched_actions(merged)
    assert isinstance(space, spaces.Box)
    assert space.low.tolist() == [[-1, -3], [-3, -3]]


@pytest.mark.parametrize(
    ("one", "two", "message"),
    [
        ({"a": Field((2, 2))}, {"a": Field((3, 2))}, "same image size"),
        ({"a": Field((2,), "float32")}, {"a": Field((2,), "float64")}, "of different kinds"),
        ({"a": Field((2,))}, {"a": Field((2, 1))}, "of different kinds"),
    ],
)
def test_rows_that_cannot_be_joined_say_why(one: Any, two: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        merge([Spec(one, ACTION), Spec(two, ACTION)])


def test_actions_with_different_parts_cannot_be_joined() -> None:
    with pytest.raises(ConfigError, match="different parts"):
        merge([Spec({"a": Field()}, ACTION), Spec({"a": Field()}, {"arm": Field()})])
    with pytest.raises(ConfigError, match="info 'n'"):
        merge([Spec({"a": Field()}, ACTION, {"n": Field()}), Spec({"a": Field()}, ACTION, {"n": Field((2,))})])
