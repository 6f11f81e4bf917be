"""Tables that are no CSV files, as the text of one: Parquet, Arrow, Feather and SQLite files, and databases.

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
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from uuid import UUID

from privet.datasets.files import MAX_CONTENT_BYTES, open_content, read_all, read_up_to
from privet.datasets.sql_tables import SqlTable, is_address
from privet.errors import DataError, DependencyError

Rows = tuple[Sequence[str], Iterable[Sequence[object]]]


@dataclass(frozen=True, kw_only=True)
class TableText:
    """The records of a table, read once: whatever is taken from it is about the same records in the same order.

    Attributes:
        name: The table in messages.
        content: Its text as a CSV file.
    """

    name: str
    content: bytes | bytearray


def table_text(where: str | os.PathLike[str], *, delimiter: str, max_bytes: int = MAX_CONTENT_BYTES) -> TableText:
    """Read a CSV file, or a typed table as one.

    Args:
        where: Path of a file, or the address of a table in a database.
        delimiter: One character between cells.
        max_bytes: Largest accepted text.

    Raises:
        DataError: the table cannot be read or is too large, or the file holds no table or several.
        DependencyError: a package for the format is not installed.
    """
    if is_address(where):
        table = SqlTable.at(where)
        return TableText(name=str(table), content=_written(str(table), table.read(), delimiter, max_bytes))
    reader = _READERS.get(Path(where).suffix.lower())
    if reader is None:
        return TableText(name=str(where), content=read_all(where, max_bytes=max_bytes))
    return TableText(name=str(where), content=_written(str(where), reader(Path(where)), delimiter, max_bytes))


def header_text(where: str | os.PathLike[str], *, delimiter: str, max_bytes: int) -> TableText:
    """Read the beginning of a CSV file, or the names of the columns of a typed table as its header.

    Raises:
        DataError: as :func:`table_text`.
    """
    if is_address(where):
        table = SqlTable.at(where)
        return TableText(name=str(table), content=_written(str(table), (table.names(), ()), delimiter, max_bytes))
    if is_typed(where):
        return table_text(where, delimiter=delimiter)
    with open_content(where) as stream:
        return TableText(name=str(where), content=read_up_to(stream, max_bytes))


def is_typed(where: str | os.PathLike[str]) -> bool:
    """Whether a table holds typed values, so that a decimal mark cannot be declared for it."""
    return is_address(where) or Path(where).suffix.lower() in _READERS


def _written(name: str, found: Rows, delimiter: str, max_bytes: int) -> bytes:
    names, rows = found
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\r\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    content = text.getvalue().encode("utf-8", errors="replace")
    if len(content) > max_bytes:
        raise DataError(f"{name} holds more than {max_bytes} bytes. If that is expected, raise max_bytes.")
    return content


def _cell(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        is_day = not (value.hour or value.minute or value.second or value.microsecond)
        return value.strftime("%Y-%m-%d" if is_day else "%Y-%m-%d %H:%M:%S")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # a column of whole numbers with nulls often holds floats
    return str(value) if isinstance(value, bool | int | float | Decimal | date | UUID) else ""


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
            base.text_factory = _decoded
            listed = base.execute(
                "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
            )
            names = [str(row[0]) for row in listed]
            if len(names) != 1:
                found = ", ".join(names) or "none"
                raise DataError(
                    f"{path} should hold one table or view, and holds: {found}. Name one of several by the file's URL: "
                    f"sqlite:///{path} --table NAME, which needs privet[sql]; or write its records into a file of "
                    "their own: CREATE TABLE records AS SELECT ..."
                )
            quoted = names[0].replace('"', '""')
            found_rows = base.execute(f'SELECT * FROM "{quoted}"')  # noqa: S608 - a quoted name of the file itself
            return [str(column[0]) for column in found_rows.description], found_rows.fetchall()
        finally:
            base.close()
    except sqlite3.Error:
        raise DataError(f"{path} cannot be read as a SQLite file. Write it again, or save it as CSV.") from None


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", errors="replace")


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
