"""When two words of a table are the same: names of columns, and cells of declared words."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache


def composed(word: str) -> str:
    """Return a word without spaces around it in composed Unicode (NFC), in which equal letters are equal text."""
    return unicodedata.normalize("NFC", word.strip())


def place_of(cell: str, words: Sequence[str], *, decimal: str = ".") -> int | None:
    """Return the place of the declared word that a cell holds; None if it holds none.

    The same text comes first, then the same text in composed Unicode, then an equal number: ``1.0`` is the declared
    ``1``. Numbers are compared exactly, not as floats.

    Guarantee: a function of the cell and of the declaration. Never raises.
    Edge cases: of several declared words that are equal as numbers, the first is meant.
    """
    if cell in words:
        return words.index(cell)
    named = composed(cell)
    by_text, by_number = _places(tuple(words), decimal)
    if named in by_text:
        return by_text[named]
    number = _number(named, decimal)
    return None if number is None else by_number.get(number)


@lru_cache(maxsize=256)
def _places(words: tuple[str, ...], decimal: str) -> tuple[dict[str, int], dict[Decimal, int]]:
    """Return the place of each declared word by its text and by its number, the first of equal ones."""
    by_text: dict[str, int] = {}
    by_number: dict[Decimal, int] = {}
    for place, word in enumerate(map(composed, words)):
        by_text.setdefault(word, place)
        number = _number(word, decimal)
        if number is not None:
            by_number.setdefault(number, place)
    return by_text, by_number


def _number(word: str, decimal: str) -> Decimal | None:
    # Python reads 1_000 as a thousand, other programs do not
    if "_" in word or (decimal == "," and "." in word):
        return None
    try:
        found = Decimal(word.replace(",", ".") if decimal == "," else word)
    except InvalidOperation:
        return None
    return found if found.is_finite() else None
