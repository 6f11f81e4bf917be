"""Weighted sums over the examples of several layers whose gradients are kept as those of one, with more examples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

import torch
from torch import Tensor

from privet.gradients.forms.per_example import Explicit, Outer, PerExample, one_product, scale


@singledispatch
def add_layer_sums(part: PerExample, weights: Tensor, places: Sequence[Tensor]) -> None:
    """Add each layer's weighted sum over examples to its own place.

    Args:
        part: The gradients of all layers, one layer's examples after the other's.
        weights: One for each example, the same in all layers.
        places: One tensor of the parameter's shape for each layer.
    """
    size = len(weights)
    for number, place in enumerate(places):
        part[number * size : (number + 1) * size].add_weighted_sum(weights, place)


@add_layer_sums.register
def _(part: Explicit, weights: Tensor, places: Sequence[Tensor]) -> None:
    rows = part.gradients.reshape(len(places), len(weights), -1)
    _add(torch.bmm(weights.expand(len(places), 1, -1), rows), places)


@add_layer_sums.register
def _(part: Outer, weights: Tensor, places: Sequence[Tensor]) -> None:
    inputs, out_grads, repeated = part.inputs, part.out_grads, weights.repeat(len(places))
    if inputs.shape[2] < out_grads.shape[2]:
        inputs = scale(inputs, repeated)
    else:
        out_grads = scale(out_grads, repeated)
    left = out_grads.reshape(len(places), -1, out_grads.shape[2]).mT
    _add(one_product(left, inputs.reshape(len(places), -1, inputs.shape[2])), places)


def _add(sums: Tensor, places: Sequence[Tensor]) -> None:
    torch._foreach_add_(list(places), sums.view(len(places), *places[0].shape).unbind())
