"""Whose the records of a table are: declared by a column of names, or by a word of the owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from privet import checks
from privet.datasets.csv_records import CsvFormat
from privet.datasets.tables import words_of
from privet.datasets.typed_tables import TableText
from privet.errors import ArgumentError
from privet.vocabulary import OneItem, Unit

_SEVERAL = (
    "In the column {column!r} a person has several records, or a record has no name. Let the plan bound them: "
    "privacy.sampling.kind = 'sampled_persons' or 'bounded_persons' with max_records (docs/persons.md). Otherwise join "
    "each person's records into one, keep one of them, or protect records: privacy.unit = 'record'."
)


@dataclass(frozen=True, kw_only=True)
class Ownership:
    """Whose the records are; the same for tables of numbers and words, and for tables of texts.

    Attributes:
        person: The column with the name of the record's person; None for records without one.
        one_record_per_person: Declares that each record contains all data of one person.
    """

    person: str | None = None
    one_record_per_person: bool = False

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units of privacy that one record is declared to be; readers check the column of persons."""
        knows_persons = self.person is not None or self.one_record_per_person
        return (Unit.RECORD, Unit.PERSON) if knows_persons else (Unit.RECORD,)

    def names(self, table: TableText, form: CsvFormat) -> tuple[str, ...] | None:
        """Return the person of each record of a table that was read; None without a column of persons.

        Raises:
            DataError: the header does not name the column once.
        """
        return None if self.person is None else tuple(words_of(table, form, self.person))

    def one_record(self, names: Sequence[str] | None) -> OneItem:
        """Return the unit of one record.

        Args:
            names: The person of each record; None for records without a column of persons.

        Guarantee: with a column of persons, a record is a person only if every record has a name and all names differ.
            The records influence only a refusal, whose reason contains no name.
        """
        if names is None or not (any(map(checks.is_missing, names)) or len(set(names)) < len(names)):
            return OneItem(units=self.units)
        return OneItem(explanation=_SEVERAL.format(column=self.person))

    def refuse_among(self, columns: Sequence[str]) -> None:
        """Refuse a column of persons that is also one to learn from or to predict.

        Raises:
            ArgumentError: a model would learn names of persons.
        """
        if self.person in columns:
            raise ArgumentError(
                f"The column {self.person!r} names persons, and is declared as one to learn from or to predict. Names "
                "are never learned: name another column."
            )


OF_NOBODY = Ownership()
"""Records of which it is not said whose they are."""
