"""The importance of columns on public records, as plain values without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from privet.records import Count, Record, Size

_QUANTILE = float(ndtri(0.975))


@dataclass(frozen=True, kw_only=True)
class ColumnImportance(Record):
    """How much worse a figure becomes when a column is permuted.

    Attributes:
        figure: The figure: an accuracy, or a mean absolute error.
        column: Name of the column in the file.
        value: The fall of the accuracy, or the rise of the error.
        standard_error: From the choice of records and of permutations.
    """

    WHAT: ClassVar[str] = "the importance of a column"

    figure: str
    column: str
    value: float
    standard_error: Size

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.value - _QUANTILE * self.standard_error

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.value + _QUANTILE * self.standard_error


@dataclass(frozen=True, kw_only=True)
class ImportanceReport(Record):
    """Permutation importance (Breiman 2001) of every column, on public records.

    Attributes:
        columns: One row for every figure and column.
        num_examples: Number of records.
        num_permutations: How often every column was permuted.
        measured_on: Which records, in words.
    """

    WHAT: ClassVar[str] = "the importance of columns"

    columns: tuple[ColumnImportance, ...]
    num_examples: Count
    num_permutations: Count
    measured_on: str


def importance_of(figure: str, column: str, falls: NDArray[np.float64]) -> ColumnImportance:
    """Return the importance from the falls of the figure, ``[permutations, records]``.

    Edge cases: with one permutation, or one record, the error of that choice is not known and counts as zero.
    """
    num_permutations, num_records = falls.shape
    over_permutations = falls.mean(1).var(ddof=1) / num_permutations if num_permutations > 1 else 0.0
    over_records = falls.mean(0).var(ddof=1) / num_records if num_records > 1 else 0.0
    return ColumnImportance(
        figure=figure,
        column=column,
        value=float(falls.mean()),
        standard_error=float(np.sqrt(over_permutations + over_records)),
    )
