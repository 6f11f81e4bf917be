"""Rules bound to one use of a known program: what does not depend on the numbers of a batch is looked up once.

The rule of a use finds its operands by name, asks which of them are trained, reads the geometry of the layer and moves
the examples to the front. In a program that is known all of this is as it was. A bound rule does the rest: it turns the
inputs and the output gradient of a batch into per-example gradients, in the same form and from the same operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from privet.gradients.capture.observer import HALF
from privet.gradients.capture.recorded import Use
from privet.gradients.forms.per_example import ConvGeometry, Convolution, Explicit, Outer, PerExample
from privet.gradients.rules.example_axis import FRONT, ExampleAxis
from privet.gradients.rules.layer_rules import convolution, geometry_of, linear
from privet.gradients.rules.rule_tools import Rule, named_arguments, source_of

Formed = list[tuple[int, PerExample]]
"""The gradients of parameters, by their positions in the layout."""


class BoundRule(Protocol):
    """A rule bound to one use."""

    def form(self, inputs: Tensor, out_grads: Tensor) -> Formed:
        """Return the gradients of the use's parameters, from its input and the gradient of its output."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Bound:
    """A bound rule, and the tensors that it was bound to.

    Attributes:
        rule: The rule.
        shapes: The shapes of the input and of the output gradient.
        dtype: The type of both.
    """

    rule: BoundRule
    shapes: tuple[torch.Size, torch.Size]
    dtype: torch.dtype

    def form(self, use: Use) -> Formed | None:
        """Apply the rule to a use that a gradient has reached; None if it is not what the rule was bound to."""
        inputs, out_grads = use.args[0], use.out_grad
        if out_grads is None or (inputs.shape, out_grads.shape) != self.shapes:
            return None
        return self.rule.form(inputs, out_grads) if inputs.dtype == out_grads.dtype == self.dtype else None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Bound:
    """A rule with the positions of weight and bias; None for one that is not trained."""

    weight: int | None
    bias: int | None


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundLinear(_Bound):
    """:func:`linear` of bound parameters."""

    batch_size: int

    def form(self, inputs: Tensor, out_grads: Tensor) -> Formed:
        found: Formed = []
        out_grads = out_grads.reshape(self.batch_size, -1, out_grads.shape[-1])
        if self.weight is not None:
            by_position = inputs.reshape(self.batch_size, -1, inputs.shape[-1])
            found.append((self.weight, Outer(inputs=by_position, out_grads=out_grads)))
        if self.bias is not None:
            sums = out_grads.squeeze(1) if out_grads.shape[1] == 1 else out_grads.sum(1)
            found.append((self.bias, Explicit(gradients=sums)))
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundConvolution(_Bound):
    """:func:`convolution` of bound parameters, with its geometry."""

    geometry: ConvGeometry

    def form(self, inputs: Tensor, out_grads: Tensor) -> Formed:
        found: Formed = []
        if self.weight is not None:
            part = Convolution(inputs=inputs, out_grads=out_grads, geometry=self.geometry)
            found.append((self.weight, part))
        if self.bias is not None:
            found.append((self.bias, Explicit(gradients=out_grads.flatten(2).sum(2))))
        return found


def _linear(use: Use, batch_size: int) -> BoundRule | None:
    given = named_arguments(use, "input", "weight", "bias")
    weight, bias = _position(use, given["weight"]), _position(use, given.get("bias"))
    return BoundLinear(weight=weight, bias=bias, batch_size=batch_size)


def _convolution(use: Use, batch_size: int) -> BoundRule | None:
    given = named_arguments(use, "input", "weight", "bias", "stride", "padding", "dilation", "groups")
    geometry, sides = geometry_of(use, given)
    if sides:
        return None
    weight, bias = _position(use, given["weight"]), _position(use, given.get("bias"))
    return BoundConvolution(weight=weight, bias=bias, geometry=geometry)


def _position(use: Use, tensor: Tensor | None) -> int | None:
    source = source_of(use, tensor)
    if source is None:
        return None
    (position,) = source.parameters
    return position


_BINDERS: Mapping[Rule, Callable[[Use, int], BoundRule | None]] = {linear: _linear, convolution: _convolution}


def bound(use: Use, rule: Rule, axis: ExampleAxis, batch_size: int) -> Bound | None:
    """Bind the rule of a use, for the next runs of its program; None for a use that its rule looks at every time.

    Bound are uses in full precision whose examples lie in front and whose parameters are plain ones: no view and
    nothing computed from them.
    """
    binder = _BINDERS.get(rule)
    is_plain = not any(source.derived or source.undo is not None for source in use.sources)
    if binder is None or axis != FRONT or not is_plain or not use.args or not isinstance(use.args[0], Tensor):
        return None
    inputs = use.args[0]
    if inputs.dtype in HALF or inputs.dtype != use.output_dtype:
        return None
    found = binder(use, batch_size)
    return None if found is None else Bound(rule=found, shapes=(inputs.shape, use.output_shape), dtype=inputs.dtype)
