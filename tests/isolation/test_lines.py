"""Whose line asks for an operation: code without a file and neighbours of a package are the user's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import privet
from privet.errors import UnsupportedModel
from privet.training.start import privatize
from tests.training.tools import examples, full_batch, network, plain_sgd, take_steps

_SOURCE = """
def {name}(model, functional):
    def {name}(x, y):
        scale = x.max().item()
        return functional.cross_entropy(model(x), y, reduction='none') * (0.5 if scale > 1e30 else 1.0)
    return {name}
"""
_BESIDE_TORCH = str(Path(torch.__file__).parent) + "_neighbour/losses.py"
_BESIDE = str(Path(privet.__file__).parent) + "_neighbour/losses.py"


@pytest.mark.parametrize("name", ["losses", "_run", "__torch_function__"])
@pytest.mark.parametrize("file", ["<stdin>", "<string>", "<ipython-input-1>", _BESIDE, _BESIDE_TORCH, "user.py"])
def test_a_read_of_the_users_loss_function_is_refused_wherever_it_was_written(file: str, name: str) -> None:
    scope: dict[str, object] = {}
    exec(compile(_SOURCE.format(name=name), file, "exec"), scope)
    model: nn.Module = network()
    losses = scope[name](model, functional)  # type: ignore[operator]
    session = privatize(model, plain_sgd(model), examples(), full_batch(1))
    with pytest.raises(UnsupportedModel, match="reads numbers of the examples"):
        take_steps(session, lambda step: step.accumulate(losses))
