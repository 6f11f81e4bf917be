"""Ways to measure the norm of each example's gradient. Every one is exact; they differ in time and memory only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from privet.gradients import kernels
from privet.gradients.per_example import Convolution, Explicit, Lookup, Outer, PerExample

# Largest number of elements written at once while norms are measured, and kept per layer until factors are known.
_MAX_SCRATCH = 1 << 24
MAX_STORED = 1 << 26


class Strategy(Protocol):
    """One way to measure norms."""

    @property
    def name(self) -> str:
        """What a report calls it."""
        ...

    def fits(self, part: Any) -> bool:
        """Whether it can be used for gradients of this shape within the memory limits."""
        ...

    def measure(self, part: Any) -> tuple[Tensor, PerExample]:
        """Return squared norms ``[batch]`` and what to keep for the weighted sum."""
        ...


def sum_of_products(products: Tensor) -> Tensor:
    """Add up a matrix of inner products per example into a squared norm that rounding cannot make too small.

    When contributions of different positions cancel, their sum is rounding error around zero, and a norm that comes out
    too small would let too much through. The floor is that error's size; it is reached only by near-total cancellation.
    """
    sizes = products.diagonal(dim1=1, dim2=2).sum(1)
    floor = sizes * (16 * torch.finfo(products.dtype).eps * products.shape[1])
    return products.sum((1, 2)).maximum(floor)


def in_pieces(part: PerExample, elements_per_example: int, measure: Callable[[Any], Tensor]) -> Tensor:
    """Measure so many examples at a time that the scratch memory stays bounded."""
    rows = max(1, _MAX_SCRATCH // max(1, elements_per_example))
    if len(part) <= rows:
        return measure(part)
    return torch.cat([measure(part[start : start + rows]) for start in range(0, len(part), rows)])


def square_sums(gradients: Tensor) -> Tensor:
    """Return the squared length of each row's gradient."""
    norms: Tensor = torch.linalg.vector_norm(gradients.flatten(1), dim=1)
    return norms.square_()


@dataclass(frozen=True, kw_only=True)
class Written:
    """The gradients are written out already."""

    name: str = "explicit"

    def fits(self, part: Explicit) -> bool:
        """Always."""
        return True

    def measure(self, part: Explicit) -> tuple[Tensor, PerExample]:
        """Sum their squares."""
        return square_sums(part.gradients), part


@dataclass(frozen=True, kw_only=True)
class Store:
    """Write every gradient out, measure it and keep it: the weighted sum is then one cheap product."""

    name: str = "store"

    def fits(self, part: PerExample) -> bool:
        """While all gradients of the layer fit the memory limit."""
        return len(part) * parameter_size(part) <= MAX_STORED

    def measure(self, part: PerExample) -> tuple[Tensor, PerExample]:
        """Materialise and keep."""
        gradients = part.in_full()
        return square_sums(gradients), Explicit(gradients=gradients)


@dataclass(frozen=True, kw_only=True)
class NormOnly:
    """Write gradients out some examples at a time, measure them and drop them."""

    name: str = "norm only"

    def fits(self, part: PerExample) -> bool:
        """Always; an embedding's table is the one thing too large to write out for nothing."""
        return not isinstance(part, Lookup)

    def measure(self, part: PerExample) -> tuple[Tensor, PerExample]:
        """Materialise in pieces."""
        size = parameter_size(part)
        return in_pieces(part, size, lambda piece: square_sums(piece.in_full())), part


@dataclass(frozen=True, kw_only=True)
class RankOne:
    """A single position: the norm of an outer product is the product of two lengths."""

    name: str = "rank one"

    def fits(self, part: Outer) -> bool:
        """One position per example."""
        return part.inputs.shape[1] == 1

    def measure(self, part: Outer) -> tuple[Tensor, PerExample]:
        """Multiply the lengths."""
        return square_sums(part.inputs) * square_sums(part.out_grads), part


@dataclass(frozen=True, kw_only=True)
class Gram:
    """Ghost norm: products between positions, without ever forming a gradient (Li et al. 2022)."""

    name: str = "gram"

    def fits(self, part: Outer) -> bool:
        """While the products between positions are not far more work than the gradient itself."""
        length, width_in, width_out = part.inputs.shape[1], part.inputs.shape[2], part.out_grads.shape[2]
        return length > 1 and length * (width_in + width_out) < 8 * width_in * width_out and length <= 4096

    def measure(self, part: Outer) -> tuple[Tensor, PerExample]:
        """Sum the elementwise product of the two Gram matrices."""
        return in_pieces(part, 2 * part.inputs.shape[1] ** 2, self._pairs), part

    def _pairs(self, part: Outer) -> Tensor:
        products = torch.bmm(part.inputs, part.inputs.mT)
        return sum_of_products(products.mul_(torch.bmm(part.out_grads, part.out_grads.mT)))


@dataclass(frozen=True, kw_only=True)
class SameRow:
    """Embedding: products between positions that look up the same row."""

    name: str = "same row"

    def fits(self, part: Lookup) -> bool:
        """Always."""
        return True

    def measure(self, part: Lookup) -> tuple[Tensor, PerExample]:
        """Sum the products of output gradients with equal ids."""
        return in_pieces(part, 2 * part.ids.shape[1] ** 2, self._pairs), part

    def _pairs(self, part: Lookup) -> Tensor:
        same = part.ids.unsqueeze(1) == part.ids.unsqueeze(2)
        return sum_of_products(torch.bmm(part.out_grads, part.out_grads.mT).mul_(same))


@dataclass(frozen=True, kw_only=True)
class GramKernel:
    """:class:`Gram` in one kernel that computes each pair of positions once and writes no matrix."""

    block: int

    @property
    def name(self) -> str:
        """The tile size is part of the choice."""
        return f"gram kernel {self.block}"

    def fits(self, part: Outer) -> bool:
        """Where the plain Gram would do, on a device that runs kernels."""
        return kernels.available(part.inputs) and Gram().fits(part)

    def measure(self, part: Outer) -> tuple[Tensor, PerExample]:
        """Sum over pairs of positions."""
        total, sizes = kernels.gram_square_norms(part.inputs, part.out_grads, block=self.block)
        floor = sizes * (16 * torch.finfo(torch.float32).eps * part.inputs.shape[1])
        return total.maximum(floor), part


def parameter_size(part: PerExample) -> int:
    """Return the number of coordinates of the parameter."""
    if isinstance(part, Outer):
        return part.inputs.shape[2] * part.out_grads.shape[2]
    if isinstance(part, Convolution):
        return math.prod(part.geometry.weight_shape)
    if isinstance(part, Lookup):
        return part.num_rows * part.out_grads.shape[2]
    return part.in_full()[0].numel()
