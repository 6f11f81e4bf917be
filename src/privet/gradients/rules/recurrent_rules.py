"""Per-example gradients of recurrent layers, from the gradient of their gates."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from privet.gradients.capture.recorded import Use
from privet.gradients.forms.per_example import Explicit, Outer, SharedProducts
from privet.gradients.rules.example_axis import ExampleAxis
from privet.gradients.rules.rule_tools import Operand, by_position, out_grad_of, source_of


def summed_gates(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """LSTM and RNN: both weights see the same gradient, and so do both biases."""
    out_grads = _example_first(out_grad_of(use), axis, batch_size)
    return _both(use, axis, batch_size, out_grads, out_grads)


def reset_gates(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """GRU: the reset gate damps the contribution of the previous states to the last third of the gates."""
    inputs, before, weight, hidden, bias, hidden_bias = use.args
    width = before.shape[-1]
    out_grads = _example_first(out_grad_of(use), axis, batch_size)
    given = functional.linear(inputs, weight[:width], None if bias is None else bias[:width])
    inner = functional.linear(before, hidden[:width], None if hidden_bias is None else hidden_bias[:width])
    reset = by_position((given + inner).sigmoid_(), axis, batch_size)
    damped = torch.cat([out_grads[..., : 2 * width], out_grads[..., 2 * width :] * reset], -1)
    return _both(use, axis, batch_size, out_grads, damped)


def _example_first(tensor: Tensor, axis: ExampleAxis, batch_size: int) -> Tensor:
    # recurrences keep time first; norm and sum read every factor several times, so one copy pays
    return by_position(tensor, axis, batch_size).contiguous()


def _both(use: Use, axis: ExampleAxis, batch_size: int, out_grads: Tensor, inner_grads: Tensor) -> list[Operand]:
    inputs, before, weight, hidden, bias, hidden_bias = use.args
    found: list[Operand] = []
    sums: dict[int, Tensor] = {}
    both_trained = source_of(use, weight) is not None and source_of(use, hidden) is not None
    shares = both_trained and out_grads is inner_grads and not out_grads.is_cuda
    shared = SharedProducts(factor=out_grads, num_weights=2) if shares else None
    for factor, matrix, shift, grads in ((inputs, weight, bias, out_grads), (before, hidden, hidden_bias, inner_grads)):
        if source := source_of(use, matrix):
            rows = _example_first(factor.detach(), axis, batch_size)
            found.append((source, Outer(inputs=rows, out_grads=grads, shared=shared)))
        if source := source_of(use, shift):
            if id(grads) not in sums:
                sums[id(grads)] = grads.sum(1)
            found.append((source, Explicit(gradients=sums[id(grads)])))
    return found
