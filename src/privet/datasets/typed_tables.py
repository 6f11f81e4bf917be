"""Tables that are no CSV files, as the text of one: Parquet, Arrow and Feather files, and SQLite files with one table.

Every reader of tables reads CSV records, so a table in another format is written as such records first: one record of
the table becomes one record of the text, a null becomes an empty cell, a number its shortest exact decimal form with a
point, and a date or time its ISO form.

Guarantee: a record of the text is a function of one record of the table; the names in the header are those of the
columns. No value raises an error: one that has no plain form becomes an empty cell.
"""

from __future__ import annotations

import csv
import io
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType

from privet.datasets.files import MAX_CONTENT_BYTES, read_all
from privet.errors import DataError, DependencyError

Rows = tuple[Sequence[str], Iterable[Sequence[object]]]


def table_content(
    path: str | os.PathLike[str], *, delimiter: str, max_bytes: int = MAX_CONTENT_BYTES
) -> bytes | bytearray:
    """Return the text of a CSV file, or of a typed table as a CSV file.

    Raises:
        DataError: the file cannot be read, or holds no table or several.
        DependencyError: a package for the format is not installed.
    """
    reader = _READERS.get(Path(path).suffix.lower())
    if reader is None:
        return read_all(path, max_bytes=max_bytes)
    names, rows = reader(Path(path))
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\r\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return text.getvalue().encode("utf-8", errors="replace")


def is_typed(path: str | os.PathLike[str]) -> bool:
    """Whether a file holds typed values, so that a decimal mark cannot be declared for it."""
    return Path(path).suffix.lower() in _READERS


def _cell(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        is_day = not (value.hour or value.minute or value.second or value.microsecond)
        return value.strftime("%Y-%m-%d" if is_day else "%Y-%m-%d %H:%M:%S")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # a column of whole numbers with nulls often holds floats
    return str(value) if isinstance(value, bool | int | float | Decimal | date) else ""


def _arrow(path: Path) -> Rows:
    return _rows_of(path, lambda feather, source: feather.read_table(source), "feather")


def _parquet(path: Path) -> Rows:
    return _rows_of(path, lambda parquet, source: parquet.ParquetFile(source).read(), "parquet")


def _rows_of(path: Path, read: Callable[..., object], part: str) -> Rows:
    import importlib

    try:
        package, arrow = importlib.import_module(f"pyarrow.{part}"), importlib.import_module("pyarrow")
    except ImportError:
        raise DependencyError(f"{path} needs pyarrow. Install it with: pip install 'privet[tables]'.") from None
    try:
        table = read(package, path)
    except (OSError, arrow.ArrowException):
        # The reason that Arrow gives may show a value.
        raise DataError(f"{path} cannot be read as a {part} file. Write it again, or save it as CSV.") from None
    return list(table.column_names), _batches(table)  # type: ignore[attr-defined]


def _batches(table: object) -> Iterator[Sequence[object]]:
    for batch in table.to_batches(max_chunksize=4_096):  # type: ignore[attr-defined]
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _sqlite(path: Path) -> Rows:
    if not path.is_file():
        raise DataError(f"{path} does not exist.")
    try:
        base = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            listed = base.execute(
                "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
            )
            names = [str(row[0]) for row in listed]
            if len(names) != 1:
                found = ", ".join(names) or "none"
                raise DataError(
                    f"{path} should hold one table or view, and holds: {found}. Write the records to use into a "
                    "file of their own: CREATE TABLE records AS SELECT ..."
                )
            quoted = names[0].replace('"', '""')
            found_rows = base.execute(f'SELECT * FROM "{quoted}"')  # noqa: S608 - a quoted name of the file itself
            return [str(column[0]) for column in found_rows.description], found_rows.fetchall()
        finally:
            base.close()
    except sqlite3.Error:
        raise DataError(f"{path} cannot be read as a SQLite file. Write it again, or save it as CSV.") from None


_READERS: Mapping[str, Callable[[Path], Rows]] = MappingProxyType(
    {
        ".parquet": _parquet,
        ".arrow": _arrow,
        ".feather": _arrow,
        ".sqlite": _sqlite,
        ".sqlite3": _sqlite,
        ".db": _sqlite,
    }
)
