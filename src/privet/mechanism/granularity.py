"""What a mask takes or leaves as one: single coordinates, rows, or blocks of rows.

Whole rows are worth having because work on them can be left out: a row that is masked needs no norm, no sum and no
noise. A mask of single coordinates saves noise only.
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
    """What takes part in a step. Public.

    Attributes:
        coordinates: A boolean vector over the layout, True where kept.
        weights: The same as ones and zeros in the precision of the sum.
        index: The numbers of the kept coordinates, in order.
        bits: The same as integers as wide as the sum's numbers, all ones or all zeros: what is masked is cleared by one
            pass over the sum, whatever stands there. None on devices, where passes are cheap and memory is not, and for
            a mask of whole rows, which needs no such pass.
        rows: For masks of whole rows, the kept rows of each parameter, or None for a parameter that is kept in full;
            None for a mask of another kind.
    """

    coordinates: Tensor
    weights: Tensor
    index: Tensor
    bits: Tensor | None = None
    rows: tuple[Tensor | None, ...] | None = None

    @classmethod
    def of(cls, weights: Tensor, rows: tuple[Tensor | None, ...] | None = None) -> Kept:
        """Bring ones and zeros into all forms."""
        coordinates, bits = weights != 0, None
        if rows is None and weights.device.type == "cpu":
            bits = (coordinates.int() if weights.element_size() == 4 else coordinates.long()).neg_()
        return cls(coordinates=coordinates, weights=weights, index=weights.nonzero().squeeze(1), bits=bits, rows=rows)


@dataclass(frozen=True, kw_only=True)
class _ParameterUnits:
    """A parameter as a row of units: ``num_rows`` rows of ``row_size`` coordinates, ``block`` rows to a unit."""

    first_unit: int
    num_rows: int
    row_size: int
    block: int

    @property
    def num_units(self) -> int:
        return -(-self.num_rows // self.block)

    def of_rows(self, per_unit: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Spread a value per unit over the rows."""
        mine = per_unit[self.first_unit : self.first_unit + self.num_units]
        return mine if self.block == 1 else np.repeat(mine, self.block)[: self.num_rows]

    def add_squares(
        self, values: NDArray[np.float64], squares: NDArray[np.float64], sizes: NDArray[np.float64]
    ) -> None:
        """Add the squares of this parameter's coordinates, and their number, unit by unit."""
        if self.num_rows == 0:
            return
        mine = slice(self.first_unit, self.first_unit + self.num_units)
        by_row = np.square(values).reshape(self.num_rows, self.row_size).sum(1)
        starts = np.arange(0, self.num_rows, self.block)
        squares[mine] += np.add.reduceat(by_row, starts)
        sizes[mine] += np.diff(np.append(starts, self.num_rows)) * self.row_size


@dataclass(frozen=True, kw_only=True)
class MaskUnits:
    """The units of a layout, in strata: the same share of every stratum is masked.

    Attributes:
        parameters: One per parameter, in the layout's order.
        strata: Number of units in each stratum; units are numbered through.
        are_rows: Whether every unit is made of whole rows.
    """

    parameters: tuple[_ParameterUnits, ...]
    strata: tuple[int, ...]
    are_rows: bool

    @property
    def number(self) -> int:
        return sum(self.strata)

    def num_dropped(self, rate: float) -> list[int]:
        """Return how many units of each stratum a rate masks: its share, rounded down, and never all of them."""
        return [max(0, min(size - 1, math.floor(rate * size + _ROUNDING))) for size in self.strata]

    def mean_squares(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean square, unit by unit, of a vector over the layout."""
        squares, sizes, start = np.zeros(self.number), np.zeros(self.number), 0
        for part in self.parameters:
            end = start + part.num_rows * part.row_size
            part.add_squares(values[start:end], squares, sizes)
            start = end
        means: NDArray[np.float64] = squares / sizes
        return means

    def keep_largest(self, rate: float, scores: NDArray[np.float64], like: Tensor) -> Kept | None:
        """Mask the units with the smallest scores, the given share of every stratum; None if that is no unit."""
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
    """What is masked or kept as one."""

    def units(self, layout: Layout) -> MaskUnits:
        """Divide a layout into units."""
        ...


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """Every coordinate by itself, wherever it lies: the masks of Zhu and Blaschko (2023)."""

    def units(self, layout: Layout) -> MaskUnits:
        parameters = tuple(
            _ParameterUnits(first_unit=offset, num_rows=size, row_size=1, block=1)
            for offset, size in zip(layout.offsets, layout.sizes, strict=True)
        )
        return MaskUnits(parameters=parameters, strata=(layout.num_coordinates,), are_rows=False)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Output rows of linear maps and output channels of convolutions, each with its entry of the layer's bias.

    Every layer loses the same share of its rows, rounded down, so what is saved is known in advance. A single number is
    never masked.
    """

    def units(self, layout: Layout) -> MaskUnits:
        return _rows_of(layout, block=1)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Several neighbouring rows of a layer as one, with their entries of its bias.

    Attributes:
        num_rows: Rows to a block; the last block of a layer may be smaller.
    """

    num_rows: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_rows", checks.count("num_rows", self.num_rows))

    def units(self, layout: Layout) -> MaskUnits:
        return _rows_of(layout, block=self.num_rows)


def _rows_of(layout: Layout, *, block: int) -> MaskUnits:
    parameters: list[_ParameterUnits] = []
    strata: list[int] = []
    layers: dict[str, tuple[int, int]] = {}  # module -> rows and first unit of the weight that leads it
    total = 0
    for name, shape, size in zip(layout.names, layout.shapes, layout.sizes, strict=True):
        num_rows = shape[0] if shape else 1
        module = name.rpartition(".")[0]
        rows_of_layer, first = layers.get(module, (0, 0))
        if not (len(shape) == 1 and rows_of_layer == num_rows):  # anything but the bias of a known weight
            first = total
            units = -(-num_rows // block)
            strata.append(units)
            total += units
            layers[module] = (num_rows, first)
        parameters.append(
            _ParameterUnits(first_unit=first, num_rows=num_rows, row_size=size // max(1, num_rows), block=block)
        )
    return MaskUnits(parameters=tuple(parameters), strata=tuple(strata), are_rows=True)
