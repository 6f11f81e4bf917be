"""A user's own CSV file as test data of a known table: strict, because a figure about misread records misleads.

Training data are read by ``read_csv``, where no record may raise. Test data are different: the figures computed from
them are exact functions of the records in any case, and a silently replaced cell would only make them wrong.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch

from privet.datasets.arrays import ArrayDataset
from privet.datasets.columns import ADULT, ADULT_FEATURES, adult_schema
from privet.datasets.encoding import encode_columns
from privet.datasets.info import DatasetInfo, Normalisation
from privet.datasets.tables import CategoryColumn, CsvSchema, NumberColumn, read_csv
from privet.errors import DataError


@dataclass(frozen=True, kw_only=True)
class StrictColumn:
    """A declared column whose unreadable and undeclared cells become NaN, to be found afterwards."""

    declared: NumberColumn | CategoryColumn

    @property
    def name(self) -> str:
        """The name in the header line."""
        return self.declared.name

    @property
    def dtype(self) -> str:
        """Double precision, which holds every code and NaN."""
        return "float64"

    def value(self, cell: str | None) -> float:
        """Return the number, held to its range, or the code of a category; NaN when the cell holds neither."""
        word = "" if cell is None else cell.strip()
        if isinstance(self.declared, CategoryColumn):
            return self.declared.categories.index(word) if word in self.declared.categories else math.nan
        try:
            return math.nan if "_" in word or math.isnan(float(word)) else self.declared.value(word)
        except ValueError:
            return math.nan


@dataclass(frozen=True, kw_only=True)
class OwnTable:
    """What a CSV file must hold to be test data of a known table.

    Attributes:
        features: The columns that the model takes.
        label: The column that holds the class.
    """

    features: tuple[NumberColumn | CategoryColumn, ...]
    label: CategoryColumn


def _adult() -> OwnTable:
    label = adult_schema(income_suffix="").columns[-1]
    assert isinstance(label, CategoryColumn)
    return OwnTable(features=ADULT_FEATURES, label=label)


OWN_TABLES: Mapping[str, OwnTable] = MappingProxyType({ADULT.name: _adult()})


def load_own_csv(path: str | os.PathLike[str], info: DatasetInfo, normalisation: Normalisation) -> ArrayDataset:
    """Read a CSV file with a header as test data of a known table; columns may stand in any order among others.

    Raises:
        DataError: the data set is no table of classes, the file cannot be read, a declared column is missing, a cell is
            empty, NaN, no number or no declared category, a label is unknown, or there are no records. The message
            names the column and the first such record, never the cell.
    """
    wanted = OWN_TABLES.get(info.name)
    if wanted is None:
        raise DataError(
            f"A CSV file can stand in for the test data of: {', '.join(OWN_TABLES)}. The model was trained on "
            f"{info.name!r}."
        )
    columns = (*wanted.features, wanted.label)
    table = read_csv(path, CsvSchema(columns=tuple(StrictColumn(declared=column) for column in columns)))
    if not len(table[wanted.label.name]):
        raise DataError(f"{path} has a header and no records. There is nothing to measure.")
    for column in columns:
        _refuse_unreadable(path, column, np.isnan(table[column.name]))
    features = normalisation.apply_(torch.from_numpy(encode_columns(table, wanted.features))).to(torch.float32)
    return ArrayDataset(features=features, labels=torch.from_numpy(table[wanted.label.name].astype(np.int64)))


def _refuse_unreadable(
    path: str | os.PathLike[str],
    column: NumberColumn | CategoryColumn,
    is_bad: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> None:
    if not is_bad.any():
        return
    first = int(is_bad.argmax()) + 1
    where = f"{int(is_bad.sum())} cell(s) of the column {column.name!r} in {path}, the first in record {first},"
    if isinstance(column, NumberColumn):
        raise DataError(f"{where} are empty, NaN or no number. Fill them in or remove these records.")
    shown = ", ".join(repr(word) for word in column.categories)
    raise DataError(f"{where} are none of the declared values. Declared: {shown}.")
