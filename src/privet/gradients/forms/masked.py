"""Per-example gradients under a mask, and strategies that measure their norms.

A mask of whole rows is a smaller layer: the masked rows of the output gradients are left out before anything is done
with them, so they cost nothing. A mask of single coordinates changes the norm of each layer differently. For a
linear map of one position it is one more matrix product, since the squares of an outer product are an outer product
again: ``sum over o, i of g_o^2 M_oi a_i^2`` for output gradients ``g``, inputs ``a`` and mask ``M``. With several
positions the terms no longer factor, and the gradients are written out by the strategy that is fastest for the layer.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from privet.gradients.forms.per_example import Convolution, Explicit, Lookup, Outer, PerExample, TiedTable
from privet.gradients.forms.writing import WRITERS, WrittenOut, room_for_rounding
from privet.gradients.norms.strategies import MAX_STORED, Squares, hedged, in_pieces, parameter_size, square_sums


@dataclass(frozen=True, kw_only=True, eq=False)
class Masked:
    """Gradients of which only the coordinates in ``keep`` count.

    Masks are multiplied, not selected by: a processor multiplies ten times as fast as it chooses at random. An example
    with an entry that is not finite is broken also if that entry is masked, for zero times infinity is NaN.

    Attributes:
        part: The gradients without the mask.
        keep: Ones and zeros of the parameter's shape, at least in single precision.
        bits: The same as integers as wide as the sum's numbers, all ones or all zeros; None if there are none.
    """

    part: PerExample
    keep: Tensor
    bits: Tensor | None = None

    @property
    def out_grads(self) -> Tensor:
        """A factor of the gradients, which says where and in which precision they are."""
        found: Tensor = self.part.gradients if isinstance(self.part, Explicit) else self.part.out_grads  # type: ignore[attr-defined]
        return found

    @property
    def shape_key(self) -> Hashable:
        return (type(self.part), self.part.shape_key)

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, rows: slice) -> Masked:
        return replace(self, part=self.part[rows])

    def in_full(self) -> Tensor:
        """Write the gradients out and clear masked coordinates."""
        return self.part.in_full() * self.keep

    def add_weighted_sum(self, weights: Tensor, into: Tensor) -> None:
        """Add the sum and clear masked coordinates; masked coordinates of ``into`` are zero before and after."""
        self.part.add_weighted_sum(weights, into)
        # a masked coordinate is not clipped, so its sum may overflow; it must be zero nevertheless
        if self.bits is None:
            into.nan_to_num_().mul_(self.keep)
        else:
            into.view(self.bits.dtype).bitwise_and_(self.bits)

    def without(self, bad: Tensor) -> Masked:
        return replace(self, part=self.part.without(bad))


@dataclass(frozen=True, kw_only=True, eq=False)
class SomeRows:
    """Gradients that are zero but for some rows of the parameter.

    Attributes:
        part: The gradients of those rows, as of a smaller parameter.
        rows: Their numbers.
        shape: Of the parameter.
        geometry: A key of the cost of the whole parameter.
    """

    part: PerExample
    rows: Tensor
    shape: tuple[int, ...]
    geometry: Hashable

    @property
    def shape_key(self) -> Hashable:
        return (type(self.part), self.part.shape_key)

    @property
    def planned_as(self) -> Hashable:
        """Shapes for which one way to measure will do: the number of kept rows counts by its power of two."""
        return (self.shape, len(self.rows).bit_length(), self.geometry)

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, rows: slice) -> SomeRows:
        return replace(self, part=self.part[rows])

    def in_full(self) -> Tensor:
        """Write the gradients out, other rows as zeros."""
        some = self.part.in_full()
        return some.new_zeros(len(self), *self.shape).index_copy_(1, self.rows, some)

    def add_weighted_sum(self, weights: Tensor, into: Tensor) -> None:
        """Form the sum of the smaller parameter and add it to its rows."""
        some = into.new_zeros(len(self.rows), *self.shape[1:])
        self.part.add_weighted_sum(weights, some)
        into.index_add_(0, self.rows, some)

    def without(self, bad: Tensor) -> SomeRows:
        return replace(self, part=self.part.without(bad))


def keep_coordinates(part: PerExample, keep: Tensor, bits: Tensor | None = None) -> PerExample:
    """Return gradients of which only the coordinates count for which ``keep`` is one and not zero.

    ``bits`` is the same choice as in :class:`Masked`; without it, clearing a sum takes two passes instead of one.
    """
    if isinstance(part, Explicit):
        return Explicit(gradients=part.gradients * keep)
    if isinstance(part, Lookup):  # positions that meet share a row, and so its mask
        return replace(part, out_grads=part.out_grads * keep[part.ids])
    return Masked(part=part, keep=keep, bits=bits)


def keep_rows(part: PerExample, rows: Tensor, shape: tuple[int, ...]) -> PerExample:
    """Return the gradients of a parameter with all but some rows masked, in a form that skips the others' work."""
    if isinstance(part, Outer):
        smaller = None if part.shape is None else (len(rows), *part.shape[1:])
        if part.shape is None or part.shape[0] == part.out_grads.shape[2]:
            outer = replace(part, out_grads=part.out_grads.index_select(2, rows), shape=smaller)
            return SomeRows(part=outer, rows=rows, shape=shape, geometry=part.shape_key)
    if isinstance(part, Convolution) and part.geometry.groups == 1:
        geometry = replace(part.geometry, weight_shape=(len(rows), *part.geometry.weight_shape[1:]))
        convolution = replace(part, out_grads=part.out_grads.index_select(1, rows), geometry=geometry)
        return SomeRows(part=convolution, rows=rows, shape=shape, geometry=part.shape_key)
    if isinstance(part, Lookup | TiedTable):
        return _rows_of_table(part, _flags(rows, shape[0], part))
    # rows of a grouped convolution belong to different inputs: no smaller convolution has them
    return SomeRows(
        part=Explicit(gradients=part.in_full().index_select(1, rows)), rows=rows, shape=shape, geometry=part.shape_key
    )


def _flags(rows: Tensor, number: int, part: Lookup | TiedTable) -> Tensor:
    return torch.zeros(number, dtype=torch.bool, device=part.out_grads.device).index_fill_(0, rows, True)


def _rows_of_table(part: Lookup | TiedTable, flags: Tensor) -> PerExample:
    """Clear the output gradients of masked rows. A look-up costs the same however many rows the table keeps."""
    if isinstance(part, Lookup):
        return replace(part, out_grads=torch.where(flags[part.ids].unsqueeze(2), part.out_grads, 0))
    outer = replace(part.outer, out_grads=torch.where(flags, part.outer.out_grads, 0))
    lookup = _rows_of_table(part.lookup, flags)
    assert isinstance(lookup, Lookup), "a table's look-ups stay look-ups"
    return TiedTable(lookup=lookup, outer=outer)


# ---------------------------------------------------------------------------------------------- masks of coordinates


@dataclass(frozen=True, kw_only=True)
class MaskedRankOne:
    """A linear map of one position: one more matrix product, and no gradient is ever written out."""

    name: str = "masked rank one"

    def fits(self, part: Masked) -> bool:
        """One position per example."""
        return isinstance(part.part, Outer) and part.part.inputs.shape[1] == 1

    def measure(self, part: Masked) -> tuple[Squares, PerExample]:
        """Sum the products of squares, each raised by the most that squaring may have lost to underflow.

        All terms are positive, so nothing cancels. An entry that is not finite makes the norm infinite or NaN, also
        where it is masked: such an example counts as broken.
        """
        outer: Any = part.part
        dtype = torch.promote_types(outer.inputs.dtype, torch.float32)
        tiny = 4 * torch.finfo(dtype).tiny
        into = outer.inputs[:, 0].to(dtype).square().add_(tiny)
        back = outer.out_grads[:, 0].to(dtype).square().add_(tiny)
        keep = part.keep.view(back.shape[1], into.shape[1]).to(dtype)
        # the product goes over the wider side, so that the result is narrow
        if back.shape[1] >= into.shape[1]:
            squares = torch.mm(back, keep).mul_(into).sum(1)
        else:
            squares = torch.mm(into, keep.mT).mul_(back).sum(1)
        return hedged(squares, squares, 1, outer.inputs), part


@dataclass(frozen=True, kw_only=True)
class MaskedWritten(WrittenOut):
    """Write the gradients out, clear masked coordinates and measure; keep them for the sum, or drop them."""

    form = "masked"

    def fits(self, part: Masked) -> bool:
        """Within the memory limit if stored. A written-out gradient is stored already."""
        if not self.by.fits(part.part):
            return False
        return (
            len(part) * parameter_size(part.part) <= MAX_STORED if self.store else not isinstance(part.part, Explicit)
        )

    def measure(self, part: Masked) -> tuple[Squares, PerExample]:
        """Write and measure."""
        if self.store:
            written = self._written(part)
            return Squares(sums=square_sums(written)), Explicit(gradients=written)
        squares = in_pieces(part, parameter_size(part.part), lambda piece: square_sums(self._written(piece)))
        # sum and norm are formed by different operations, so the margin of the unmasked norm applies
        room = room_for_rounding(part.part)
        return replace(room, sums=squares), part

    def _written(self, part: Masked) -> Tensor:
        return self.by.write(part.part).mul_(part.keep)


MASKED: Sequence[Any] = (
    MaskedRankOne(),
    *(MaskedWritten(by=by, store=store) for by in WRITERS for store in (True, False)),
)
"""Strategies for gradients under a mask of coordinates; where several fit, they are timed."""
