"""A table as its owner declares it: columns, ranges, categories and sizes, known without reading a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privet import checks
from privet.datasets.csv_records import MAX_RECORD_LENGTH
from privet.datasets.encoding import declared_ranges, encoded_names
from privet.datasets.info import DatasetInfo
from privet.datasets.tables import CategoryColumn, Column, CsvSchema, NumberColumn
from privet.errors import ArgumentError
from privet.vocabulary import OneItem, Unit

_SEVERAL = (
    "In the column {column!r} somebody has several records, or a record names nobody. Join each person's records into "
    "one, keep one of them, or protect records: privacy.unit = 'record'."
)


@dataclass(frozen=True, kw_only=True)
class DeclaredTable:
    """The declaration of a CSV file for a classifier.

    Ranges and categories are declared and never learned: a category that one record adds, or a range that it widens,
    would change the encoding of every other record.

    Attributes:
        features: The columns that the model takes.
        label: The column that holds the class.
        delimiter: One character between cells.
        max_record_length: How many characters one record may have.
        person: The column that names the person whom a record is about; None for a table without one.
        one_record_per_person: Whether each record is declared to hold everything about one person.
    """

    features: tuple[NumberColumn | CategoryColumn, ...]
    label: CategoryColumn
    delimiter: str = ","
    max_record_length: int = MAX_RECORD_LENGTH
    person: str | None = None
    one_record_per_person: bool = False

    def __post_init__(self) -> None:
        checks.count("max_record_length", self.max_record_length)
        names = [column.name for column in self.columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ArgumentError(f"The column {twice!r} is declared twice. Declare each column once; the label is one.")
        if not self.features:
            raise ArgumentError("A table needs at least one column beside its label.")
        if len(self.label.categories) < 2:
            raise ArgumentError(f"The label {self.label.name!r} needs at least two categories to tell apart.")

    @property
    def columns(self) -> tuple[NumberColumn | CategoryColumn, ...]:
        """All declared columns, the label last."""
        return (*self.features, self.label)

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units that one record is declared to be; a column of persons is checked when records are read."""
        knows_persons = self.person is not None or self.one_record_per_person
        return (Unit.RECORD, Unit.PERSON) if knows_persons else (Unit.RECORD,)

    def one_record(self, persons: Sequence[str] | None) -> OneItem:
        """Return the unit of a record, from the person that each record names; None for a table without persons.

        Guarantee: where it names persons, a record is a person only if each has a name and no name stands twice. The
        records decide only about a refusal, whose reason names no person.
        """
        if persons is None or (all(persons) and len(set(persons)) == len(persons)):
            return OneItem(units=self.units)
        return OneItem(explanation=_SEVERAL.format(column=self.person))

    def schema(self, columns: Sequence[Column]) -> CsvSchema:
        """Return how files of this table are read, for these columns of it."""
        return CsvSchema(columns=tuple(columns), delimiter=self.delimiter, max_record_length=self.max_record_length)

    def info(self, name: str, *, train_size: int, test_size: int) -> DatasetInfo:
        """Return the facts under which the table is used; records of unknown origin are not public.

        Args:
            name: What the data set is called.
            train_size: Declared number of training records.
            test_size: Declared number of test records; 0 for a table without any.
        """
        encoded = encoded_names(self.features)
        return DatasetInfo(
            name=name,
            num_classes=len(self.label.categories),
            input_shape=(len(encoded),),
            class_names=self.label.categories,
            train_size=checks.count("train_size", train_size),
            test_size=checks.count("test_size", test_size, minimum=0),
            licence="the owner's",
            source="a table of the owner's, declared in the recipe",
            public=False,
            feature_names=encoded,
            normalisations=(declared_ranges(self.features),),
        )
