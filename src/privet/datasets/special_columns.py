"""Columns of dates, of ordered words, and of gaps: each is a column of numbers with another reading of its cells."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, datetime

from privet.datasets.tables import NumberColumn
from privet.datasets.words import place_of
from privet.errors import ArgumentError


def day(name: str, word: str, form: str) -> date:
    """Return a declared date.

    Raises:
        ArgumentError: it does not have the declared format.
    """
    try:
        return datetime.strptime(word, form).date()
    except ValueError:
        raise ArgumentError(
            f"The column {name!r} declares dates as {form!r}, and {word!r} is none. Write earliest, latest and default "
            "in that format; %Y is a year of four digits, %m a month, %d a day, %H:%M:%S a time."
        ) from None


@dataclass(frozen=True, kw_only=True)
class DateColumn(NumberColumn):
    """A column of dates in one declared format, as days since the earliest; the range is in days.

    Attributes:
        form: Format of a cell, in the letters of ``strptime``.
        earliest: The day counted as zero.
    """

    form: str
    earliest: date

    def number(self, cell: str) -> float:
        """Return the days since the earliest date; NaN if the cell is no date of the format."""
        try:
            found = datetime.strptime(cell, self.form)
        except ValueError:
            return math.nan
        seconds = found.hour * 3600 + found.minute * 60 + found.second
        return (found.date() - self.earliest).days + seconds / 86_400


@dataclass(frozen=True, kw_only=True)
class OrdinalColumn(NumberColumn):
    """A column of words in a declared order, as their places from 0.

    Attributes:
        ordered: The words, the least first.
    """

    ordered: tuple[str, ...]

    def number(self, cell: str) -> float:
        """Return the place of the word; NaN if it is not declared."""
        place = place_of(cell, self.ordered, decimal=self.decimal)
        return math.nan if place is None else float(place)

    def stand_ins(self) -> tuple[float, ...]:
        """Return the places of all words."""
        return tuple(float(place) for place in range(len(self.ordered)))


@dataclass(frozen=True, kw_only=True)
class GapColumn(NumberColumn):
    """One where a cell of another column holds no value, zero elsewhere.

    Guarantee: a function of one cell of one record; that the column exists is declared, not learned.

    Attributes:
        of: The column whose gaps are shown.
    """

    of: NumberColumn

    @classmethod
    def showing(cls, column: NumberColumn) -> GapColumn:
        """Return the column of gaps of a column."""
        return cls(name=f"{column.name} is missing", low=0.0, high=1.0, default=1.0, takes_gaps=True, of=column)

    @property
    def header(self) -> str:
        return self.of.name

    def number(self, cell: str) -> float:
        """Return 1 for a cell without a readable value, otherwise 0."""
        return float(math.isnan(self.of.number(cell.strip())))

    def stand_ins(self) -> tuple[float, ...]:
        """Return a zero for every value of the column itself: a stand-in is no gap."""
        return (0.0,) * len(self.of.stand_ins())
