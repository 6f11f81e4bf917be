"""The example axis of a layer's output, found by experiment instead of assumed.

Attention layers compute with time first, some models fold time into the batch, and a layer that mixes examples has no
such axis at all. All of this is decided by one exact test: the gradient of the losses of *some* examples must be
exactly zero wherever the *other* examples lie.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from privet.isolation.place import Place


class ExampleAxis(Protocol):
    """The place of the examples in a tensor."""

    @property
    def stacking(self) -> int | None:
        """The axis along which tensors of this kind can be joined, as one with more examples; None if there is none."""
        ...

    def in_front(self, tensor: Tensor, batch_size: int) -> Tensor:
        """Return the tensor with the example axis first."""
        ...


@dataclass(frozen=True, kw_only=True)
class WholeAxis:
    """One axis holds exactly the examples."""

    axis: int

    @property
    def stacking(self) -> int | None:
        return self.axis

    def in_front(self, tensor: Tensor, batch_size: int) -> Tensor:
        """Move the axis to the front."""
        return tensor.movedim(self.axis, 0)


FRONT = WholeAxis(axis=0)
"""The usual place of the examples: nothing needs to be moved."""


@dataclass(frozen=True, kw_only=True)
class FoldedAxis:
    """The first axis holds examples times something else, examples varying slowest or fastest."""

    examples_first: bool

    @property
    def stacking(self) -> int | None:
        return 0 if self.examples_first else None

    def in_front(self, tensor: Tensor, batch_size: int) -> Tensor:
        """Unfold the axis and move the examples to the front."""
        if self.examples_first:
            return tensor.reshape(batch_size, -1, *tensor.shape[1:])
        return tensor.reshape(-1, batch_size, *tensor.shape[1:]).movedim(1, 0)


@dataclass(frozen=True, kw_only=True)
class InnerAxis:
    """Some axis holds examples with other lengths before and after them."""

    axis: int
    before: int
    after: int

    @property
    def stacking(self) -> int | None:
        return None

    def in_front(self, tensor: Tensor, batch_size: int) -> Tensor:
        """Unfold the axis and move the examples to the front; the lengths around them become one axis."""
        rows = tensor.movedim(self.axis, 0)
        rest = rows.shape[1:]
        return rows.reshape(self.before, batch_size, self.after, *rest).movedim(1, 0).flatten(1, 2)


@lru_cache(maxsize=4096)
def axis_of(place: Place) -> ExampleAxis:
    """Return the example axis for the place that a proof found."""
    if place.before == place.after == 1:
        return WholeAxis(axis=place.axis)
    if place.axis == 0 and place.before == 1:
        return FoldedAxis(examples_first=True)
    if place.axis == 0 and place.after == 1:
        return FoldedAxis(examples_first=False)
    return InnerAxis(axis=place.axis, before=place.before, after=place.after)


@lru_cache(maxsize=4096)
def candidates(shape: torch.Size, batch_size: int) -> tuple[ExampleAxis, ...]:
    """Return every possible example axis of a tensor of this shape, likeliest first."""
    found: list[ExampleAxis] = [WholeAxis(axis=axis) for axis, size in enumerate(shape) if size == batch_size]
    if shape and shape[0] % batch_size == 0 and shape[0] != batch_size:
        found += [FoldedAxis(examples_first=True), FoldedAxis(examples_first=False)]
    return tuple(found)


def fits(axis: ExampleAxis, gradient: Tensor | None, absent: Tensor) -> bool:
    """Tell whether the gradient of the present examples' losses is exactly zero at every absent example.

    Args:
        axis: The supposed example axis.
        gradient: Gradient of the summed losses of the examples that are not ``absent``; None if it never arrived.
        absent: Boolean vector over examples.
    """
    if gradient is None:
        return True
    rows = axis.in_front(gradient, len(absent))
    found = rows[absent]
    if not bool(found.count_nonzero()):  # the usual case, in one pass
        return True
    return not bool((found.ne(0) & found.isnan().logical_not()).any())  # zero times infinity proves nothing


def is_finite(tensor: Tensor) -> bool:
    """Tell whether every element is finite; in one pass where their sum is."""
    if tensor.is_complex():
        return bool(tensor.isfinite().all())
    return math.isfinite(float(tensor.sum())) or bool(tensor.isfinite().all())
