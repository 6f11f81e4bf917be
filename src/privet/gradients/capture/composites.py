"""Composite operations of torch that are run in parts, and operations that copy a parameter for every example."""

from __future__ import annotations

import math
from types import FunctionType

import torch
from torch import Tensor, nn
from torch.nn import functional

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

ATTENTION: Function = nn.functional.scaled_dot_product_attention


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention whose scores are seen: a bias of theirs that is made of parameters has its gradient there."""
    assert not is_causal, "torch takes one mask"
    if enable_gqa:
        times = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    factor = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = torch.matmul(query * factor, key.transpose(-2, -1)) + attn_mask
    weights = torch.softmax(scores, -1)
    return torch.matmul(functional.dropout(weights, dropout_p) if dropout_p else weights, value)


EXPANDING: frozenset[Function] = frozenset(
    [
        Tensor.expand, Tensor.expand_as, Tensor.repeat, Tensor.tile,
        torch.broadcast_to, Tensor.broadcast_to, torch.tile,
    ]
)  # fmt: skip
