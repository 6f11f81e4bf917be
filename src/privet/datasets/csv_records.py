"""Splitting CSV text into records (RFC 4180), for every reader of tables.

The guarantee is about records, so they must be those that the owner wrote: a line break between quotes is part of a
cell, and a doubled quote is one quote. For malformed files (an unclosed quote, text after a closing quote) one record
could change the limits of others, so they are refused.
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
    """The format of a CSV file.

    Attributes:
        delimiter: One character between cells.
        has_header: Whether the first record names the columns.
        comment_prefix: Lines at the top of the file with this prefix are skipped; empty for none. Later lines with it
            are records, so that no record can remove itself.
        max_record_length: Largest number of characters of a record, including quotes and line breaks.
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
        cells: Cells without quoting, with their spaces.
        text: Text in the file, without its line ending.
    """

    cells: list[str]
    text: str


class _Malformed(Exception):
    """A malformed record; the message names the fault."""


@dataclass(kw_only=True)
class _RecordParser:
    """Parser state of one record, which takes one physical line after another and reads every character once."""

    delimiter: str
    max_length: int
    cells: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    quoted: list[str] | None = None
    length: int = 0

    def feed(self, line: str) -> bool:
        """Parse a line with its ending; return whether the record is complete."""
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
        """Parse the cell at ``start``; return the start of the next cell, None at the end of the line."""
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
        """Continue a quoted cell; return as ``_cell``, and None with an open quote if the line ends first."""
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
    """Yield the records, the header first if there is one.

    The text is UTF-8 with or without a byte order mark, or UTF-16 with one; invalid bytes become replacement
    characters. Records end with CR LF or LF; with a lone CR too if the header does. Empty lines are no records.

    Guarantee:
        A record written by Python's csv module or another writer of RFC 4180 is read as one record with the same cells.
        Changing, adding or removing a record changes no other record.

    Raises:
        DataError: a record is longer than declared, or has unclosed quotes. The message contains the number of the
            record, never its content.
    """
    parser, number, at_top = _parser(form), 0 if form.has_header else 1, bool(form.comment_prefix)
    try:
        for line in _lines(content, form):
            if not parser.lines:
                is_comment = at_top and line.startswith(form.comment_prefix)
                if is_comment or not line.rstrip("\r\n"):
                    continue
                at_top = False
            if parser.feed(line):
                yield CsvRecord(cells=parser.cells, text=_without_ending("".join(parser.lines)))
                parser, number = _parser(form), number + 1
        if parser.lines:
            raise _Malformed("opens a quote that is never closed")
    except _Malformed as reason:
        which = f"Record {number}" if number else "The header"
        raise DataError(
            f"{which} of {path} {reason}. A cell with quotes, line breaks or {form.delimiter!r} is written between "
            'quotes, each quote in it twice ("5"" pipe"): write the file again with a CSV writer, or declare a larger '
            "max_record_length if records are that long."
        ) from None


def first_record(content: bytes | bytearray, form: CsvFormat, *, path: str | os.PathLike[str]) -> CsvRecord | None:
    """Return the first record; None if there is none."""
    return next(csv_records(content, form, path=path), None)


def cells_of(text: str, *, delimiter: str) -> list[str]:
    """Return the cells of the text of one record; an empty list if it is malformed."""
    parser = _RecordParser(delimiter=delimiter, max_length=len(text))
    try:
        return parser.cells if parser.feed(text) else []
    except _Malformed:
        return []


def _without_ending(line: str) -> str:
    return line[:-2] if line.endswith("\r\n") else line[:-1] if line.endswith(("\n", "\r")) else line


def _parser(form: CsvFormat) -> _RecordParser:
    return _RecordParser(delimiter=form.delimiter, max_length=form.max_record_length)


def _lines(content: bytes | bytearray, form: CsvFormat) -> Iterator[str]:
    """Yield physical lines with their endings."""

    def text(newline: str) -> io.TextIOWrapper:
        utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        encoding = "utf-16" if utf16 else "utf-8-sig"
        return io.TextIOWrapper(io.BytesIO(content), encoding=encoding, errors="replace", newline=newline)

    # The public header decides: in a file of LF, a lone CR in a cell does not end a record.
    ends_in_cr = form.has_header and text("").readline().endswith("\r")
    return iter(text("" if ends_in_cr else "\n"))
