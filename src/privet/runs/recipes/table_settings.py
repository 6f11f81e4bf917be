"""The table of a recipe that declares the user's own CSV files, as plain values."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from privet.datasets.csv_records import MAX_RECORD_LENGTH
from privet.datasets.info import DatasetInfo
from privet.datasets.own.declared_table import DeclaredTable
from privet.datasets.tables import CategoryColumn, NumberColumn
from privet.errors import ArgumentError, RecipeError
from privet.runs.recipes.training_settings import Count, Table

Finite = Annotated[float, Field(allow_inf_nan=False)]
HOW_TO_PREDICT_NUMBERS = (
    "To predict numbers as such, use Python: privet.PrivateRegressor trains on arrays in one call, privet.privatize is "
    "for a training loop of your own."
)


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


class TableSettings(Table):
    """The user's own data: CSV files with a header, and their declared facts.

    Attributes:
        train: The file of the records to protect; relative to the recipe's folder.
        test: The file of the records to measure on, which are not protected. Without it nothing is measured.
        train_size: Declared number of training records. Never read off the file: it may itself be private.
        test_size: Declared number of test records; used only to estimate memory.
        label: The column that holds the class.
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
    label: ColumnSettings
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
        label = self.label.column()
        if not isinstance(label, CategoryColumn):
            raise RecipeError(
                f"table.label {self.label.name!r} is declared by a range of numbers, and recipes train classifiers: it "
                "must list its categories. List its values, or divide the numbers into a few classes in the file. "
                f"{HOW_TO_PREDICT_NUMBERS}"
            )
        if self.decimal == self.delimiter:
            raise RecipeError(
                f"table: {self.decimal!r} cannot be both the delimiter and the decimal mark. Set another delimiter."
            )
        try:
            features = tuple(settings.column(decimal=self.decimal) for settings in self.columns)
            return DeclaredTable(
                features=features,
                label=label,
                delimiter=self.delimiter,
                max_record_length=self.max_record_length or MAX_RECORD_LENGTH,
                person=self.person,
                one_record_per_person=bool(self.one_record_per_person),
            )
        except RecipeError:
            raise
        except ArgumentError as error:
            raise RecipeError(f"table: {error}") from error

    def info(self, name: str) -> DatasetInfo:
        """Return the public facts about the data."""
        return self.declared().info(name, train_size=self.train_size, test_size=self.test_size or 0)
