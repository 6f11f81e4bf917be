"""Where one record of a CSV file ends and the next begins: RFC 4180, for every reader of tables.

A record is what is charged, so it must be what its owner wrote: a line break between quotes is part of a cell, and a
doubled quote is one quote. What no writer of CSV writes (a quote that is never closed, text behind a closing quote) has
no reading in which one record decides nothing about others, so such a file is refused.
"""

from __future__ import annotations

import codecs
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from privet import checks
from privet.errors import ArgumentError, DataError

MAX_RECORD_LENGTH = 2**20


@dataclass(frozen=True, kw_only=True)
class CsvFormat:
    """The format by which a file is split into records and cells.

    Attributes:
        delimiter: One character between cells.
        has_header: Whether the first record names the columns.
        comment_prefix: Lines at the top of the file that begin with it are skipped; empty for none. Further down such a
            line is a record like any other, so that no record can make itself disappear.
        max_record_length: How many characters one record may have, quotes and line breaks included.
    """

    delimiter: str = ","
    has_header: bool = True
    comment_prefix: str = ""
    max_record_length: int = MAX_RECORD_LENGTH

    def __post_init__(self) -> None:
        checks.count("max_record_length", self.max_record_length)
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n\0':
            raise ArgumentError(
                f"delimiter must be one character other than a quote or a line break, got {self.delimiter!r}."
            )


@dataclass(frozen=True, kw_only=True)
class CsvRecord:
    """One record.

    Attributes:
        cells: As they were before quoting; spaces stay.
        text: As it stands in the file, without its line ending.
    """

    cells: list[str]
    text: str


class _Malformed(Exception):
    """A record that no writer of CSV writes; says what is wrong with it."""


@dataclass(kw_only=True)
class _Assembly:
    """A record in the making, fed one physical line after another; every character is looked at once."""

    delimiter: str
    max_length: int
    cells: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    quoted: list[str] | None = None
    length: int = 0

    def feed(self, line: str) -> bool:
        """Take a line with its ending; say whether the record is whole."""
        if self.length + len(_without_ending(line)) > self.max_length:
            raise _Malformed(f"is longer than the declared {self.max_length:,} characters")
        self.length += len(line)
        self.lines.append(line)
        if self.quoted is None and '"' not in line:
            self.cells.extend(_without_ending(line).split(self.delimiter))
            return True
        place = 0 if self.quoted is None else self._inside(line, 0)
        while place is not None:
            place = self._cell(line, place)
        return self.quoted is None

    def _cell(self, line: str, start: int) -> int | None:
        """Read the cell that begins at ``start``; return where the next one begins, None at the end of the line."""
        end = line.find(self.delimiter, start)
        cell = _without_ending(line[start:]) if end < 0 else line[start:end]
        # some writers put spaces before an opening quote
        opening = cell.find('"')
        if opening >= 0 and not cell[:opening].strip(" "):
            self.quoted = []
            return self._inside(line, start + opening + 1)
        self.cells.append(cell)
        return None if end < 0 else end + 1

    def _inside(self, line: str, start: int) -> int | None:
        """Read on between quotes; the same return as ``_cell``, and None with an open quote if the line ends first."""
        assert self.quoted is not None
        while True:
            quote = line.find('"', start)
            if quote < 0:
                self.quoted.append(line[start:])
                return None
            self.quoted.append(line[start:quote])
            if line[quote + 1 : quote + 2] != '"':
                break
            self.quoted.append('"')
            start = quote + 2
        self.cells.append("".join(self.quoted))
        self.quoted = None
        end = line.find(self.delimiter, quote + 1)
        if (line[quote + 1 :] if end < 0 else line[quote + 1 : end]).strip():
            raise _Malformed("has text between a closing quote and the end of its cell")
        return None if end < 0 else end + 1


def csv_records(content: bytes | bytearray, form: CsvFormat, *, path: str | os.PathLike[str]) -> Iterator[CsvRecord]:
    """Yield one record after another, the header first if there is one.

    The text is UTF-8 with or without a byte order mark, or UTF-16 with one; bytes that are no text become replacement
    characters. Records end with CR LF or LF; with a lone CR too if the header does. Empty lines are no records.

    Guarantee:
        What Python's csv module or another writer of RFC 4180 wrote as one record comes back as one, with its cells. A
        record that is changed, added or removed changes no other one.

    Raises:
        DataError: a record is longer than declared, or its quotes are not closed. The message names the number of the
            record, never its content.
    """
    assembly, number, at_top = _assembly(form), 0 if form.has_header else 1, bool(form.comment_prefix)
    try:
        for line in _lines(content, form):
            if not assembly.lines:
                is_comment = at_top and line.startswith(form.comment_prefix)
                if is_comment or not line.rstrip("\r\n"):
                    continue
                at_top = False
            if assembly.feed(line):
                yield CsvRecord(cells=assembly.cells, text=_without_ending("".join(assembly.lines)))
                assembly, number = _assembly(form), number + 1
        if assembly.lines:
            raise _Malformed("opens a quote that is never closed")
    except _Malformed as reason:
        which = f"Record {number}" if number else "The header"
        raise DataError(
            f"{which} of {path} {reason}. A cell with quotes, line breaks or {form.delimiter!r} is written between "
            'quotes, each quote in it twice ("5"" pipe"): write the file anew with a CSV writer, or declare a larger '
            "max_record_length if records are that long."
        ) from None


def first_record(content: bytes | bytearray, form: CsvFormat, *, path: str | os.PathLike[str]) -> CsvRecord | None:
    """Return the first record; None if there is none."""
    return next(csv_records(content, form, path=path), None)


def cells_of(text: str, *, delimiter: str) -> list[str]:
    """Return the cells of a single record's text; none if it is not one."""
    assembly = _Assembly(delimiter=delimiter, max_length=len(text))
    try:
        return assembly.cells if assembly.feed(text) else []
    except _Malformed:
        return []


def _without_ending(line: str) -> str:
    return line[:-2] if line.endswith("\r\n") else line[:-1] if line.endswith(("\n", "\r")) else line


def _assembly(form: CsvFormat) -> _Assembly:
    return _Assembly(delimiter=form.delimiter, max_length=form.max_record_length)


def _lines(content: bytes | bytearray, form: CsvFormat) -> Iterator[str]:
    """Yield physical lines with their endings as they are."""

    def text(newline: str) -> io.TextIOWrapper:
        utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        encoding = "utf-16" if utf16 else "utf-8-sig"
        return io.TextIOWrapper(io.BytesIO(content), encoding=encoding, errors="replace", newline=newline)

    # The header is public and decides for all: a lone CR in the cell of one record ends none in a file of LF.
    ends_in_cr = form.has_header and text("").readline().endswith("\r")
    return iter(text("" if ends_in_cr else "\n"))
