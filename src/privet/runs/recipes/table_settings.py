"""The table of a recipe that declares the user's own CSV files, as plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from privet.accounting.guarantee import rounded_up
from privet.datasets.csv_records import MAX_RECORD_LENGTH
from privet.datasets.info import DatasetInfo
from privet.datasets.own.declared_table import DeclaredTable, Target
from privet.datasets.special_columns import DateColumn, GapColumn, OrdinalColumn, day
from privet.datasets.sql_tables import SqlTable, is_address
from privet.datasets.tables import CategoryColumn, NumberColumn
from privet.errors import ArgumentError, DataError, RecipeError
from privet.mechanism.events import DpEvent, gaussian_event
from privet.runs.recipes.file_settings import FileSettings, Name
from privet.runs.recipes.training_settings import Count, Inside, Positive, Table

Finite = Annotated[float, Field(allow_inf_nan=False)]
HOW_TO_PREDICT_NUMBERS = "To predict numbers, declare the range of the target: low and high, known without the records."


class ColumnSettings(Table):
    """One declared column: ``low`` and ``high`` of its numbers, ``categories``, ``ordered`` words, or ``dates``.

    Attributes:
        name: The name in the header line.
        low: Lower end of the range; smaller numbers are clamped to it.
        high: Upper end of the range; larger numbers are clamped to it.
        categories: Every value that the column may hold.
        ordered: Every word that the column may hold, the least first: learned as numbers from 0 on.
        dates: Format of its dates, such as "%Y-%m-%d": learned as days since ``earliest``.
        earliest: The first date; earlier ones are clamped to it.
        latest: The last date; later ones are clamped to it.
        default: Value for an empty or unreadable cell of a training record, and for an empty cell of a record to
            measure or to predict. Not given, it is ``low``, the first category or the earliest date for training and
            prediction, and measuring refuses such a cell.
        gaps: Whether empty cells are expected and shown to the model: by a column of their own beside numbers, or a
            category of their own.
    """

    name: Name
    low: Finite | None = None
    high: Finite | None = None
    categories: list[str] | None = None
    ordered: list[str] | None = None
    dates: str | None = None
    earliest: str | None = None
    latest: str | None = None
    default: Finite | str | None = None
    gaps: bool | None = None

    def columns(self, *, decimal: str = ".") -> tuple[NumberColumn | CategoryColumn, ...]:
        """Return the declared column, and the column that shows its gaps if that is declared.

        Raises:
            RecipeError: its values contradict.
        """
        column = self.column(decimal=decimal)
        shows = bool(self.gaps) and isinstance(column, NumberColumn)
        return (column, GapColumn.showing(column)) if shows and isinstance(column, NumberColumn) else (column,)

    def column(self, *, decimal: str = ".") -> NumberColumn | CategoryColumn:
        """Return the declared column, whose numbers have this decimal mark.

        Raises:
            RecipeError: it is declared as neither or both of numbers and categories, or its values contradict.
        """
        ways: dict[str, Callable[[str], NumberColumn | CategoryColumn]] = {
            "low": self._number,
            "categories": self._category,
            "ordered": self._ordinal,
            "dates": self._date,
        }
        chosen = [way for name, way in ways.items() if getattr(self, name) is not None]
        if (self.high is not None and self.low is None) or len(chosen) != 1:
            raise RecipeError(self._how_to_declare())
        try:
            return chosen[0](decimal)
        except RecipeError:
            raise
        except ArgumentError as error:
            raise RecipeError(f"table: {error}") from error

    def _how_to_declare(self) -> str:
        return (
            f"table: the column {self.name!r} needs either low and high, the smaller first, or a list of categories, "
            "or a list of ordered words, or dates with earliest and latest."
        )

    @property
    def _takes_gaps(self) -> bool:
        return self.default is not None or bool(self.gaps)

    def _number(self, decimal: str) -> NumberColumn:
        if self.low is None or self.high is None or not self.low < self.high:
            raise RecipeError(self._how_to_declare())
        if isinstance(self.default, str):
            raise RecipeError(f"table: the default of the column {self.name!r} must be a number.")
        default = self.low if self.default is None else self.default
        return NumberColumn(
            name=self.name, low=self.low, high=self.high, default=default, decimal=decimal, takes_gaps=self._takes_gaps
        )

    def _category(self, decimal: str) -> CategoryColumn:
        words = tuple(self.categories or ())
        if not words:
            raise RecipeError(self._how_to_declare())
        if self.gaps and "" not in words:
            words = (*words, "")
        default = ("" if self.gaps else words[0]) if self.default is None else str(self.default)
        return CategoryColumn(
            name=self.name, categories=words, default=default, takes_gaps=self._takes_gaps, decimal=decimal
        )

    def _ordinal(self, decimal: str) -> NumberColumn:
        words = tuple(self.ordered or ())
        default = words[0] if self.default is None and words else self.default
        if len(words) < 2 or len(set(words)) < len(words) or default not in words:
            raise RecipeError(
                f"table: the column {self.name!r} needs at least two different ordered words, and its default must be "
                "one of them."
            )
        return OrdinalColumn(
            name=self.name, low=0.0, high=len(words) - 1.0, default=float(words.index(str(default))), ordered=words,
            takes_gaps=self._takes_gaps, decimal=decimal,
        )  # fmt: skip

    def _date(self, decimal: str) -> NumberColumn:
        if self.dates is None or self.earliest is None or self.latest is None:
            raise RecipeError(
                f'table: the column {self.name!r} of dates needs dates = "%Y-%m-%d", earliest and latest, as in '
                'earliest = "2015-01-01".'
            )
        first = day(self.name, self.earliest, self.dates)
        span = (day(self.name, self.latest, self.dates) - first).days
        if span < 1:
            raise RecipeError(f"table: the column {self.name!r} needs an earliest date before the latest.")
        at = 0.0
        if self.default is not None:
            at = float((day(self.name, str(self.default), self.dates) - first).days)
        return DateColumn(
            name=self.name, low=0.0, high=float(span), default=at, form=self.dates, earliest=first,
            takes_gaps=self._takes_gaps,
        )  # fmt: skip


class TargetSettings(ColumnSettings):
    """A declared column to predict.

    Attributes:
        counts: Whether its numbers are counts, for Poisson regression; ``low`` is then 0.
        weights: Factor on the loss of each category, at most 1.
        threshold: Of two categories, the probability from which the second is decided.
    """

    counts: bool | None = None
    weights: list[Positive] | None = None
    threshold: Inside | None = None

    def target(self, *, decimal: str = ".") -> Target:
        """Return the declared target.

        Raises:
            RecipeError: its values contradict.
        """
        column = self.column(decimal=decimal)
        try:
            if isinstance(column, CategoryColumn):
                self._refuse(("counts",), "has categories")
                return Target.classes(column, weights=tuple(self.weights or ()), threshold=self.threshold or 0.5)
            self._refuse(("weights", "threshold"), "is declared by a range of numbers")
            return Target.count(column) if self.counts else Target.number(column)
        except RecipeError:
            raise
        except ArgumentError as error:
            raise RecipeError(f"table: {error}") from error

    def as_feature(self) -> ColumnSettings:
        """Return the same column as an input of the model: one schema serves whichever column is to be predicted."""
        return ColumnSettings(**{name: getattr(self, name) for name in ColumnSettings.model_fields})

    def _refuse(self, names: tuple[str, ...], because: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise RecipeError(f"table: the column {self.name!r} {because}, and {name} is not for that. Remove it.")


def _check_address(where: str) -> None:
    try:
        SqlTable.at(where)
    except DataError as error:
        raise RecipeError(f"table: {error}") from None


class ReleasedSettings(Table):
    """What a schema cost whose ranges and counts were released from the private records, before any training.

    Attributes:
        ledger: SHA-256 of the newest row of the ledger that it was charged on.
        spent_epsilon: The epsilon of that ledger.
        spent_delta: Its delta.
        noise_ratio: Ratio of the noise to the largest change by one unit.
        protects: Whom it protects.
        neighbours: How neighbouring tables differ.
    """

    ledger: str
    spent_epsilon: Positive
    spent_delta: Inside
    noise_ratio: Positive
    protects: str
    neighbours: str

    @property
    def event(self) -> DpEvent:
        """The cost of the release."""
        return gaussian_event(bounds=(1.0,), stds=(self.noise_ratio,))

    @property
    def assumption(self) -> str:
        """What a guarantee of training must say beside its figures."""
        return (
            f"the schema was released from private records before, at epsilon {rounded_up(self.spent_epsilon)} and "
            f"delta {self.spent_delta:g} for one {self.protects}, which is spent besides: the total is that of this "
            f"ledger and the ledger whose newest row is {self.ledger} together"
        )


class TableSettings(FileSettings):
    """The user's own tables, and their declared facts.

    Attributes:
        label: The column that holds the class, for a classifier.
        target: In the place of ``label``: the column to predict, with categories or with a range of numbers.
        targets: In the place of ``label``: several columns to predict.
        columns: The input columns of the model.
        decimal: The decimal mark of numbers, a point or a comma.
        max_record_length: The most characters of one record, a million if not given; a longer record is refused.
        released: What the declaration itself cost, if it was released from the private records.
    """

    label: TargetSettings | None = None
    target: TargetSettings | None = None
    targets: list[TargetSettings] | None = None
    columns: list[ColumnSettings]
    decimal: str = "."
    max_record_length: Count | None = None
    released: ReleasedSettings | None = None

    def declared(self) -> DeclaredTable:
        """Return the declaration.

        Raises:
            RecipeError: columns contradict themselves or each other, or the label holds no classes.
        """
        if self.decimal == self.delimiter:
            raise RecipeError(
                f"table: {self.decimal!r} cannot be both the delimiter and the decimal mark. Set another delimiter."
            )
        for where in (self.train, self.test):
            if where is not None and is_address(where):
                _check_address(where)
        try:
            features = tuple(column for settings in self.columns for column in settings.columns(decimal=self.decimal))
            return DeclaredTable(
                features=features,
                targets=tuple(settings.target(decimal=self.decimal) for settings in self.all_targets),
                delimiter=self.delimiter,
                max_record_length=self.max_record_length or MAX_RECORD_LENGTH,
                ownership=self.ownership,
            )
        except RecipeError:
            raise
        except ArgumentError as error:
            raise RecipeError(f"table: {error}") from error

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns to learn from."""
        return tuple(column.name for column in self.columns)

    @property
    def predicted(self) -> tuple[str, ...]:
        """The columns to predict."""
        return tuple(target.name for target in self.all_targets)

    @property
    def all_targets(self) -> tuple[TargetSettings, ...]:
        """The columns to predict.

        Raises:
            RecipeError: none is declared, in several ways, or the label is a range of numbers.
        """
        found = {"label": self.label, "target": self.target, "targets": self.targets}
        given = [name for name, value in found.items() if value is not None]
        if len(given) != 1:
            raise RecipeError(
                f"table declares {' and '.join(given) or 'nothing to predict'}. Give one of label (a class), target "
                "(a class or a number) and targets (several)."
            )
        if self.label is not None and self.label.categories is None:
            raise RecipeError(
                f"table.label {self.label.name!r} is declared by a range of numbers, and a label holds classes. Write "
                "target in the place of label to predict numbers, or list its categories."
            )
        if self.targets is not None:
            return tuple(self.targets)
        return tuple(one for one in (self.label, self.target) if one is not None)

    def info(self, name: str) -> DatasetInfo:
        """Return the public facts about the data."""
        return self.declared().info(name, train_size=self.train_size, test_size=self.test_size or 0)
