"""The importance of columns as bars, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privet.effects.importance import ImportanceReport

if TYPE_CHECKING:
    from privet.runs.evaluated import PrivateEvaluation

IMPORTANCE_HEADER = ("without the column", "worse by", "95 % interval", "")
_MOST_ROWS = 30
_ACCURACY, _ERROR = "accuracy", "mean absolute error"
_BAR, _LONGEST = "#", 20


@dataclass(frozen=True, kw_only=True)
class ImportanceRow:
    """One column.

    Attributes:
        column: Its name.
        value: How much worse the figure is without it.
        interval: The 95 % interval.
        width: Length of the bar, in percent of the longest; zero where the figure is not worse.
    """

    column: str
    value: str
    interval: str
    width: float

    @property
    def cells(self) -> tuple[str, ...]:
        """The row with its bar in characters."""
        return (self.column, self.value, self.interval, _BAR * round(self.width / 100 * _LONGEST))


@dataclass(frozen=True, kw_only=True)
class ImportancePart:
    """The columns for one figure, the most important first.

    Attributes:
        title: What falls or rises.
        rows: The columns.
        num_left_out: How many less important columns are not shown.
    """

    title: str
    rows: tuple[ImportanceRow, ...]
    num_left_out: int


def private_parts(found: PrivateEvaluation) -> tuple[ImportancePart, ...]:
    """Return the importance of columns in a private evaluation; nothing where it was not measured."""
    figures = found.figures.importance
    if not figures:
        return ()
    figure = _ACCURACY if found.released.terms.class_names else _ERROR
    return (_part(figure, [(each.name, each.value, each.low, each.high) for each in figures]),)


def public_parts(found: ImportanceReport) -> tuple[ImportancePart, ...]:
    """Return the importance of columns on public records, one part for every figure."""
    parts = []
    for figure in dict.fromkeys(row.figure for row in found.columns):
        own = [row for row in found.columns if row.figure == figure]
        parts.append(_part(figure, [(row.column, row.value, row.low, row.high) for row in own]))
    return tuple(parts)


def private_note(found: PrivateEvaluation) -> str:
    """Say how the importance of a private evaluation was measured."""
    return (
        "In the place of a column stood its declared values in turn, or values spread evenly over its range, so that "
        "no record is judged by the value of another. Released with noise, as a part of the private evaluation at "
        f"epsilon {found.epsilon:g}; the intervals hold the noise and the choice of records. With more columns each "
        "has more noise."
    )


def public_note(found: ImportanceReport) -> str:
    """Say how importance was measured on public records."""
    return (
        f"Every column was permuted {found.num_permutations} times among {found.num_examples:,} public records: "
        f"{found.measured_on}. All parts of a column are permuted together. The intervals hold the choice of records "
        "and of permutations. Columns that tell the same can stand in for each other, and then neither seems important."
    )


def _part(figure: str, columns: Sequence[tuple[str, float, float, float]]) -> ImportancePart:
    largest = max((value for _, value, *_ in columns), default=0.0)
    is_share = figure.endswith(_ACCURACY)

    def text(value: float) -> str:
        # adding zero makes a negative zero positive
        return f"{round(100 * value, 1) + 0.0:.1f}" if is_share else f"{value + 0.0:.3g}"

    rows = tuple(
        ImportanceRow(
            column=name,
            value=f"{text(value)} points" if is_share else text(value),
            interval=f"{text(low)} to {text(high)}",
            width=round(100 * max(0.0, value) / largest, 1) if largest > 0 else 0.0,
        )
        for name, value, low, high in sorted(columns, key=lambda column: -column[1])[:_MOST_ROWS]
    )
    title = f"How much the {figure} {'falls' if is_share else 'rises'} without a column"
    return ImportancePart(title=title, rows=rows, num_left_out=max(0, len(columns) - _MOST_ROWS))
