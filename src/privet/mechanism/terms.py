"""The three words without which a guarantee means nothing: adjacency, unit and release."""

from __future__ import annotations

from enum import Enum


class Adjacency(Enum):
    """Which two data sets an attacker must not be able to tell apart.

    ADD_REMOVE: one unit is present or absent; the size of the data set is not public.
    REPLACE_ONE: one unit is exchanged for any other; the size is public. Costs about twice as much.
    ZERO_OUT: one unit is exchanged for a null unit that keeps its slot and has no gradient.
    """

    ADD_REMOVE = "add_or_remove"
    REPLACE_ONE = "replace_one"
    ZERO_OUT = "zero_out"

    def words(self, unit: Unit) -> str:
        """Say in plain words what the two data sets differ in."""
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


class Release(Enum):
    """What an attacker is assumed to see.

    EVERY_ITERATE: the model after each step (and so every checkpoint).
    LAST_ITERATE: only the final model; intermediate models must never leave the training machine.
    """

    EVERY_ITERATE = "every_iterate"
    LAST_ITERATE = "last_iterate"
