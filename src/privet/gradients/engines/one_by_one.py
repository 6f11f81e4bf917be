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

from privet.errors import NoExampleRule
from privet.gradients.capture.autograd_graph import nodes_behind
from privet.gradients.engines.clipper import Clipper
from privet.gradients.engines.engine import Spoiled
from privet.gradients.forms.per_example import Explicit
from privet.gradients.norms.product_precision import HALF
from privet.gradients.rules.example_axis import is_finite
from privet.isolation.follow import Follower
from privet.isolation.place import Place, Rows


def check_functions(follower: Follower, parameters: Sequence[nn.Parameter], fault: NoExampleRule | None) -> None:
    """Refuse a function of the user's own that hands gradients to parameters.

    Where rules form a gradient, or autograd's own derivatives do, an example's part of it is that of its own rows. What
    a user's backward pass makes of a parameter's gradient is one sum over all examples, and no rule tells the part of
    each: it may hold numbers of others.

    Args:
        follower: Knows the nodes of the user's functions.
        parameters: The trainable ones.
        fault: Why rules do not form the gradients.

    Raises:
        NoExampleRule: naming the function.
    """
    own = {id(parameter) for parameter in parameters}
    for node in follower.nodes:
        for child, number in node.next_functions:
            if child is None or isinstance(follower.places.get((child, number)), Place | Rows):
                continue
            if any(id(getattr(behind, "variable", None)) in own for behind in nodes_behind([child])):
                before = "" if fault is None else f"{fault} "
                raise NoExampleRule(
                    f"{before}The custom autograd function {type(node).__name__} computes the gradient of a parameter "
                    "as a sum over all examples, and each example's part of it is not known. Write the function with "
                    "torch's own operations."
                )


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
        belongs to the others by zero, and zero times infinity is NaN: so nothing is handed on if any number is
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
