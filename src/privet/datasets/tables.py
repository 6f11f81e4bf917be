"""Reading CSV files by a declared schema.

Guarantee:
    One record of the file determines one record of the arrays and nothing else. A cell that does not fit the schema
    silently becomes a value of the schema: no cell can raise an error, cause a message, add a class or widen a range,
    so only the records themselves depend on the data.

Ranges and classes are declared, never computed from records. ``csv_records`` defines records and refuses malformed
files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.datasets.csv_records import CsvFormat, CsvRecord, csv_records, first_record
from privet.datasets.files import MAX_CONTENT_BYTES, check_sha256
from privet.datasets.header_hints import header_advice
from privet.datasets.typed_tables import TableText, header_text, table_text
from privet.datasets.words import composed, place_of
from privet.errors import ArgumentError, DataError

_MAX_HEADER_BYTES = 2**20
_MAX_PUBLIC_BYTES = 2**28
_MOST_STAND_INS = 16
_MOST_CODES = 64


class Column(Protocol):
    """One declared column: its name, and a map from any cell to a number.

    Attributes:
        name: The name of the resulting array.
        header: The name in the header line.
        dtype: The type of the resulting array.
    """

    @property
    def name(self) -> str: ...
    @property
    def header(self) -> str: ...
    @property
    def dtype(self) -> str: ...

    def value(self, cell: str | None) -> float:
        """Return the number of a cell; None is a missing cell. Never raises."""
        ...


@dataclass(frozen=True, kw_only=True)
class NamedColumn:
    """A column whose array has the name of the header line.

    Attributes:
        name: The name in the header line.
    """

    name: str

    @property
    def header(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class NumberColumn(NamedColumn):
    """A column of numbers within a declared range.

    Attributes:
        low: lower bound; smaller numbers and minus infinity become this.
        high: upper bound; larger numbers, infinity and numbers too large for a float become this.
        default: value of empty, missing, NaN and unreadable cells.
        decimal: decimal mark, a point or a comma; a number with the other one is unreadable.
        takes_gaps: whether the default was declared for empty cells, so that test records may have them.
    """

    dtype: ClassVar[str] = "float64"
    low: float
    high: float
    default: float
    decimal: str = "."
    takes_gaps: bool = False

    def __post_init__(self) -> None:
        if self.decimal not in {".", ","}:
            raise ArgumentError(f"decimal of column {self.name!r} must be '.' or ',', got {self.decimal!r}.")
        low, high = checks.number(f"low of column {self.name!r}", self.low), checks.number("high", self.high)
        default = checks.number(f"default of column {self.name!r}", self.default)
        if not (math.isfinite(low) and math.isfinite(high) and low <= default <= high):
            raise ArgumentError(
                f"Column {self.name!r} needs finite numbers with low <= default <= high, "
                f"got low={low}, default={default}, high={high}."
            )

    def value(self, cell: str | None) -> float:
        """Return the number, clamped to the range; the default if the cell is no number."""
        number = math.nan if cell is None else self.number(cell)
        return self.default if math.isnan(number) else min(max(number, self.low), self.high)

    def stand_ins(self) -> tuple[float, ...]:
        """Return public values spread evenly over the declaration, to put in the place of a record's own."""
        step = (self.high - self.low) / _MOST_STAND_INS
        return tuple(self.low + (place + 0.5) * step for place in range(_MOST_STAND_INS))

    def number(self, cell: str) -> float:
        """Return the number in a cell without clamping; NaN if the cell is no number."""
        # Python reads 1_000 as a thousand, other programs do not: such cells are unreadable.
        if "_" in cell or (self.decimal == "," and "." in cell):
            return math.nan
        try:
            return float(cell.replace(",", ".") if self.decimal == "," else cell)
        except ValueError:
            return math.nan


@dataclass(frozen=True, kw_only=True)
class CategoryColumn(NamedColumn):
    """A column of declared categories, read as their positions.

    Attributes:
        categories: all categories, in the order of their codes 0, 1, 2, ...
        default: category of missing and undeclared cells.
        decimal: decimal mark of categories that are numbers.
        takes_gaps: whether the default was declared for empty cells, so that test records may have them.
    """

    dtype: ClassVar[str] = "int64"
    categories: tuple[str, ...]
    default: str
    takes_gaps: bool = False
    decimal: str = "."

    def __post_init__(self) -> None:
        if len(set(self.categories)) != len(self.categories):
            raise ArgumentError(f"Column {self.name!r} declares a category twice. Name each once.")
        if self.default not in self.categories:
            raise ArgumentError(f"The default of column {self.name!r} must be one of its declared categories.")

    def value(self, cell: str | None) -> float:
        """Return the code of the category; that of the default for any other cell."""
        found = None if cell is None else self.code(cell)
        return self.categories.index(self.default) if found is None else found

    def code(self, cell: str) -> int | None:
        """Return the code of the category that a cell holds; None if it holds none."""
        return place_of(cell.strip(), self.categories, decimal=self.decimal)

    def stand_ins(self) -> tuple[float, ...]:
        """Return the codes of the categories; some, spread evenly, where they are many."""
        count = len(self.categories)
        return tuple(float(place * count // min(count, _MOST_CODES)) for place in range(min(count, _MOST_CODES)))


@dataclass(frozen=True, kw_only=True)
class CsvSchema(CsvFormat):
    """The declared columns and the format of a CSV file.

    Attributes:
        columns: the columns to read. With a header they are found by name, in any order among others; without one they
            are the first columns of every record, in this order.
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [column.name for column in self.columns]
        if not names or len(set(names)) != len(names):
            raise ArgumentError("A CSV schema needs at least one column, each with a name of its own.")


def read_csv(
    path: str | os.PathLike[str],
    schema: CsvSchema,
    *,
    sha256: str | None = None,
    max_bytes: int = MAX_CONTENT_BYTES,
) -> dict[str, NDArray[Any]]:
    """Read a table into one array per declared column: a CSV file, plain, .gz or .xz, or another of :func:`table_text`.

    Records are those of ``csv_records``. Missing cells take the column's default, surplus cells are dropped, and
    invalid bytes make their cell unreadable.

    Guarantee:
        Changing one record changes at most that record. A file with a header and no records gives empty arrays.

    Raises:
        DataError: the file cannot be read, is too large, has another checksum, its header lacks a declared column or
            names one twice, or a record is too long or has unclosed quotes. The message contains declared names and
            similar names, and no other text from the file.
    """
    text = table_text(path, delimiter=schema.delimiter, max_bytes=max_bytes)
    check_sha256(path, sha256, text.content)
    return columns_of(text, schema)


def columns_of(text: TableText, schema: CsvSchema) -> dict[str, NDArray[Any]]:
    """Return one array per declared column of a table that was read; as :func:`read_csv`."""
    records = csv_records(text.content, schema, path=text.name)
    if schema.has_header:
        header = next(records, None)
        if header is None:
            raise DataError(
                f"{text.name} has no header line; expected the columns {_names(schema)}. It is empty: is it the right "
                "file?"
            )
        positions = _positions(text.name, header, schema)
    else:
        headers = list(dict.fromkeys(column.header for column in schema.columns))
        positions = {column.name: headers.index(column.header) for column in schema.columns}
    return _columns(records, schema, positions)


def words_of(text: TableText, form: CsvFormat, name: str) -> list[str]:
    """Return the cells of one column of a table that was read, as text; a missing cell is empty.

    Raises:
        DataError: as :func:`read_csv`.
    """
    word = CsvSchema(
        columns=(CategoryColumn(name=name, categories=("",), default=""),),
        delimiter=form.delimiter,
        max_record_length=form.max_record_length,
    )
    records = csv_records(text.content, word, path=text.name)
    header = next(records, None)
    if header is None:
        raise DataError(_no_header(text.name))
    place = _positions(text.name, header, word)[name]
    return [record.cells[place].strip() if place < len(record.cells) else "" for record in records]


def read_header(path: str | os.PathLike[str], *, targets: Sequence[str], delimiter: str = ",") -> list[str]:
    """Return the names in the first line of a CSV file, which must contain each target once; read no record.

    Raises:
        DataError: the file cannot be read, is empty, or its first line does not name a target, so that it may be a
            record. The message gives advice and shows no cell except a name similar to a target.
    """
    text = header_text(path, delimiter=delimiter, max_bytes=_MAX_HEADER_BYTES)
    first = _header(text, delimiter)
    header = [composed(cell) for cell in first.cells]
    for target in map(composed, targets):
        if header.count(target) == 1:
            continue
        raise DataError(
            f"The first line of {text.name} should name the target {target!r} once and names it {header.count(target)} "
            f"times. {header_advice(first.text, [target], delimiter=delimiter)}"
        )
    unreadable = [name for name in header if "\N{REPLACEMENT CHARACTER}" in name]
    if unreadable:
        raise DataError(
            f"The first line of {text.name} holds bytes that are not UTF-8 text, in the name {unreadable[0]!r}. Save "
            "the file as UTF-8."
        )
    return header


def read_public_cells(path: str | os.PathLike[str], *, delimiter: str = ",") -> tuple[list[str], list[list[str]]]:
    """Return the header and all cells of a CSV file whose records are public, as text.

    Never use it for private records: results may depend on all cells.

    Raises:
        DataError: the file cannot be read, is too large or is empty.
    """
    text = table_text(path, delimiter=delimiter, max_bytes=_MAX_PUBLIC_BYTES)
    records = csv_records(text.content, CsvFormat(delimiter=delimiter), path=text.name)
    cells = [[cell.strip() for cell in record.cells] for record in records]
    if not cells:
        raise DataError(_no_header(text.name))
    return [composed(name) for name in cells[0]], cells[1:]


def _header(text: TableText, delimiter: str) -> CsvRecord:
    header = first_record(text.content, CsvFormat(delimiter=delimiter), path=text.name)
    if header is None:
        raise DataError(_no_header(text.name))
    return header


def _no_header(name: str) -> str:
    return f"{name} is empty: it has no header line. The first line must name the columns."


def count_surplus(text: TableText, form: CsvFormat) -> int:
    """Return the number of records with more cells than the header, for a table of public or test records."""
    lengths = [len(record.cells) for record in csv_records(text.content, form, path=text.name)]
    return sum(length > lengths[0] for length in lengths)


def _positions(name: str, header: CsvRecord, schema: CsvSchema) -> dict[str, int]:
    found = [composed(cell) for cell in header.cells]
    wanted = list(dict.fromkeys(composed(column.header) for column in schema.columns))
    wrong = [column for column in wanted if found.count(column) != 1]
    if wrong:
        others = f"; also wrong: {', '.join(map(repr, wrong[1:]))}" if 1 < len(wrong) < len(wanted) else ""
        raise DataError(
            f"The header of {name} should name the column {wrong[0]!r} once and names it {found.count(wrong[0])} "
            f"times{others}. Declared columns: {_names(schema)}. "
            f"{header_advice(header.text, wanted, delimiter=schema.delimiter)}"
        )
    return {column.name: found.index(composed(column.header)) for column in schema.columns}


def _columns(records: Iterator[CsvRecord], schema: CsvSchema, positions: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    values: dict[str, list[float]] = {column.name: [] for column in schema.columns}
    for record in records:
        for column in schema.columns:
            position = positions[column.name]
            values[column.name].append(column.value(record.cells[position] if position < len(record.cells) else None))
    return {column.name: np.array(values[column.name], dtype=column.dtype) for column in schema.columns}


def _names(schema: CsvSchema) -> str:
    return ", ".join(dict.fromkeys(repr(column.header) for column in schema.columns))
