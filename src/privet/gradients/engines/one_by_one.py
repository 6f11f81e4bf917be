"""Gradients of a program that no rule forms: one backward pass for each example.

The rules of :mod:`privet.gradients.rules` form all per-example gradients of a parameter at once. They need to see every
operation on it, and where the examples lie in its result. A program may hide that (scripted code, a custom function, an
assignment into a part of a tensor), or have an operation without a rule. If its losses are proven to keep the examples
apart, the gradient of one loss is the gradient of one example, and autograd gives it for any program.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from privet.gradients.capture.observer import HALF
from privet.gradients.engines.engine import Clipper, Spoiled
from privet.gradients.forms.per_example import Explicit
from privet.gradients.rules.example_axis import is_finite


def take_one_by_one(losses: Tensor, parameters: Sequence[nn.Parameter], clipper: Clipper, *, asks: bool) -> None:
    """Hand every example's gradient to the clipper, written out; the graph of the losses is kept.

    Args:
        losses: One per example.
        parameters: In the layout's order.
        clipper: Takes the gradients.
        asks: Whether it may wait for the device to see that all numbers are finite; otherwise the caller must.

    Guarantee:
        The gradients are autograd's own, so none is lost or counted twice. That the gradient of a loss is that of its
        example alone is the caller's proof, not this function's. A backward pass for one example multiplies what
        belongs to the others by zero, and zero times infinity is no number: so nothing is handed on if any number is
        not finite, since it is not known whose fault it is.

    Raises:
        Spoiled: some number is not finite.
    """
    found: list[list[Tensor]] = [[] for _ in parameters]
    chosen = torch.zeros_like(losses)
    for place in range(len(losses)):
        one = chosen.clone()
        one[place] = 1
        gradients: Sequence[Tensor | None] = torch.autograd.grad(
            losses, parameters, grad_outputs=one, retain_graph=True, allow_unused=True
        )
        for rows, gradient, parameter in zip(found, gradients, parameters, strict=True):
            rows.append(torch.zeros_like(parameter) if gradient is None else gradient.detach())
    with torch.no_grad():
        for position, rows in enumerate(found):
            gradients_of_one = torch.stack(rows)
            rows.clear()
            if asks and len(losses) > 1 and not is_finite(gradients_of_one):
                raise Spoiled
            is_half = gradients_of_one.dtype in HALF
            clipper.take(position, Explicit(gradients=gradients_of_one.float() if is_half else gradients_of_one))
