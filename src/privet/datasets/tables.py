"""Reading CSV files by a declared schema.

Guarantee:
    One line of the file decides one record and nothing else. A cell that does not fit the schema becomes a value of the
    schema, silently: no record can raise an error, write a message, add a class or widen a range, so nothing but the
    records themselves depends on the data.

Two choices follow from that and differ from general CSV readers. A line break always ends a record, even inside quotes:
otherwise one unclosed quote would swallow every record after it. And ranges and classes are declared, never learned.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.datasets.files import MAX_CONTENT_BYTES, check_sha256, open_content, read_all, read_up_to
from privet.datasets.header_hints import header_advice
from privet.errors import ArgumentError, DataError

_MAX_HEADER_BYTES = 2**20
_MAX_PUBLIC_BYTES = 2**28


class Column(Protocol):
    """One declared column: its name, and how a cell becomes a number whatever it holds."""

    @property
    def name(self) -> str:
        """The name in the header line."""
        ...

    @property
    def dtype(self) -> str:
        """The type of the resulting array."""
        ...

    def value(self, cell: str | None) -> float:
        """Turn one cell into a number; None stands for a missing cell. Never raises."""
        ...


@dataclass(frozen=True, kw_only=True)
class NumberColumn:
    """A column of numbers within a declared range.

    Attributes:
        name: the name in the header line.
        low: smaller numbers (and minus infinity) become this.
        high: larger numbers (and infinity, and numbers too large for a float) become this.
        default: what empty, missing, NaN and unreadable cells become.
        decimal: the mark before the fraction, a point or a comma; a number with the other one is unreadable.
    """

    name: str
    low: float
    high: float
    default: float
    decimal: str = "."

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

    @property
    def dtype(self) -> str:
        """Numbers are kept in double precision."""
        return "float64"

    def value(self, cell: str | None) -> float:
        """Return the number, clamped to the range; the default when there is none."""
        number = math.nan if cell is None else self.number(cell)
        return self.default if math.isnan(number) else min(max(number, self.low), self.high)

    def number(self, cell: str) -> float:
        """Return the number in a cell as it stands; NaN when there is none."""
        # Python reads 1_000 as a thousand, other programs do not: ambiguous cells are unreadable.
        if "_" in cell or (self.decimal == "," and "." in cell):
            return math.nan
        try:
            return float(cell.replace(",", ".") if self.decimal == "," else cell)
        except ValueError:
            return math.nan


@dataclass(frozen=True, kw_only=True)
class CategoryColumn:
    """A column of declared categories, read as their positions.

    Attributes:
        name: the name in the header line.
        categories: every category, in the order of their codes 0, 1, 2, ...
        default: the category that missing and undeclared cells become.
    """

    name: str
    categories: tuple[str, ...]
    default: str

    def __post_init__(self) -> None:
        if len(set(self.categories)) != len(self.categories):
            raise ArgumentError(f"Column {self.name!r} declares a category twice. Name each once.")
        if self.default not in self.categories:
            raise ArgumentError(f"The default of column {self.name!r} must be one of its declared categories.")

    @property
    def dtype(self) -> str:
        """Codes are whole numbers."""
        return "int64"

    def value(self, cell: str | None) -> float:
        """Return the code of the category; that of the default when the cell holds none."""
        word = None if cell is None else cell.strip()
        return self.categories.index(word if word in self.categories else self.default)


@dataclass(frozen=True, kw_only=True)
class CsvSchema:
    """What a CSV file is declared to hold.

    Attributes:
        columns: the columns to read. With a header they are found by name and may stand in any order among others;
            without one they are the first columns of every line, in this order.
        delimiter: one character.
        has_header: whether the first line names the columns.
        comment_prefix: lines at the top of the file that begin with it are skipped; empty for none. Further down such
            a line is a record like any other, so that no record can make itself disappear.
    """

    columns: tuple[Column, ...]
    delimiter: str = ","
    has_header: bool = True
    comment_prefix: str = ""

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) != len(names):
            raise ArgumentError("A CSV schema needs at least one column, each with a name of its own.")
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n\0':
            raise ArgumentError(
                f"delimiter must be one character other than a quote or a line break, got {self.delimiter!r}."
            )


def read_csv(
    path: str | os.PathLike[str],
    schema: CsvSchema,
    *,
    sha256: str | None = None,
    max_bytes: int = MAX_CONTENT_BYTES,
) -> dict[str, NDArray[Any]]:
    """Read a CSV file, plain, .gz or .xz, into one array per declared column.

    The text is UTF-8 with or without a byte order mark, or UTF-16 with one; bytes that are no text make their cell
    unreadable. Any line ending is understood. Blank lines are no records. Missing cells take the column's default,
    surplus cells are dropped, and a line with a cell beyond 131,072 characters takes every default.

    Guarantee:
        Changing one line changes at most that line's record. A file with a header and no records gives empty arrays.

    Raises:
        DataError: the file cannot be read, is too large, has another checksum, or its header lacks a declared column or
            names one twice. The message holds declared names and names nearly like them, no other text from the file.
    """
    content = read_all(path, max_bytes=max_bytes)
    check_sha256(path, sha256, content)
    rows = _rows(_text_lines(content), schema)
    if schema.has_header:
        header = next(rows, None)
        if header is None:
            raise DataError(
                f"{path} has no header line; expected the columns {_names(schema)}. It is empty: is it the right file?"
            )
        positions = _positions(path, header, schema, first_line(content, comment_prefix=schema.comment_prefix))
    else:
        positions = {column.name: position for position, column in enumerate(schema.columns)}
    return _columns(rows, schema, positions)


def read_header(path: str | os.PathLike[str], *, target: str, delimiter: str = ",") -> list[str]:
    """Return the names in a CSV file's first line, which must name the target once, and read nothing beyond it.

    Raises:
        DataError: the file cannot be read, has no line, or its first line does not name the target, so that it may be a
            record. The message says what to do and shows no cell but a name nearly like the target's.
    """
    with open_content(path) as stream:
        content = read_up_to(stream, _MAX_HEADER_BYTES)
    header = _first_row(path, content, delimiter)
    if header.count(target) != 1:
        raise DataError(
            f"The first line of {path} should name the target {target!r} once and names it {header.count(target)} "
            f"times. {header_advice(first_line(content), [target], delimiter=delimiter)}"
        )
    unreadable = [name for name in header if "\N{REPLACEMENT CHARACTER}" in name]
    if unreadable:
        raise DataError(
            f"The first line of {path} holds bytes that are not UTF-8 text, in the name {unreadable[0]!r}. Save the "
            "file as UTF-8."
        )
    return header


def read_public_cells(path: str | os.PathLike[str], *, delimiter: str = ",") -> tuple[list[str], list[list[str]]]:
    """Return the header and all cells of a CSV file whose records are public, as text.

    Never for private records: whatever is concluded from these cells depends on all of them at once.

    Raises:
        DataError: the file cannot be read, is too large or has no line.
    """
    content = read_all(path, max_bytes=_MAX_PUBLIC_BYTES)
    header = _first_row(path, content, delimiter)
    return header, [[cell.strip() for cell in row] for row in _cells(content, delimiter)][1:]


def _first_row(path: str | os.PathLike[str], content: bytearray, delimiter: str) -> list[str]:
    header = next(_cells(content, delimiter), None)
    if header is None:
        raise DataError(f"{path} is empty: it has no header line. The first line must name the columns.")
    return [cell.strip() for cell in header]


def _cells(content: bytearray, delimiter: str) -> Iterator[list[str]]:
    # The rows of a schema depend on its delimiter and its comments only, so any one column will do.
    anything = CsvSchema(columns=(NumberColumn(name="any", low=0, high=1, default=0),), delimiter=delimiter)
    return _rows(_text_lines(content), anything)


def _text_lines(content: bytearray) -> Iterator[str]:
    utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = "utf-16" if utf16 else "utf-8-sig"
    return iter(io.TextIOWrapper(io.BytesIO(content), encoding=encoding, errors="replace", newline=None))


def _rows(lines: Iterator[str], schema: CsvSchema) -> Iterator[list[str]]:
    at_top = bool(schema.comment_prefix)
    for line in lines:
        text = line.rstrip("\n")
        if not text.strip() or (at_top and text.startswith(schema.comment_prefix)):
            continue
        at_top = False
        try:
            yield next(csv.reader([text], delimiter=schema.delimiter, skipinitialspace=True))
        except (csv.Error, StopIteration):
            # A record nobody can read still counts as one: its place must not depend on what it holds.
            yield []


def count_surplus(path: str | os.PathLike[str], *, delimiter: str) -> int:
    """Return how many records of a file whose records need no protection have more cells than its header."""
    header, rows = read_public_cells(path, delimiter=delimiter)
    return sum(len(row) > len(header) for row in rows)


def first_line(content: bytearray, *, comment_prefix: str = "") -> str:
    """Return the first line that is neither blank nor a comment, as text; empty if there is none."""
    lines = (line.rstrip("\n") for line in _text_lines(content))
    return next(
        (line for line in lines if line.strip() and not (comment_prefix and line.startswith(comment_prefix))), ""
    )


def _positions(path: str | os.PathLike[str], header: list[str], schema: CsvSchema, line: str) -> dict[str, int]:
    found, wanted = [cell.strip() for cell in header], [column.name for column in schema.columns]
    wrong = [name for name in wanted if found.count(name) != 1]
    if wrong:
        others = f"; also wrong: {', '.join(map(repr, wrong[1:]))}" if 1 < len(wrong) < len(wanted) else ""
        raise DataError(
            f"The header of {path} should name the column {wrong[0]!r} once and names it {found.count(wrong[0])} "
            f"times{others}. Declared columns: {_names(schema)}. "
            f"{header_advice(line, wanted, delimiter=schema.delimiter)}"
        )
    return {name: found.index(name) for name in wanted}


def _columns(rows: Iterator[list[str]], schema: CsvSchema, positions: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    values: dict[str, list[float]] = {column.name: [] for column in schema.columns}
    for row in rows:
        for column in schema.columns:
            position = positions[column.name]
            values[column.name].append(column.value(row[position] if position < len(row) else None))
    return {column.name: np.array(values[column.name], dtype=column.dtype) for column in schema.columns}


def _names(schema: CsvSchema) -> str:
    return ", ".join(repr(column.name) for column in schema.columns)
