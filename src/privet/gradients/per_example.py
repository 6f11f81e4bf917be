"""Per-example gradients of one parameter, in the form that is cheapest to keep.

A layer's gradient for one example is rarely worth writing down: for a linear layer it is an outer product of what went
in and what came back. Each class here is one such form and answers three questions about it exactly: how long is it for
each example, what is the weighted sum over examples, and, where nothing cheaper is known, what is it in full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

# Largest number of elements a form may write out at once while it measures norms; bigger batches go through in pieces.
_MAX_ELEMENTS = 1 << 24


class PerExample(Protocol):
    """The gradients of one parameter, one per example of a physical batch."""

    def square_norms(self) -> Tensor:
        """Return the squared length of each example's gradient, shape ``[batch]``."""
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the sum over examples of weight times gradient, in the parameter's shape."""
        ...

    def in_full(self) -> Tensor:
        """Write every example's gradient out, shape ``[batch, *parameter]``."""
        ...

    def without(self, bad: Tensor) -> PerExample:
        """Return the same gradients with those of the marked examples replaced by zero."""
        ...


def _zero_rows(tensor: Tensor, bad: Tensor) -> Tensor:
    return tensor.masked_fill(bad.view(-1, *[1] * (tensor.dim() - 1)), 0)


def _scale(tensor: Tensor, weights: Tensor) -> Tensor:
    return tensor * weights.view(-1, *[1] * (tensor.dim() - 1))


def _sum_of_products(products: Tensor) -> Tensor:
    """Add up a matrix of inner products per example into a squared norm that rounding cannot make too small.

    When contributions of different positions cancel, their sum is rounding error around zero, and a norm that comes out
    too small would let too much through. The floor is that error's size; it is reached only by near-total cancellation.
    """
    length = products.shape[1]
    sizes = products.diagonal(dim1=1, dim2=2).sum(1)
    floor = sizes * (16 * torch.finfo(products.dtype).eps * length)
    return products.sum((1, 2)).maximum(floor)


@dataclass(frozen=True, kw_only=True, eq=False)
class Explicit:
    """Gradients written out in full: biases, norm layers, anything small or unusual."""

    gradients: Tensor

    def square_norms(self) -> Tensor:
        """Sum of squares over the parameter's axes."""
        return self.gradients.flatten(1).square().sum(1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Weighted sum over the batch axis."""
        return (weights.unsqueeze(0) @ self.gradients.flatten(1)).view(self.gradients.shape[1:])

    def in_full(self) -> Tensor:
        """Return the gradients as they are kept."""
        return self.gradients

    def without(self, bad: Tensor) -> Explicit:
        """Zero the marked rows."""
        return Explicit(gradients=_zero_rows(self.gradients, bad))


@dataclass(frozen=True, kw_only=True, eq=False)
class Outer:
    """``gradient_b = sum over t of out_grad[b, t] x inputs[b, t]``: the weight of a linear map.

    Shapes: ``inputs [batch, t, d]``, ``out_grads [batch, t, p]``; the gradient is ``[p, d]``.
    """

    inputs: Tensor
    out_grads: Tensor

    def square_norms(self) -> Tensor:
        """Use the product of two lengths for one position, a Gram product for few, the full gradient for many."""
        batch, length, width_in = self.inputs.shape
        width_out = self.out_grads.shape[2]
        if length == 1:
            return self.inputs.square().sum((1, 2)) * self.out_grads.square().sum((1, 2))
        gram = 2 * length * length <= width_in * width_out
        rows = max(1, _MAX_ELEMENTS // (length * length if gram else width_in * width_out))
        parts = []
        for start in range(0, batch, rows):
            inputs, grads = self.inputs[start : start + rows], self.out_grads[start : start + rows]
            if gram:
                parts.append(_sum_of_products((inputs @ inputs.mT).mul_(grads @ grads.mT)))
            else:
                parts.append((grads.mT @ inputs).square_().sum((1, 2)))
        return torch.cat(parts)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """One matrix product over batch and positions together."""
        return _scale(self.out_grads, weights).flatten(0, 1).mT @ self.inputs.flatten(0, 1)

    def in_full(self) -> Tensor:
        """One batched product."""
        return self.out_grads.mT @ self.inputs

    def without(self, bad: Tensor) -> Outer:
        """Zero both factors: zero times NaN would still be NaN."""
        return Outer(inputs=_zero_rows(self.inputs, bad), out_grads=_zero_rows(self.out_grads, bad))


@dataclass(frozen=True, kw_only=True, eq=False)
class Lookup:
    """``gradient_b = sum over t of onehot(ids[b, t]) x out_grads[b, t]``: the rows of an embedding table."""

    ids: Tensor
    out_grads: Tensor
    num_rows: int

    def square_norms(self) -> Tensor:
        """Products of output gradients between positions that look up the same row."""
        batch, length = self.ids.shape
        rows = max(1, _MAX_ELEMENTS // (length * length))
        parts = []
        for start in range(0, batch, rows):
            ids, grads = self.ids[start : start + rows], self.out_grads[start : start + rows]
            same = ids.unsqueeze(1) == ids.unsqueeze(2)
            parts.append(_sum_of_products((grads @ grads.mT).mul_(same)))
        return torch.cat(parts)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Add each weighted output gradient to its row."""
        scaled = _scale(self.out_grads, weights).flatten(0, 1)
        return scaled.new_zeros(self.num_rows, scaled.shape[1]).index_add_(0, self.ids.flatten(), scaled)

    def in_full(self) -> Tensor:
        """Scatter each example's output gradients into its own table."""
        batch, _, width = self.out_grads.shape
        table = self.out_grads.new_zeros(batch, self.num_rows, width)
        return table.scatter_add_(1, self.ids.unsqueeze(2).expand(-1, -1, width), self.out_grads)

    def without(self, bad: Tensor) -> Lookup:
        """Zero the output gradients of the marked examples."""
        return Lookup(ids=self.ids, out_grads=_zero_rows(self.out_grads, bad), num_rows=self.num_rows)


@dataclass(frozen=True, kw_only=True)
class ConvGeometry:
    """Everything about a convolution but its tensors."""

    weight_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Convolution:
    """The weight of a convolution in one, two or three dimensions, with any stride, padding, dilation and groups."""

    inputs: Tensor
    out_grads: Tensor
    geometry: ConvGeometry

    def square_norms(self) -> Tensor:
        """Write the gradients out, some examples at a time, and measure them."""
        rows = max(1, _MAX_ELEMENTS // math.prod(self.geometry.weight_shape))
        parts = [
            self._in_full(self.inputs[start : start + rows], self.out_grads[start : start + rows])
            .flatten(1)
            .square_()
            .sum(1)
            for start in range(0, len(self.inputs), rows)
        ]
        return torch.cat(parts)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """One ordinary weight gradient of the batch with scaled output gradients."""
        return self._weight_gradient(self.inputs, _scale(self.out_grads, weights), self.geometry.groups, copies=1)

    def in_full(self) -> Tensor:
        """All examples' gradients at once."""
        return self._in_full(self.inputs, self.out_grads)

    def without(self, bad: Tensor) -> Convolution:
        """Zero both factors of the marked examples."""
        return Convolution(
            inputs=_zero_rows(self.inputs, bad), out_grads=_zero_rows(self.out_grads, bad), geometry=self.geometry
        )

    def _in_full(self, inputs: Tensor, out_grads: Tensor) -> Tensor:
        # Examples become groups of one large convolution: its weight gradient holds theirs side by side, untouched by
        # each other, for every stride, padding, dilation and group count the library itself supports.
        batch = len(inputs)
        flat = self._weight_gradient(
            inputs.reshape(1, -1, *inputs.shape[2:]),
            out_grads.reshape(1, -1, *out_grads.shape[2:]),
            batch * self.geometry.groups,
            copies=batch,
        )
        return flat.view(batch, *self.geometry.weight_shape)

    def _weight_gradient(self, inputs: Tensor, out_grads: Tensor, groups: int, *, copies: int) -> Tensor:
        geometry = self.geometry
        out_channels, *rest = geometry.weight_shape
        weight = inputs.new_empty(()).expand(copies * out_channels, *rest)  # only its shape is read
        spatial = len(rest) - 1
        gradient: Tensor = torch.ops.aten.convolution_backward(
            out_grads, inputs, weight, None,
            geometry.stride, geometry.padding, geometry.dilation, False, [0] * spatial, groups,
            [False, True, False],
        )[1]  # fmt: skip
        return gradient


@dataclass(frozen=True, kw_only=True, eq=False)
class Sum:
    """The gradients of a parameter that is used several times: cross terms between the uses count."""

    parts: Sequence[PerExample]

    def square_norms(self) -> Tensor:
        """Join the uses before measuring; adding their norms would be wrong."""
        return self._joined().square_norms()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sums add up."""
        return torch.stack([part.weighted_sum(weights) for part in self.parts]).sum(0)

    def in_full(self) -> Tensor:
        """Add the written-out gradients."""
        return torch.stack([part.in_full() for part in self.parts]).sum(0)

    def without(self, bad: Tensor) -> Sum:
        """Zero the marked examples in every part."""
        return Sum(parts=[part.without(bad) for part in self.parts])

    def _joined(self) -> PerExample:
        first = self.parts[0]
        if all(isinstance(part, Outer) for part in self.parts):
            outers = [part for part in self.parts if isinstance(part, Outer)]
            return Outer(
                inputs=torch.cat([part.inputs for part in outers], 1),
                out_grads=torch.cat([part.out_grads for part in outers], 1),
            )
        if isinstance(first, Lookup) and all(isinstance(part, Lookup) for part in self.parts):
            lookups = [part for part in self.parts if isinstance(part, Lookup)]
            return Lookup(
                ids=torch.cat([part.ids for part in lookups], 1),
                out_grads=torch.cat([part.out_grads for part in lookups], 1),
                num_rows=first.num_rows,
            )
        return Explicit(gradients=self.in_full())
