"""Records of a CSV file that a model is asked about: gaps become what they became in training, and are counted.

Test data are read more strictly: a figure measured on values that nobody wrote down would be a wrong figure. A decision
on a record with a gap is no such figure. The model learned what to make of the value that stands for a gap, so the same
value is the right one to ask it with, and the caller says how often that was done. What training would also have
replaced but is no gap, a number that is none or a word that was not declared, is refused: it is a mistake to correct.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privet.datasets.declared_table import DeclaredTable
from privet.datasets.info import Normalisation
from privet.datasets.own_table import encoded_features, read_strictly, unreadable_cells
from privet.datasets.tables import CategoryColumn, NumberColumn, read_csv
from privet.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """The cells of a column that were empty.

    Attributes:
        column: Its name.
        count: How many there were.
        taken_as: What they were taken as: the column's ``default``, as in training.
    """

    column: str
    count: int
    taken_as: float | str


@dataclass(frozen=True, kw_only=True)
class _GapColumn:
    """A declared column read as 1 where a cell is a gap and as 0 elsewhere."""

    declared: NumberColumn | CategoryColumn

    @property
    def name(self) -> str:
        """The name in the header line."""
        return self.declared.name

    @property
    def dtype(self) -> str:
        """One of two values."""
        return "bool"

    def value(self, cell: str | None) -> float:
        """Return 1 for a cell that is not there, is empty or, among numbers, says NaN."""
        word = "" if cell is None else cell.strip()
        is_gap = not word or (isinstance(self.declared, NumberColumn) and word.lower() == "nan")
        # A column of words may declare the empty one, and then an empty cell is no gap.
        is_declared = isinstance(self.declared, CategoryColumn) and word in self.declared.categories
        return float(is_gap and not is_declared)


def read_new_records(
    path: str | os.PathLike[str], table: DeclaredTable, normalisation: Normalisation
) -> tuple[Tensor, tuple[Gaps, ...]]:
    """Read the features of a CSV file's records, and where there were gaps; a column of labels may be there or not.

    Guarantee: a gap becomes what it becomes in a training record: the column's default.

    Raises:
        DataError: the file cannot be read, a declared column is missing, a cell is neither empty nor a number or a
            declared category, or there are no records. The message names the column and the first such record, never
            the cell.
    """
    found = read_strictly(path, table, table.features)
    is_gap = read_csv(path, table.schema([_GapColumn(declared=column) for column in table.features]))
    filled: dict[str, NDArray[np.float64]] = {}
    for column in table.features:
        filled[column.name] = np.where(is_gap[column.name], column.value(None), found[column.name])
        _refuse_unreadable(path, table, column, np.isnan(filled[column.name]))
    return encoded_features(filled, table, normalisation), _counted(table, is_gap)


def _counted(table: DeclaredTable, is_gap: Mapping[str, NDArray[np.bool_]]) -> tuple[Gaps, ...]:
    counts = ((column, int(is_gap[column.name].sum())) for column in table.features)
    return tuple(Gaps(column=column.name, count=count, taken_as=column.default) for column, count in counts if count)


def _refuse_unreadable(
    path: str | os.PathLike[str],
    table: DeclaredTable,
    column: NumberColumn | CategoryColumn,
    is_bad: NDArray[np.bool_],
) -> None:
    where = unreadable_cells(path, table, column, is_bad)
    if where is None:
        return
    if isinstance(column, NumberColumn):
        raise DataError(
            f"{where} are no numbers. Correct them, with {column.decimal!r} before a fraction, or leave them empty: an "
            f"empty cell is taken as {column.default:g}, as in training."
        )
    shown = ", ".join(repr(word) for word in column.categories)
    raise DataError(
        f"{where} are none of the declared values. Declared: {shown}. Correct them, or leave them empty: an empty cell "
        f"is taken as {column.default!r}, as in training."
    )
