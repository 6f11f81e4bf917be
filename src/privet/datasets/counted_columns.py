"""Columns whose cells are counted: numbers in the buckets of a fixed grid, and declared words.

The grid is a public constant and the words are declared, so nothing that one record holds adds a bucket or a word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from privet.datasets.tables import NamedColumn, NumberColumn
from privet.datasets.words import place_of
from privet.errors import ArgumentError

_POSITIVE = tuple(float(f"{digit}e{power}") for power in range(-3, 10) for digit in (1, 2, 5))
# Ends of the buckets of a column of which nothing is declared.
GRID = (*(-edge for edge in reversed(_POSITIVE)), 0.0, *_POSITIVE)
NOT_COUNTED = -1
_STEPS = 40


def grid_within(low: float, high: float) -> tuple[float, ...]:
    """Return the ends of equal buckets within a declared range."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ArgumentError(f"A range has a finite low below its high, got {low:g} and {high:g}.")
    return tuple(float(f"{low + (high - low) * step / _STEPS:.6g}") for step in range(_STEPS + 1))


@dataclass(frozen=True, kw_only=True)
class BucketColumn(NamedColumn):
    """A column of numbers, read as the bucket of each.

    Attributes:
        edges: Ends of the buckets, in order. The first and the last bucket also take all numbers beyond them.
        decimal: The decimal mark.
    """

    dtype: ClassVar[str] = "int64"
    edges: tuple[float, ...] = GRID
    decimal: str = "."

    def __post_init__(self) -> None:
        if len(self.edges) < 2 or any(low >= high for low, high in pairwise(self.edges)):
            raise ArgumentError(f"The buckets of column {self.name!r} need different ends in order.")

    @property
    def size(self) -> int:
        """How many counts there are."""
        return len(self.edges) - 1

    def value(self, cell: str | None) -> float:
        """Return the bucket of the number; ``NOT_COUNTED`` for a cell that holds none."""
        column = NumberColumn(
            name=self.name, low=self.edges[0], high=self.edges[-1], default=self.edges[0], decimal=self.decimal
        )
        number = math.nan if cell is None else column.number(cell)
        if math.isnan(number):
            return NOT_COUNTED
        return float(np.clip(np.searchsorted(self.edges, number, side="right") - 1, 0, self.size - 1))


@dataclass(frozen=True, kw_only=True)
class WordColumn(NamedColumn):
    """A column of words, read as the places of the declared ones.

    Attributes:
        words: The declared words.
    """

    dtype: ClassVar[str] = "int64"
    words: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many counts there are."""
        return len(self.words)

    def value(self, cell: str | None) -> float:
        """Return the place of the word; ``NOT_COUNTED`` for any other cell."""
        place = None if cell is None else place_of(cell, self.words)
        return NOT_COUNTED if place is None else place
