"""Strategies that measure the norm of each example's gradient. All are exact; they differ in time and memory only."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from privet.gradients.forms.per_example import (
    LONGEST_SUM,
    Convolution,
    Explicit,
    Lookup,
    Outer,
    PerExample,
    TiedTable,
    batched_product,
)
from privet.gradients.norms import kernels
from privet.gradients.norms.product_precision import HALF, convolutions_round, products_round

# Largest number of elements written at once while norms are measured, and kept per layer until factors are known.
_MAX_SCRATCH = 1 << 24
_STRETCH = 1024
# What products of single precision that a user lets a processor form with fewer bits may hide.
_MARGINS = {"bf16": 2.0**-6, "tf32": 2.0**-8}
MAX_STORED = 1 << 26


@dataclass(frozen=True, kw_only=True, eq=False)
class Squares:
    """Squared norms ``[batch]``, or ``[layers, batch]`` of several layers, and what rounding may have taken from them.

    When the terms of different positions cancel, rounding error remains, in the measured norm and in the sum that is
    added later. A norm that comes out too small would let too much through.

    Attributes:
        sums: The squared norms as measured.
        sizes: The summed squares of the terms behind them; None where norm and sum are formed from the same numbers.
        floor: Least share of ``sizes`` that is distinguishable from rounding in full precision.
        margin: Share of ``sizes`` that products of reduced precision (tf32) may have hidden; 0 without them.
    """

    sums: Tensor
    sizes: Tensor | None = None
    floor: float = 0.0
    margin: float = 0.0

    def safe(self) -> Tensor:
        """Return squared norms that are not too small."""
        return total_of([self])


def hedged(sums: Tensor, sizes: Tensor, num_positions: int, factor: Tensor, *, convolves: bool = False) -> Squares:
    """Return measured squares with room for the rounding of products and sums of this factor's kind."""
    # some hundred times the rounding error of full precision: only near-total cancellation reaches it
    floor = torch.finfo(sizes.dtype).eps * max(1 << 13, 16 * num_positions)
    # the share of squares that reduced precision may hide is twice its share of the norm
    margin = 0.0
    if factor.dtype in HALF:
        margin = 2.0**-6  # weighted factors are rounded to 8 bits
    elif factor.is_cuda and factor.dtype == torch.float32:
        is_reduced = products_round() or (convolves and convolutions_round())
        # tf32 keeps 10 bits, and hardware cuts the rest off, so that errors do not average out
        margin = 2.0**-8 if is_reduced else 0.0
    elif factor.dtype == torch.float32:
        processor: Any = torch.backends.mkldnn  # attributes that type checkers do not know
        margin = _MARGINS.get(processor.matmul.fp32_precision, 0.0)
        if convolves:
            margin = max(margin, _MARGINS.get(processor.conv.fp32_precision, 0.0))
    return Squares(sums=sums, sizes=sizes, floor=floor, margin=margin)


def total_of(squares: Sequence[Squares]) -> Tensor:
    """Add up the squared norms of several parameters, none of them too small; few operations for many parameters."""
    by_margin: dict[float | None, list[Squares]] = defaultdict(list)
    for each in squares:
        by_margin[None if each.sizes is None else each.margin].append(each)
    totals, num_examples = [], squares[0].sums.shape[-1]
    for margin, alike in by_margin.items():
        sums = torch.cat([each.sums.view(-1, num_examples) for each in alike])
        if margin is not None:
            sizes = torch.cat([each.sizes.view(-1, num_examples) for each in alike if each.sizes is not None])
            if margin > 0:
                sums.add_(sizes, alpha=margin)
            else:
                torch.maximum(sums, sizes.mul_(max(each.floor for each in alike)), out=sums)
        totals.append(sums.sum(0) if len(sums) > 1 else sums[0])
    return totals[0] if len(totals) == 1 else torch.stack(totals).sum(0)


class Strategy(Protocol):
    """One way to measure norms."""

    @property
    def name(self) -> str:
        """What a report calls it."""
        ...

    def fits(self, part: Any) -> bool:
        """Whether it can be used for gradients of this shape within the memory limits."""
        ...

    def measure(self, part: Any) -> tuple[Squares, PerExample]:
        """Return squared norms, and the form to keep for the weighted sum."""
        ...


def sums_and_sizes(products: Tensor) -> Tensor:
    """Add up a matrix of inner products per example: all of it, and its diagonal; ``[2, batch]``."""
    return torch.stack([products.sum((1, 2)), products.diagonal(dim1=1, dim2=2).sum(1)])


def in_pieces(part: PerExample, elements_per_example: int, measure: Callable[[Any], Tensor]) -> Tensor:
    """Measure (to ``[..., batch]``) as many examples at a time as the scratch memory allows."""
    rows = max(1, _MAX_SCRATCH // max(1, elements_per_example))
    if len(part) <= rows:
        return measure(part)
    return torch.cat([measure(part[start : start + rows]) for start in range(0, len(part), rows)], -1)


def square_sums(gradients: Tensor) -> Tensor:
    """Return the squared length of each row's gradient."""
    rows = gradients.reshape(len(gradients), -1)
    # on the processor torch adds up a whole row in single precision, which comes out short for millions of numbers;
    # stretches do not, and devices add in trees
    whole = 0 if rows.is_cuda else rows.shape[1] // _STRETCH * _STRETCH
    if whole == 0:
        dtype = torch.promote_types(rows.dtype, torch.float32)
        lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=dtype)
        return lengths.square_()
    stretches: Tensor = torch.linalg.vector_norm(rows[:, :whole].reshape(len(rows), -1, _STRETCH), dim=2)
    total = stretches.square_().sum(1)
    return total if whole == rows.shape[1] else total.add_(square_sums(rows[:, whole:]))


class _AlwaysFits:
    """A strategy for all parts of its form."""

    def fits(self, part: PerExample) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class Written(_AlwaysFits):
    """The gradients are written out already."""

    name: str = "explicit"

    def measure(self, part: Explicit) -> tuple[Squares, PerExample]:
        return Squares(sums=square_sums(part.gradients)), part


@dataclass(frozen=True, kw_only=True)
class Store:
    """Write every gradient out, measure it and keep it: the weighted sum is then one cheap product."""

    name: str = "store"

    def fits(self, part: PerExample) -> bool:
        """While all gradients of the layer fit the memory limit."""
        return len(part) * parameter_size(part) <= MAX_STORED

    def measure(self, part: PerExample) -> tuple[Squares, PerExample]:
        gradients = part.in_full()
        return Squares(sums=square_sums(gradients)), Explicit(gradients=gradients)


@dataclass(frozen=True, kw_only=True)
class NormOnly:
    """Write gradients out some examples at a time, measure them and drop them."""

    name: str = "norm only"

    def fits(self, part: PerExample) -> bool:
        """Always; an embedding's table is the one thing too large to write out for nothing."""
        return not isinstance(part, Lookup)

    def measure(self, part: PerExample) -> tuple[Squares, PerExample]:
        """Materialise in pieces."""
        squares = in_pieces(part, parameter_size(part), lambda piece: square_sums(piece.in_full()))
        return self.hedged(squares, part), part

    def hedged(self, squares: Tensor, part: Any) -> Squares:
        """Leave room for the rounding of a linear map's gradients."""
        if not isinstance(part, TiedTable):
            return hedged(squares, term_sizes(part), part.inputs.shape[1], part.inputs)
        looked_up = part.lookup.out_grads.square().sum((1, 2))
        length = part.outer.inputs.shape[1] + part.lookup.ids.shape[1]
        return hedged(squares, term_sizes(part.outer) + looked_up, length, part.outer.inputs)


def term_sizes(part: Outer) -> Tensor:
    """Return the summed squares of the outer products of each example's positions."""
    dtype = torch.promote_types(part.inputs.dtype, torch.float32)
    into: Tensor = torch.linalg.vector_norm(part.inputs, dim=2, dtype=dtype)
    back: Tensor = torch.linalg.vector_norm(part.out_grads, dim=2, dtype=dtype)
    return into.mul_(back).square_().sum(1)


@dataclass(frozen=True, kw_only=True)
class RankOne:
    """A single position: the norm of an outer product is the product of two lengths."""

    name: str = "rank one"

    def fits(self, part: Outer) -> bool:
        """One position per example."""
        return part.inputs.shape[1] == 1

    def measure(self, part: Outer) -> tuple[Squares, PerExample]:
        """Multiply the squared lengths, each raised by what squaring may have lost to underflow."""
        tiny = 4 * torch.finfo(torch.promote_types(part.inputs.dtype, torch.float32)).tiny
        into = square_sums(part.inputs).add_(tiny * part.inputs.shape[2])
        squares = into.mul_(square_sums(part.out_grads).add_(tiny * part.out_grads.shape[2]))
        return hedged(squares, squares, 1, part.inputs), part


@dataclass(frozen=True, kw_only=True)
class Gram:
    """Ghost norm: products between positions, without ever forming a gradient (Li et al. 2022).

    Attributes:
        halvings: How often positions are cut in half, so that products between halves are formed once: the matrices
            are symmetric, and 1/4 (one cut) or 3/8 (two cuts) of the work is saved.
    """

    halvings: int = 0

    @property
    def name(self) -> str:
        return "gram" if self.halvings == 0 else f"gram cut {self.halvings}x"

    def fits(self, part: Outer) -> bool:
        """While the products between positions are not far more work than the gradient itself."""
        length, width_in, width_out = part.inputs.shape[1], part.inputs.shape[2], part.out_grads.shape[2]
        # on a processor the gain is small, and every further candidate delays the first step
        if self.halvings and not (
            part.inputs.is_cuda and length % 2**self.halvings == 0 and length >= 64 * 2**self.halvings
        ):
            return False
        return length > 1 and length * (width_in + width_out) < 8 * width_in * width_out and length <= 4096

    def measure(self, part: Outer) -> tuple[Squares, PerExample]:
        """Sum the elementwise product of the two Gram matrices."""
        found = in_pieces(part, 2 * part.inputs.shape[1] ** 2, self._pairs)
        return hedged(found[0], found[1], part.inputs.shape[1], part.inputs), part

    def _pairs(self, part: Outer) -> Tensor:
        inputs, out_grads, twice = part.inputs, part.out_grads, None
        for _ in range(self.halvings):
            inputs, out_grads = (each.reshape(-1, 2, each.shape[1] // 2, each.shape[2]) for each in (inputs, out_grads))
            across = batched_product(inputs[:, 0], inputs[:, 1].mT)
            across.mul_(batched_product(out_grads[:, 0], out_grads[:, 1].mT))
            found = across.sum((1, 2)).view(len(part), -1).sum(1)
            twice = found if twice is None else twice.add_(found)
            inputs, out_grads = inputs.flatten(0, 1), out_grads.flatten(0, 1)
        products = batched_product(inputs, inputs.mT)
        if twice is None:
            return sums_and_sizes(products.mul_(part.products_of_out_grads()))
        found = sums_and_sizes(products.mul_(batched_product(out_grads, out_grads.mT)))
        found = found.view(2, len(part), -1).sum(2)
        found[0].add_(twice, alpha=2)
        return found


@dataclass(frozen=True, kw_only=True)
class SameRow:
    """Embedding: products between positions that look up the same row."""

    name: str = "same row"

    def fits(self, part: Lookup) -> bool:
        """While one example's matrix of products stays within the scratch memory."""
        return 2 * part.ids.shape[1] ** 2 <= _MAX_SCRATCH

    def measure(self, part: Lookup) -> tuple[Squares, PerExample]:
        """Sum the products of output gradients with equal ids."""
        found = in_pieces(part, 2 * part.ids.shape[1] ** 2, self._pairs)
        return hedged(found[0], found[1], part.ids.shape[1], part.out_grads), part

    def _pairs(self, part: Lookup) -> Tensor:
        same = part.ids.unsqueeze(1) == part.ids.unsqueeze(2)
        return sums_and_sizes(torch.bmm(part.out_grads, part.out_grads.mT).mul_(same))


@dataclass(frozen=True, kw_only=True)
class RowSums(_AlwaysFits):
    """Embedding: the gradients of the rows that were looked up, and of no others; linear in the length."""

    name: str = "row sums"

    def measure(self, part: Lookup) -> tuple[Squares, PerExample]:
        """Add up what belongs to the same row, and take squares."""
        found = in_pieces(part, part.out_grads[0].numel(), self._squares)
        return hedged(found[0], found[1], part.ids.shape[1], part.out_grads), part

    def _squares(self, part: Lookup) -> Tensor:
        ids, order = part.ids.sort(1)
        # the looked-up rows of an example are numbered in the order of their ids, so that a table as long as the
        # sequence holds them all
        slots = torch.zeros_like(ids)
        slots[:, 1:] = (ids[:, 1:] != ids[:, :-1]).cumsum(1)
        slots = torch.empty_like(slots).scatter_(1, order, slots)
        rows = torch.zeros_like(part.out_grads)
        rows.scatter_add_(1, slots.unsqueeze(2).expand_as(rows), part.out_grads)
        return torch.stack([square_sums(rows), square_sums(part.out_grads)])


@dataclass(frozen=True, kw_only=True)
class TableGram:
    """A table that is also a linear map's weight: products between look-ups, between positions, and across.

    Across, row ``ids[t]`` of the linear map's gradient meets look-up ``t``: a gather, never a table per example.
    """

    name: str = "table gram"

    def fits(self, part: TiedTable) -> bool:
        """While the matrices of products stay moderate."""
        return max(part.outer.inputs.shape[1], part.lookup.ids.shape[1]) <= 4096

    def measure(self, part: TiedTable) -> tuple[Squares, PerExample]:
        """Sum the products of all pairs of contributions."""
        length = part.outer.inputs.shape[1] + part.lookup.ids.shape[1]
        found = in_pieces(part, 4 * length**2, self._pairs)
        return hedged(found[0], found[1], length, part.outer.inputs), part

    def _pairs(self, part: TiedTable) -> Tensor:
        outer, lookup = part.outer, part.lookup
        length, num_lookups = outer.inputs.shape[1], lookup.ids.shape[1]
        products = lookup.out_grads.new_empty(len(part), length + num_lookups, length + num_lookups)
        between, across = products[:, :length, :length], products[:, :length, length:]
        torch.mul(batched_product(outer.inputs, outer.inputs.mT), outer.products_of_out_grads(), out=between)
        same = lookup.ids.unsqueeze(1) == lookup.ids.unsqueeze(2)
        torch.mul(lookup.out_grads @ lookup.out_grads.mT, same, out=products[:, length:, length:])
        met = outer.out_grads.gather(2, lookup.ids.unsqueeze(1).expand(-1, length, -1))
        torch.mul(outer.inputs.to(lookup.out_grads.dtype) @ lookup.out_grads.mT, met, out=across)
        products[:, length:, :length] = across.mT
        return sums_and_sizes(products)


@dataclass(frozen=True, kw_only=True)
class GramKernel:
    """:class:`Gram` in one kernel that computes each pair of positions once and writes no matrix."""

    block: int

    @property
    def name(self) -> str:
        return f"gram kernel {self.block}"

    def fits(self, part: Outer) -> bool:
        """Where the plain Gram would do and needs no stretches, on a device that runs kernels."""
        is_short = max(part.inputs.shape[2], part.out_grads.shape[2]) <= LONGEST_SUM
        return is_short and kernels.available(part.inputs) and Gram().fits(part)

    def measure(self, part: Outer) -> tuple[Squares, PerExample]:
        found = kernels.gram_square_norms(part.inputs, part.out_grads, block=self.block)
        return hedged(found[0], found[1], part.inputs.shape[1], part.inputs), part


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
