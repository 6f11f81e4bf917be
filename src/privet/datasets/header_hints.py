"""Advice for a CSV file whose first line is not the declared header."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from privet.datasets.csv_records import cells_of
from privet.datasets.words import composed

# Common delimiters of CSV files, and their form in a shell.
_DELIMITERS = {",": "','", ";": "';'", "\t": "$'\\t'", "|": "'|'"}
# A word of these in the name of a column says that it names whom a record is about.
_IDENTIFIERS = re.compile("ids?|ssn|mrn|nhs|uuid|patient|person|customer|client|subject|user|member")
_MARKS_OF_IDENTIFIERS = re.compile("ids?|nr|no|num|number|key|code|ref")
_UNREADABLE = "\N{REPLACEMENT CHARACTER}"


def header_advice(line: str, wanted: Sequence[str], *, delimiter: str) -> str:
    """Return advice on a first line that does not name each of the wanted columns once.

    Guarantee: without a header the first line may be a record. So the advice shows no cell of it, except a name that is
    similar to a wanted one, and only if no cell of the line is a number.
    Edge cases: if no specific advice applies, the advice is to check names, delimiter and header.
    """
    wanted, cells = [composed(name) for name in wanted], _cells(line, delimiter)
    lacking = [name for name in wanted if name not in cells]
    better = _better_delimiter(line, wanted, delimiter)
    if better is not None:
        return (
            f"With {better!r} between cells in place of {delimiter!r} it would: say --delimiter {_DELIMITERS[better]}, "
            f'or delimiter = "{_escaped(better)}" in the recipe\'s [table].'
        )
    if _UNREADABLE in line:
        return "It holds bytes that are not UTF-8 text: save the file as UTF-8."
    if not lacking:
        return "Give each column a name of its own."
    if any(_is_number(cell) for cell in cells):
        return (
            "The first line holds numbers, so it looks like a record: put a line above it that names the columns, "
            f"with {delimiter!r} between them."
        )
    near = {name: found for name in lacking if (found := _nearest(name, cells)) is not None}
    if near:
        pairs = ", ".join(f"{found!r} for {name!r}" for name, found in near.items())
        return f"Did you mean {pairs}? Upper and lower case matter. Correct the name, there or here."
    if len(lacking) < len(wanted):
        return "Remove the missing columns from the declaration, or add them to the file."
    count = f"{len(cells)} cell" if len(cells) == 1 else f"{len(cells)} cells"
    return (
        f"The first line has {count}, with {delimiter!r} between them. They are not shown here: without the names that "
        "are looked for, it may be a record. Look at it yourself (head -n 1 FILE); check the names, the delimiter, and "
        "that it names the columns."
    )


def _cells(line: str, delimiter: str) -> list[str]:
    return [composed(cell) for cell in cells_of(line, delimiter=delimiter)]


def _better_delimiter(line: str, wanted: Sequence[str], delimiter: str) -> str | None:
    """Return a delimiter with which all wanted names are found, if the declared one does not find all."""

    def num_named(by: str) -> int:
        cells = _cells(line, by)
        return sum(cells.count(name) == 1 for name in wanted)

    now = num_named(delimiter)
    others = [other for other in _DELIMITERS if other != delimiter and num_named(other) == len(wanted) > now]
    return others[0] if others else None


def _nearest(name: str, cells: Sequence[str]) -> str | None:
    folded = {cell.casefold(): cell for cell in reversed(cells) if cell}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.7)
    return folded[close[0]] if close else None


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True


def _escaped(delimiter: str) -> str:
    return "\\t" if delimiter == "\t" else delimiter


def names_persons(name: str) -> bool:
    """Whether a column is named like an identifier of persons: patient_id, customerNumber, ssn, Person."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    if not words:
        return False
    is_marked = len(words) > 1 and _MARKS_OF_IDENTIFIERS.fullmatch(words[-1]) and _IDENTIFIERS.fullmatch(words[0])
    return bool(is_marked or _IDENTIFIERS.fullmatch(words[-1]))
