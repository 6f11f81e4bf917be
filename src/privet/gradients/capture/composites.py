"""Composite operations of torch that are run in parts, and operations that copy a parameter for every example."""

from __future__ import annotations

from types import FunctionType

import torch
from torch import Tensor, nn

from privet.gradients.capture.in_place import Function
from privet.gradients.capture.recurrent_cells import CELLS


def _decompose(function: Function) -> Function:
    """Return a copy of a composite Python function whose parts, instead of itself, are handed to the mode."""
    assert isinstance(function, FunctionType), "only Python functions hand themselves over as a whole"
    names = {**function.__globals__, "has_torch_function": lambda *_: False}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


DECOMPOSED: dict[Function, Function] = {
    **CELLS,
    nn.functional.multi_head_attention_forward: _decompose(nn.functional.multi_head_attention_forward),
}

EXPANDING: frozenset[Function] = frozenset(
    [
        Tensor.expand, Tensor.expand_as, Tensor.repeat, Tensor.tile,
        torch.broadcast_to, Tensor.broadcast_to, torch.tile,
    ]
)  # fmt: skip
