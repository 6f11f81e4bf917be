"""The keys that [table] and [texts] of a recipe have in common: where records are, how many, and whose."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

from pydantic import AfterValidator

from privet.datasets.own.ownership import Ownership
from privet.datasets.words import composed
from privet.runs.recipes.training_settings import Count, Table
from privet.vocabulary import Unit

# The header is compared in the composed form: a name typed in another form is the same name.
Name = Annotated[str, AfterValidator(composed)]


class FileSettings(Table):
    """The user's own records in files with columns: CSV files with a header, or tables of another kind.

    Attributes:
        train: The file of the records to protect, relative to the recipe's folder; or the address of a table in a
            database, ``URL#table=NAME``.
        test: The file of the records to measure on, which are not protected. Without it nothing is measured.
        train_size: Declared number of training records. Never read off the file: it may itself be private.
        test_size: Declared number of test records; used only to estimate memory.
        delimiter: One character between cells.
        person: The column that names the person of a record. With it the unit may be a person, if nobody has two
            records or ``privacy.sampling`` bounds the records of each.
        num_persons: Declared number of persons; a public number, which may be rounded. For comparisons only.
        one_record_per_person: Declares that each record holds everything about one person, for tables without names.
            The guarantee lists it as an assumption. False declares that somebody may have several.
    """

    train: str
    test: str | None = None
    train_size: Count
    test_size: Count | None = None
    delimiter: str = ","
    person: Name | None = None
    num_persons: Count | None = None
    one_record_per_person: bool | None = None

    @property
    def ownership(self) -> Ownership:
        """The declaration."""
        return Ownership(person=self.person, one_record_per_person=bool(self.one_record_per_person))

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units of privacy that one record is declared to be."""
        return self.ownership.units

    @property
    def says_what_a_record_is(self) -> bool:
        """Whether the user said whose a record is, or that it is nobody's alone."""
        return self.person is not None or self.one_record_per_person is not None

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """The columns to learn from."""

    @property
    @abstractmethod
    def predicted(self) -> tuple[str, ...]:
        """The columns to predict."""
