"""The declaration of a table: columns, ranges, categories and sizes, known without reading a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from privet import checks
from privet.datasets.csv_records import MAX_RECORD_LENGTH
from privet.datasets.encoding import declared_ranges, encoded_names
from privet.datasets.info import DatasetInfo
from privet.datasets.own.facts import owners_facts
from privet.datasets.own.ownership import OF_NOBODY, Ownership
from privet.datasets.tables import CategoryColumn, Column, CsvSchema, NumberColumn
from privet.datasets.tasks import Classes, Count, Number, Task, task_of
from privet.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Target:
    """A column to predict, and how a model predicts it.

    Attributes:
        column: The column; unreadable cells of training records become its default.
        task: How it is learned.
    """

    column: NumberColumn | CategoryColumn
    task: Classes | Number | Count

    @classmethod
    def classes(cls, column: CategoryColumn, *, weights: tuple[float, ...] = (), threshold: float = 0.5) -> Self:
        """Return the classes of a column of categories as the target."""
        task = Classes(name=column.name, class_names=column.categories, weights=weights, threshold=threshold)
        return cls(column=column, task=task)

    @classmethod
    def number(cls, column: NumberColumn) -> Self:
        """Return the numbers of a column, within its declared range, as the target."""
        return cls(column=column, task=Number(name=column.name, low=column.low, high=column.high))

    @classmethod
    def count(cls, column: NumberColumn) -> Self:
        """Return the counts of a column, from zero to its declared bound, as the target.

        Raises:
            ArgumentError: the range of the column does not begin at zero.
        """
        if column.low:
            raise ArgumentError(
                f"The column {column.name!r} is declared as counts from {column.low:g}. Counts begin at zero: set low "
                "to 0, or declare it without counts."
            )
        return cls(column=column, task=Count(name=column.name, high=column.high))


@dataclass(frozen=True, kw_only=True)
class DeclaredTable:
    """The declaration of a CSV file: the inputs of a model, and its targets.

    Ranges and categories are declared, never computed from records: otherwise one record could change the encoding of
    every other record.

    Attributes:
        features: The input columns of the model.
        targets: The columns to predict.
        delimiter: One character between cells.
        max_record_length: Largest number of characters of a record.
        ownership: Whose the records are.
    """

    features: tuple[NumberColumn | CategoryColumn, ...]
    targets: tuple[Target, ...]
    delimiter: str = ","
    max_record_length: int = MAX_RECORD_LENGTH
    ownership: Ownership = OF_NOBODY

    def __post_init__(self) -> None:
        checks.count("max_record_length", self.max_record_length)
        names = [column.name for column in self.columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ArgumentError(f"The column {twice!r} is declared twice. Declare each column once; a target is one.")
        if not self.features:
            raise ArgumentError("A table needs at least one column beside its target.")
        if not self.targets:
            raise ArgumentError("A table needs at least one target: the column to predict.")

    @property
    def columns(self) -> tuple[NumberColumn | CategoryColumn, ...]:
        """All declared columns, the targets last."""
        return (*self.features, *(target.column for target in self.targets))

    @property
    def task(self) -> Task:
        """The task of a model of this table."""
        return task_of([target.task for target in self.targets])

    def schema(self, columns: Sequence[Column]) -> CsvSchema:
        """Return the CSV schema of this table for some of its columns."""
        return CsvSchema(columns=tuple(columns), delimiter=self.delimiter, max_record_length=self.max_record_length)

    def info(self, name: str, *, train_size: int, test_size: int) -> DatasetInfo:
        """Return the facts about the table; its records are not public.

        Args:
            name: Name of the data set.
            train_size: Declared number of training records.
            test_size: Declared number of test records; 0 for none.
        """
        encoded = encoded_names(self.features)
        facts = owners_facts(
            name,
            "a table",
            sizes=(train_size, test_size),
            input_shape=(len(encoded),),
            class_names=self.task.class_names,
        )
        return replace(
            facts,
            feature_names=encoded,
            normalisations=(declared_ranges(self.features),),
            declared_task=self.task,
        )
