"""A user's own CSV files: test data of a known table, or both parts of a declared table.

``read_csv`` reads training data; no cell can raise an error. Test data are read strictly, because a silently replaced
cell would make the measures wrong.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.columns import ADULT, ADULT_FEATURES, adult_schema
from privet.datasets.encoding import encode_columns
from privet.datasets.info import DatasetInfo, Normalisation
from privet.datasets.own.declared_table import DeclaredTable, Target
from privet.datasets.tables import CategoryColumn, NumberColumn, columns_of, count_surplus
from privet.datasets.typed_tables import TableText, table_text
from privet.errors import DataError

_MARKS = {
    ".": "a point, as in 1.5, unless a comma is declared (--decimal , or decimal in the recipe's [table])",
    ",": "a comma, as in 1,5, because that is declared",
}


AnyColumn = NumberColumn | CategoryColumn


@dataclass(frozen=True, kw_only=True)
class ReadColumn:
    """A declared column with another function for its cells than in training.

    Attributes:
        declared: The column.
        read: Maps the column and a stripped cell, empty if missing, to a number.
        dtype: Type of the numbers.
    """

    declared: AnyColumn
    read: Callable[[AnyColumn, str], float]
    dtype: str = "float64"

    @property
    def name(self) -> str:
        return self.declared.name

    @property
    def header(self) -> str:
        return self.declared.header

    def value(self, cell: str | None) -> float:
        return self.read(self.declared, "" if cell is None else cell.strip())


def _strictly(column: AnyColumn, word: str) -> float:
    """Return the clamped number or the code of the category; NaN if the cell is neither.

    A gap is the default where one was declared, in test records as in training records.
    """
    if column.takes_gaps and is_gap(column, word):
        return column.value(None)
    if isinstance(column, CategoryColumn):
        code = column.code(word)
        return math.nan if code is None else code
    return math.nan if math.isnan(column.number(word)) else column.value(word)


# What spreadsheets, R, pandas and databases write in a column of numbers where they know none.
WORDS_FOR_GAPS = frozenset({"", "nan", "na", "n/a", "null", "none"})


def is_gap(column: AnyColumn, word: str) -> bool:
    """Whether a stripped cell is missing or empty, or a usual word for that in a column of numbers."""
    if isinstance(column, CategoryColumn):
        # A category column may declare the empty category; then an empty cell is no gap.
        return not word and word not in column.categories
    return word.lower() in WORDS_FOR_GAPS


def _adult() -> DeclaredTable:
    label = adult_schema(income_suffix="").columns[-1]
    assert isinstance(label, CategoryColumn)
    return DeclaredTable(features=ADULT_FEATURES, targets=(Target.classes(label),))


OWN_TABLES: Mapping[str, DeclaredTable] = MappingProxyType({ADULT.name: _adult()})


def load_own_csv(path: str | os.PathLike[str], info: DatasetInfo, normalisation: Normalisation) -> ArrayDataset:
    """Read a CSV file with a header as test data of a known table; the order of columns does not matter.

    Raises:
        DataError: the data set is no table of classes, the file cannot be read or has no records, a declared column is
            missing, a cell is empty, NaN, no number or no declared category, or a label is unknown. The message
            contains the column and the number of the first such record, never the cell.
    """
    wanted = OWN_TABLES.get(info.name)
    if wanted is None:
        raise DataError(
            f"A CSV file can replace the test data of: {', '.join(OWN_TABLES)}. The model was trained on {info.name!r}."
        )
    return read_test_csv(path, wanted, normalisation)


def read_test_csv(path: str | os.PathLike[str], table: DeclaredTable, normalisation: Normalisation) -> ArrayDataset:
    """Read a CSV file with a header as test data of a declared table; raises as ``load_own_csv``."""
    text = table_text(path, delimiter=table.delimiter)
    found = read_strictly(text, table, table.columns)
    for column in table.columns:
        refuse_unreadable(text, table, column, np.isnan(found[column.name]), _advice)
    return _encoded(found, table, normalisation)


def read_strictly(text: TableText, table: DeclaredTable, columns: Sequence[AnyColumn]) -> Mapping[str, NDArray[Any]]:
    """Return columns of a table that was read, with NaN for every invalid cell; a table without records is refused."""
    found = columns_of(text, table.schema([ReadColumn(declared=column, read=_strictly) for column in columns]))
    if not len(found[columns[0].name]):
        raise DataError(f"{text.name} has a header and no records. Add records.")
    return found


def load_declared_table(
    table: DeclaredTable,
    info: DatasetInfo,
    *,
    train: str | os.PathLike[str],
    test: str | os.PathLike[str] | None,
) -> Split:
    """Read both parts of a declared table; without a test file the second part is empty.

    Guarantee: one record of the training file determines one training record and nothing else: an invalid cell silently
    becomes the column's default. Test records are not protected, and an invalid one is refused.

    Raises:
        DataError: a file cannot be read or lacks a declared column, or a test record does not fit the declaration.
    """
    normalisation = info.normalisation()
    measured = None if test is None else read_test_csv(test, table, normalisation)
    # Read once: a database may hold other records, or return them in another order, the next time.
    text, schema = table_text(train, delimiter=table.delimiter), table.schema(table.columns)
    persons = table.ownership.names(text, schema)
    learned = replace(
        _encoded(columns_of(text, schema), table, normalisation),
        one_item=table.ownership.one_record(persons),
        persons=persons,
    )
    nothing = ArrayDataset(features=learned.features[:0], labels=learned.labels[:0])
    return Split(train=learned, test=nothing if measured is None else measured, info=info, normalisation=normalisation)


def _encoded(found: Mapping[str, NDArray[Any]], table: DeclaredTable, normalisation: Normalisation) -> ArrayDataset:
    features = encoded_features(found, table, normalisation)
    values = [found[target.column.name] for target in table.targets]
    return ArrayDataset(features=features, labels=table.task.encoded(values))


def encoded_features(found: Mapping[str, NDArray[Any]], table: DeclaredTable, normalisation: Normalisation) -> Tensor:
    """Return the normalised features of columns."""
    return normalisation.apply_(torch.from_numpy(encode_columns(found, table.features))).to(torch.float32)


def refuse_unreadable(
    text: TableText,
    table: DeclaredTable,
    column: AnyColumn,
    is_bad: NDArray[np.bool_],
    advice: Callable[[AnyColumn], str],
) -> None:
    """Refuse a file with invalid cells.

    Raises:
        DataError: a cell is invalid. The message contains the record number of the first one, and the advice.
    """
    if not is_bad.any():
        return
    first = int(is_bad.argmax()) + 1
    where = f"{int(is_bad.sum())} cell(s) of the column {column.name!r} in {text.name}, the first in record {first},"
    surplus = count_surplus(text, table.schema(table.columns))
    if surplus:
        raise DataError(
            f"{where} do not fit, and {surplus:,} record(s) have more cells than the header. Is {table.delimiter!r} "
            "part of a cell, such as a decimal comma? Put such cells in quotes, or use another delimiter."
        )
    raise DataError(f"{where} {advice(column)}")


def _advice(column: AnyColumn) -> str:
    if isinstance(column, NumberColumn):
        return (
            "are empty, NaN or no number. Fill them in or remove these records: a figure measured on made-up "
            f"values would be wrong. Training takes such cells as {column.default:g}; another default can be declared "
            f"for the column. Numbers are written with {_MARKS[column.decimal]}; a column of words is declared with "
            "categories."
        )
    shown = ", ".join(repr(word) for word in column.categories)
    return (
        f"are none of the declared values. Declared: {shown}. Declare the missing ones, or correct the records. "
        f"Training takes such cells as {column.default!r}; another default can be declared for the column."
    )
