"""New records of a CSV file, for predictions: an empty cell takes the column's default, as in training, and is counted.

Test data are read more strictly, because measures on default values would be wrong. A prediction for a record with an
empty cell is valid: training used the same default, and the caller reports the number of empty cells. Other unreadable
cells, such as a misspelt number or an undeclared category, are refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privet.datasets.info import Normalisation
from privet.datasets.own.declared_table import DeclaredTable
from privet.datasets.own.own_table import (
    AnyColumn,
    ReadColumn,
    encoded_features,
    is_gap,
    read_strictly,
    refuse_unreadable,
)
from privet.datasets.special_columns import GapColumn
from privet.datasets.tables import NumberColumn, columns_of
from privet.datasets.typed_tables import table_text


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """The empty cells of a column.

    Attributes:
        column: Name of the column.
        count: Number of empty cells.
        taken_as: Their value: the column's ``default``, as in training.
    """

    column: str
    count: int
    taken_as: float | str


def _gap_as_number(column: AnyColumn, word: str) -> float:
    """Return 1 for a gap that takes the default; 0 for every other cell, and for columns that show gaps."""
    return float(not isinstance(column, GapColumn) and is_gap(column, word))


def read_new_records(
    path: str | os.PathLike[str], table: DeclaredTable, normalisation: Normalisation
) -> tuple[Tensor, tuple[Gaps, ...]]:
    """Return the features of the records in a CSV file, and its gaps; a label column is optional.

    Guarantee: a gap becomes the column's default, as in a training record.

    Raises:
        DataError: the file cannot be read, has no records or lacks a declared column, or a cell is neither empty nor a
            number or declared category. The message contains the column and the number of the first such record, never
            the cell.
    """
    text = table_text(path, delimiter=table.delimiter)
    found = read_strictly(text, table, table.features)
    gaps = columns_of(
        text,
        table.schema([ReadColumn(declared=column, read=_gap_as_number, dtype="bool") for column in table.features]),
    )
    filled: dict[str, NDArray[np.float64]] = {}
    for column in table.features:
        filled[column.name] = np.where(gaps[column.name], column.value(None), found[column.name])
        refuse_unreadable(text, table, column, np.isnan(filled[column.name]), _advice)
    return encoded_features(filled, table, normalisation), _counted(table, gaps)


def _counted(table: DeclaredTable, gaps: Mapping[str, NDArray[np.bool_]]) -> tuple[Gaps, ...]:
    counts = ((column, int(gaps[column.name].sum())) for column in table.features)
    return tuple(Gaps(column=column.name, count=count, taken_as=column.default) for column, count in counts if count)


def _advice(column: AnyColumn) -> str:
    if isinstance(column, NumberColumn):
        return (
            f"are no numbers. Correct them, with {column.decimal!r} before a fraction, or leave them empty: an empty "
            f"cell is taken as {column.default:g}, as in training."
        )
    shown = ", ".join(repr(word) for word in column.categories)
    return (
        f"are none of the declared values. Declared: {shown}. Correct them, or leave them empty: an empty cell is "
        f"taken as {column.default!r}, as in training."
    )
