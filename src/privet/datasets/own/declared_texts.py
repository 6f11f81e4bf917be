"""The declaration of a table of texts: columns, classes and length, known without reading a record."""

from __future__ import annotations

from dataclasses import dataclass, replace

from privet import checks
from privet.datasets.csv_records import CsvFormat
from privet.datasets.info import DatasetInfo
from privet.datasets.own.facts import owners_facts
from privet.datasets.own.ownership import OF_NOBODY, Ownership
from privet.datasets.tables import CategoryColumn
from privet.datasets.tasks import Classes
from privet.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class DeclaredTexts:
    """The declaration of a table of texts.

    Attributes:
        text: The column of the texts.
        target: The column of the classes.
        classes: The classes; a training record of none of them counts as of the first.
        length: Tokens of every record; longer texts are cut, shorter ones padded.
        delimiter: The character between cells.
        ownership: Whose the texts are; the column of persons is neither read as a text nor as a class.
    """

    text: str
    target: str
    classes: tuple[str, ...]
    length: int
    delimiter: str = ","
    ownership: Ownership = OF_NOBODY

    def __post_init__(self) -> None:
        checks.count("length", self.length, minimum=2)
        if self.text == self.target:
            raise ArgumentError(f"{self.text!r} is named as the text and as the class. Name two columns.")
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes) or not all(self.classes):
            raise ArgumentError("Texts need at least two classes, each named once.")
        self.ownership.refuse_among((self.text, self.target))
        CsvFormat(delimiter=self.delimiter)

    @property
    def label(self) -> CategoryColumn:
        """The column of the classes."""
        return CategoryColumn(name=self.target, categories=self.classes, default=self.classes[0])

    def info(self, name: str, *, train_size: int, test_size: int) -> DatasetInfo:
        """Return the facts about the texts; they are not public."""
        facts = owners_facts(
            name, "texts", sizes=(train_size, test_size), input_shape=(2, self.length), class_names=self.classes
        )
        task = Classes(name=self.target, class_names=self.classes)
        return replace(facts, holds_tokens=True, declared_task=task)
