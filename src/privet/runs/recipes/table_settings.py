"""The table of a recipe that declares the user's own CSV files, as plain values."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from privet.datasets.csv_records import MAX_RECORD_LENGTH
from privet.datasets.info import DatasetInfo
from privet.datasets.own.declared_table import DeclaredTable, Target
from privet.datasets.tables import CategoryColumn, NumberColumn
from privet.errors import ArgumentError, RecipeError
from privet.runs.recipes.training_settings import Count, Inside, Positive, Table

Finite = Annotated[float, Field(allow_inf_nan=False)]
HOW_TO_PREDICT_NUMBERS = "To predict numbers, declare the range of the target: low and high, known without the records."


class ColumnSettings(Table):
    """One declared column: ``low`` and ``high`` of its numbers, or its ``categories``.

    Attributes:
        name: The name in the header line.
        low: Lower end of the range; smaller numbers are clamped to it.
        high: Upper end of the range; larger numbers are clamped to it.
        categories: Every value that the column may hold.
        default: Value for an empty or unreadable cell of a training record, and for an empty cell of a record to
            predict: ``low``, or the first category, if not given.
    """

    name: str
    low: Finite | None = None
    high: Finite | None = None
    categories: list[str] | None = None
    default: Finite | str | None = None

    def column(self, *, decimal: str = ".") -> NumberColumn | CategoryColumn:
        """Return the declared column, whose numbers have this decimal mark.

        Raises:
            RecipeError: it is declared as neither or both of numbers and categories, or its values contradict.
        """
        try:
            if self.categories and self.low is None and self.high is None:
                default = self.categories[0] if self.default is None else str(self.default)
                return CategoryColumn(name=self.name, categories=tuple(self.categories), default=default)
            if self.low is not None and self.high is not None and self.low < self.high and self.categories is None:
                if isinstance(self.default, str):
                    raise RecipeError(f"table: the default of the column {self.name!r} must be a number.")
                default_number = self.low if self.default is None else self.default
                return NumberColumn(
                    name=self.name, low=self.low, high=self.high, default=default_number, decimal=decimal
                )
        except ArgumentError as error:
            raise RecipeError(f"table: {error}") from error
        raise RecipeError(
            f"table: the column {self.name!r} needs either low and high, the smaller first, or a list of categories."
        )


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


class TableSettings(Table):
    """The user's own data: CSV files with a header, and their declared facts.

    Attributes:
        train: The file of the records to protect; relative to the recipe's folder.
        test: The file of the records to measure on, which are not protected. Without it nothing is measured.
        train_size: Declared number of training records. Never read off the file: it may itself be private.
        test_size: Declared number of test records; used only to estimate memory.
        label: The column that holds the class, for a classifier.
        target: In the place of ``label``: the column to predict, with categories or with a range of numbers.
        targets: In the place of ``label``: several columns to predict.
        columns: The input columns of the model.
        delimiter: One character between cells.
        decimal: The decimal mark of numbers, a point or a comma.
        max_record_length: The most characters of one record, a million if not given; a longer record is refused.
        person: The column that names the person of a record. With it the unit may be a person, if nobody has two
            records or ``privacy.sampling`` bounds the records of each.
        num_persons: Declared number of persons; a public number, which may be rounded. For comparisons only.
        one_record_per_person: Declares that each record holds everything about one person, for tables without names.
            The guarantee lists it as an assumption.
    """

    train: str
    test: str | None = None
    train_size: Count
    test_size: Count | None = None
    label: TargetSettings | None = None
    target: TargetSettings | None = None
    targets: list[TargetSettings] | None = None
    columns: list[ColumnSettings]
    delimiter: str = ","
    decimal: str = "."
    max_record_length: Count | None = None
    person: str | None = None
    num_persons: Count | None = None
    one_record_per_person: bool | None = None

    def declared(self) -> DeclaredTable:
        """Return the declaration.

        Raises:
            RecipeError: columns contradict themselves or each other, or the label holds no classes.
        """
        if self.decimal == self.delimiter:
            raise RecipeError(
                f"table: {self.decimal!r} cannot be both the delimiter and the decimal mark. Set another delimiter."
            )
        try:
            features = tuple(settings.column(decimal=self.decimal) for settings in self.columns)
            return DeclaredTable(
                features=features,
                targets=tuple(settings.target(decimal=self.decimal) for settings in self.all_targets),
                delimiter=self.delimiter,
                max_record_length=self.max_record_length or MAX_RECORD_LENGTH,
                person=self.person,
                one_record_per_person=bool(self.one_record_per_person),
            )
        except RecipeError:
            raise
        except ArgumentError as error:
            raise RecipeError(f"table: {error}") from error

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
