"""A stand-in for omnigibson.utils.python_utils."""

from __future__ import annotations

from omnigibson.tensors import Tensor


def recursively_convert_to_torch(state):
    for key, value in state.items():
        if isinstance(value, dict):
            state[key] = recursively_convert_to_torch(value)
        elif isinstance(value, list) and all(isinstance(each, (int, float)) for each in value):
            state[key] = Tensor([float(each) for each in value])
    return state
