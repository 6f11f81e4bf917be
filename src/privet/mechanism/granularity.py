"""Granularity of a mask: single coordinates, rows, or blocks of rows.

Engines skip the work on masked rows: a masked row needs no norm, no sum and no noise. A mask of single coordinates only
saves noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.mechanism.layout import Layout

if TYPE_CHECKING:
    from torch import Tensor

_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Kept:
    """The coordinates that take part in a step. Public.

    Attributes:
        coordinates: A boolean vector over the layout, True where kept.
        weights: The same as ones and zeros in the precision of the sum.
        index: The indices of the kept coordinates, in order.
        bits: The same as integers with the width of the sum's numbers, all ones or all zeros. One bitwise pass clears
            the masked coordinates of the sum, also NaN and infinity. None on devices, where memory is scarcer than
            time, and for a mask of whole rows, which needs no such pass.
        rows: For a mask of whole rows, the kept rows of each parameter, or None for a parameter that is kept in full;
            None for other masks.
    """

    coordinates: Tensor
    weights: Tensor
    index: Tensor
    bits: Tensor | None = None
    rows: tuple[Tensor | None, ...] | None = None

    @classmethod
    def of(cls, weights: Tensor, rows: tuple[Tensor | None, ...] | None = None) -> Kept:
        """Build all forms from ones and zeros."""
        coordinates, bits = weights != 0, None
        if rows is None and weights.device.type == "cpu":
            bits = (coordinates.int() if weights.element_size() == 4 else coordinates.long()).neg_()
        return cls(coordinates=coordinates, weights=weights, index=weights.nonzero().squeeze(1), bits=bits, rows=rows)

    @property
    def masked_share(self) -> float:
        """The share of the coordinates that take no part."""
        return 1 - len(self.index) / len(self.weights)


@dataclass(frozen=True, kw_only=True)
class _ParameterUnits:
    """The mask units of one parameter: ``num_rows`` rows of ``row_size`` coordinates, ``block`` rows per unit."""

    first_unit: int
    num_rows: int
    row_size: int
    block: int

    @property
    def num_units(self) -> int:
        return -(-self.num_rows // self.block)

    def of_rows(self, per_unit: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return one value per row from one value per unit."""
        mine = per_unit[self.first_unit : self.first_unit + self.num_units]
        return mine if self.block == 1 else np.repeat(mine, self.block)[: self.num_rows]

    def add_squares(
        self, values: NDArray[np.float64], squares: NDArray[np.float64], sizes: NDArray[np.float64]
    ) -> None:
        """Add the squares of the coordinates of this parameter, and their number, to each unit."""
        if self.num_rows == 0:
            return
        mine = slice(self.first_unit, self.first_unit + self.num_units)
        by_row = np.square(values).reshape(self.num_rows, self.row_size).sum(1)
        starts = np.arange(0, self.num_rows, self.block)
        squares[mine] += np.add.reduceat(by_row, starts)
        sizes[mine] += np.diff(np.append(starts, self.num_rows)) * self.row_size


@dataclass(frozen=True, kw_only=True)
class MaskUnits:
    """The mask units of a layout, in strata; the same share of every stratum is masked.

    Attributes:
        parameters: The units of each parameter, in the order of the layout.
        strata: Number of units in each stratum; units are numbered across strata.
        are_rows: Whether every unit consists of whole rows.
    """

    parameters: tuple[_ParameterUnits, ...]
    strata: tuple[int, ...]
    are_rows: bool

    @property
    def number(self) -> int:
        return sum(self.strata)

    def num_dropped(self, rate: float) -> list[int]:
        """Return the number of masked units of each stratum: the share ``rate``, rounded down, and never all units."""
        return [max(0, min(size - 1, math.floor(rate * size + _ROUNDING))) for size in self.strata]

    def mean_squares(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean square of every unit of a vector over the layout."""
        squares, sizes, start = np.zeros(self.number), np.zeros(self.number), 0
        for part in self.parameters:
            end = start + part.num_rows * part.row_size
            part.add_squares(values[start:end], squares, sizes)
            start = end
        means: NDArray[np.float64] = squares / sizes
        return means

    def keep_largest(self, rate: float, scores: NDArray[np.float64], like: Tensor) -> Kept | None:
        """Mask the share ``rate`` of every stratum, the units with the smallest scores; None if no unit is masked."""
        dropped = self.num_dropped(rate)
        if not any(dropped):
            return None
        keep, start = np.ones(self.number, dtype=np.bool_), 0
        for size, number in zip(self.strata, dropped, strict=True):
            if number:
                keep[start + np.argpartition(scores[start : start + size], number - 1)[:number]] = False
            start += size
        return self._spread(keep, like)

    def _spread(self, keep: NDArray[np.bool_], like: Tensor) -> Kept:
        by_row = [part.of_rows(keep) for part in self.parameters]
        spread = [
            rows if part.row_size == 1 else np.repeat(rows, part.row_size)
            for rows, part in zip(by_row, self.parameters, strict=True)
        ]
        weights = like.new_tensor(np.concatenate(spread))
        rows = None
        if self.are_rows:
            rows = tuple(None if kept.all() else like.new_tensor(kept).nonzero().squeeze(1) for kept in by_row)
        return Kept.of(weights, rows)


@runtime_checkable
class Granularity(Protocol):
    """The units in which a mask keeps or drops coordinates."""

    def units(self, layout: Layout) -> MaskUnits:
        """Divide a layout into units."""
        ...


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """Single coordinates, in one stratum over the whole vector: the masks of Zhu and Blaschko (2023)."""

    def units(self, layout: Layout) -> MaskUnits:
        parameters = tuple(
            _ParameterUnits(first_unit=offset, num_rows=size, row_size=1, block=1)
            for offset, size in zip(layout.offsets, layout.sizes, strict=True)
        )
        return MaskUnits(parameters=parameters, strata=(layout.num_coordinates,), are_rows=False)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Output rows of linear maps and output channels of convolutions, each with its bias entry; one stratum per layer.

    Every layer loses the same share of its rows, rounded down, so the saved work is known in advance. A scalar
    parameter is never masked.
    """

    def units(self, layout: Layout) -> MaskUnits:
        return _rows_of(layout, block=1)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Blocks of neighbouring rows of a layer, with their bias entries; one stratum per layer.

    Attributes:
        num_rows: Rows per block; the last block of a layer may be smaller.
    """

    num_rows: int

    def __post_init__(self) -> None:
        checks.fields(self, checks.count, "num_rows")

    def units(self, layout: Layout) -> MaskUnits:
        return _rows_of(layout, block=self.num_rows)


def _rows_of(layout: Layout, *, block: int) -> MaskUnits:
    parameters: list[_ParameterUnits] = []
    strata: list[int] = []
    layers: dict[str, tuple[int, int]] = {}  # module -> number of rows and first unit of its weight
    total = 0
    for name, shape, size in zip(layout.names, layout.shapes, layout.sizes, strict=True):
        num_rows = shape[0] if shape else 1
        module = name.rpartition(".")[0]
        rows_of_layer, first = layers.get(module, (0, 0))
        if not (len(shape) == 1 and rows_of_layer == num_rows):  # not the bias of a weight that was seen before
            first = total
            units = -(-num_rows // block)
            strata.append(units)
            total += units
            layers[module] = (num_rows, first)
        parameters.append(
            _ParameterUnits(first_unit=first, num_rows=num_rows, row_size=size // max(1, num_rows), block=block)
        )
    return MaskUnits(parameters=tuple(parameters), strata=tuple(strata), are_rows=True)
