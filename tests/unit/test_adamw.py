"""AdamW without the compiler: what it learns is PyTorch's to the bit."""

from __future__ import annotations

import subprocess
import sys

import torch

from manyarms.learning.adamw import AdamW

STEP = """
import sys, torch
from manyarms.learning.adamw import AdamW
layer = torch.nn.Linear(3, 2)
optimizer = AdamW(layer.parameters())
layer(torch.ones(1, 3)).sum().backward()
torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
optimizer.step()
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
sys.exit("torch._dynamo" in sys.modules)
"""


def test_it_steps_as_pytorch_does_and_goes_on_from_its_state() -> None:
    torch.manual_seed(0)
    data = torch.randn(6, 4, 5)
    weights = []
    for kind in (torch.optim.AdamW, AdamW):
        torch.manual_seed(1)
        layer = torch.nn.Linear(5, 3)
        optimizer = kind([{"params": [layer.weight]}, {"params": [layer.bias], "lr": 0.1}], lr=0.01, weight_decay=0.1)
        for step, batch in enumerate(data):
            optimizer.zero_grad(set_to_none=True)
            layer(batch).square().sum().backward()
            optimizer.step()
            if step == 2:
                state = optimizer.state_dict()
                optimizer = kind(optimizer.param_groups, lr=0.5)
                optimizer.load_state_dict(state)
        weights.append(torch.cat([layer.weight.flatten(), layer.bias]))
    assert torch.equal(*weights)


def test_it_does_without_the_compiler() -> None:
    assert subprocess.run([sys.executable, "-c", STEP], check=False).returncode == 0
