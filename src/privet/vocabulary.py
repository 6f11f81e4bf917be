"""The terms that every guarantee states (adjacency, unit and release), and the unit of one item of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, cast

from privet.errors import DataError


class Adjacency(Enum):
    """Which two data sets an attacker must not be able to tell apart.

    ADD_REMOVE: one unit is present or absent; the size of the data set is not public.
    REPLACE_ONE: one unit is exchanged for any other; the size is public. Costs about twice as much.
    ZERO_OUT: one unit is exchanged for a null unit that keeps its slot and has no gradient.
    """

    ADD_REMOVE = "add_or_remove"
    REPLACE_ONE = "replace_one"
    ZERO_OUT = "zero_out"

    def refused_exchange(self, reason: str) -> str | None:
        """Return a reason to refuse exchanges of one unit; None under the other adjacencies."""
        return reason if self is Adjacency.REPLACE_ONE else None

    def words(self, unit: Unit) -> str:
        """Return the difference of the two data sets in words."""
        if self is Adjacency.ADD_REMOVE:
            return f"adding or removing one {unit.value}"
        if self is Adjacency.REPLACE_ONE:
            return f"replacing one {unit.value} by any other"
        return f"blanking one {unit.value} in place"


class Unit(Enum):
    """What one item of the data set stands for, and so what is protected.

    RECORD: one item is one record. A person with several records is protected less (group privacy).
    PERSON: one item holds everything the data set knows of one person.
    CLIENT: one item is one party of a federation, with everything it holds.
    """

    RECORD = "record"
    PERSON = "person"
    CLIENT = "client"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of a guarantee about this unit that no program can verify."""
        if self is Unit.PERSON:
            return ("one item of the data set holds everything about one person, and nobody is in two items",)
        return ()


class Release(Enum):
    """The view that an attacker is assumed to have.

    EVERY_ITERATE: the model after each step (and so every checkpoint).
    LAST_ITERATE: only the final model; intermediate models must never leave the training machine.
    """

    EVERY_ITERATE = "every_iterate"
    LAST_ITERATE = "last_iterate"


@dataclass(frozen=True, kw_only=True)
class OneItem:
    """The units that one item of a data set stands for.

    Attributes:
        units: Every unit of which one item holds exactly one.
        explanation: Why no other unit is possible and what the user can do, in sentences.
    """

    units: tuple[Unit, ...] = (Unit.RECORD,)
    explanation: str = (
        "By default one item is one record, and one person may have several records. If each item holds everything "
        "about one person, say so: pv.OneItemPerPerson(dataset=...) in Python, or one_record_per_person=True where "
        "fit() takes arrays alone; in a recipe person = 'COLUMN' or one_record_per_person = true. Otherwise "
        "protect records: Unit.RECORD, privacy.unit = 'record'."
    )

    def check(self, unit: Unit) -> None:
        """Refuse a plan whose unit is not the unit of one item.

        Guarantee: noise is calibrated to one item, so a guarantee about a larger unit would be false.

        Raises:
            DataError: the message names the unit of the items and the remedy.
        """
        if unit not in self.units:
            raise DataError(
                f"The plan protects one {unit.value}, and one item of the data set is one "
                f"{' or one '.join(known.value for known in self.units)}. {self.explanation}"
            )


ONE_RECORD = OneItem()


class HasOneItem(Protocol):
    """A data set that states the unit of one item."""

    @property
    def one_item(self) -> OneItem: ...


def one_item_of(dataset: object) -> OneItem:
    """Return the unit that the class of a data set states for one item; one record if the class states none."""
    # Ask the class, not the instance: a wrapper that forwards attributes states nothing about its own items.
    return cast("HasOneItem", dataset).one_item if hasattr(type(dataset), "one_item") else ONE_RECORD
