"""Ways to measure the norm of each example's gradient. Every one is exact; they differ in time and memory only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from privet.gradients import kernels
from privet.gradients.per_example import Convolution, Explicit, Lookup, Outer, PerExample, TiedTable

# Largest number of elements written at once while norms are measured, and kept per layer until factors are known.
_MAX_SCRATCH = 1 << 24
_STRETCH = 1024
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

    See :func:`rounding_floor`.
    """
    sizes = products.diagonal(dim1=1, dim2=2).sum(1)
    return products.sum((1, 2)).maximum(rounding_floor(sizes, products.shape[1]))


def rounding_floor(sizes: Tensor, num_positions: int) -> Tensor:
    """Return the least squared norm that can be told from rounding, given the summed squares of a gradient's terms.

    When the terms of different positions cancel, what is left of them is rounding error, in the measured norm and in
    the sum that is later added. A norm that comes out too small would let too much through, so it is never taken to be
    less than some hundred times that error. Only near-total cancellation reaches the floor.
    """
    return sizes * (torch.finfo(sizes.dtype).eps * max(1 << 13, 16 * num_positions))


def in_pieces(part: PerExample, elements_per_example: int, measure: Callable[[Any], Tensor]) -> Tensor:
    """Measure so many examples at a time that the scratch memory stays bounded."""
    rows = max(1, _MAX_SCRATCH // max(1, elements_per_example))
    if len(part) <= rows:
        return measure(part)
    return torch.cat([measure(part[start : start + rows]) for start in range(0, len(part), rows)])


def square_sums(gradients: Tensor) -> Tensor:
    """Return the squared length of each row's gradient."""
    rows = gradients.reshape(len(gradients), -1)
    # on the processor torch adds up a whole row in single precision, which comes out short for millions of numbers;
    # stretches do not, and devices add in trees
    whole = 0 if rows.is_cuda else rows.shape[1] // _STRETCH * _STRETCH
    if whole == 0:
        lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return lengths.square_()
    stretches: Tensor = torch.linalg.vector_norm(rows[:, :whole].reshape(len(rows), -1, _STRETCH), dim=2)
    total = stretches.square_().sum(1)
    return total if whole == rows.shape[1] else total.add_(square_sums(rows[:, whole:]))


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
        squares = in_pieces(part, parameter_size(part), lambda piece: square_sums(piece.in_full()))
        return squares.maximum(self.floor(part)), part

    def floor(self, part: Any) -> Tensor:
        """Return the rounding floor of a linear map's gradients."""
        if isinstance(part, TiedTable):
            looked_up = part.lookup.out_grads.square().sum((1, 2))
            return self.floor(part.outer) + rounding_floor(looked_up, part.lookup.ids.shape[1])
        sizes = (part.inputs.square().sum(2) * part.out_grads.square().sum(2)).sum(1)
        return rounding_floor(sizes, part.inputs.shape[1])


@dataclass(frozen=True, kw_only=True)
class RankOne:
    """A single position: the norm of an outer product is the product of two lengths."""

    name: str = "rank one"

    def fits(self, part: Outer) -> bool:
        """One position per example."""
        return part.inputs.shape[1] == 1

    def measure(self, part: Outer) -> tuple[Tensor, PerExample]:
        """Multiply the squared lengths, neither taken to be less than what squaring may have lost to underflow."""
        tiny = 4 * torch.finfo(part.inputs.dtype).tiny
        into = square_sums(part.inputs).add_(tiny * part.inputs.shape[2])
        return into.mul_(square_sums(part.out_grads).add_(tiny * part.out_grads.shape[2])), part


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
class TableGram:
    """A table that is also a linear map's weight: products between look-ups, between positions, and across.

    Across, row ``ids[t]`` of the linear map's gradient meets look-up ``t``: a gather, never a table per example.
    """

    name: str = "table gram"

    def fits(self, part: TiedTable) -> bool:
        """While the matrices of products stay moderate."""
        return max(part.outer.inputs.shape[1], part.lookup.ids.shape[1]) <= 4096

    def measure(self, part: TiedTable) -> tuple[Tensor, PerExample]:
        """Sum the products of all pairs of contributions."""
        return in_pieces(part, 4 * (part.outer.inputs.shape[1] + part.lookup.ids.shape[1]) ** 2, self._pairs), part

    def _pairs(self, part: TiedTable) -> Tensor:
        outer, lookup = part.outer, part.lookup
        length, num_lookups = outer.inputs.shape[1], lookup.ids.shape[1]
        products = outer.inputs.new_empty(len(part), length + num_lookups, length + num_lookups)
        between, across = products[:, :length, :length], products[:, :length, length:]
        torch.mul(outer.inputs @ outer.inputs.mT, outer.out_grads @ outer.out_grads.mT, out=between)
        same = lookup.ids.unsqueeze(1) == lookup.ids.unsqueeze(2)
        torch.mul(lookup.out_grads @ lookup.out_grads.mT, same, out=products[:, length:, length:])
        met = outer.out_grads.gather(2, lookup.ids.unsqueeze(1).expand(-1, length, -1))
        torch.mul(outer.inputs @ lookup.out_grads.mT, met, out=across)
        products[:, length:, :length] = across.mT
        return sum_of_products(products)


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
        return total.maximum(rounding_floor(sizes, part.inputs.shape[1])), part


def parameter_size(part: PerExample) -> int:
    """Return the number of coordinates of the parameter."""
    if isinstance(part, Outer):
        return part.inputs.shape[2] * part.out_grads.shape[2]
    if isinstance(part, Convolution):
        return math.prod(part.geometry.weight_shape)
    if isinstance(part, TiedTable):
        return parameter_size(part.outer)
    if isinstance(part, Lookup):
        return part.num_rows * part.out_grads.shape[2]
    return part.in_full()[0].numel()
