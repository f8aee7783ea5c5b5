"""AdamW of PyTorch, without PyTorch's compiler."""

from __future__ import annotations

from inspect import unwrap

import torch


class AdamW(torch.optim.AdamW):
    """The same to the bit, but nothing is imported to tell a compiler what not to compile.

    PyTorch wraps these methods for `torch.compile`, and the wrappers import `torch._dynamo`, which takes every process
    that learns more than a second. Nobody compiles steps here. A method that is not wrapped is taken as it is.
    """

    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
