"""Whose records are: a record is a person only where nobody has two, and a name is never learned."""

from __future__ import annotations

import pytest

from privet.datasets.own.ownership import OF_NOBODY, Ownership
from privet.errors import ArgumentError
from privet.vocabulary import Unit

BOTH, RECORDS = (Unit.RECORD, Unit.PERSON), (Unit.RECORD,)


@pytest.mark.parametrize(
    ("persons", "units"),
    [
        (["p1", "p2"], BOTH),
        (["p1", "p1"], RECORDS),
        (["p1", ""], RECORDS),
        (["p1", "NA"], RECORDS),
        (["p1", "nan"], RECORDS),
    ],
    ids=str,
)
def test_a_record_is_a_person_only_if_all_have_names_and_all_names_differ(
    persons: list[str], units: tuple[Unit, ...]
) -> None:
    assert Ownership(person="patient").one_record(persons).units == units


def test_without_names_the_word_of_the_owner_says_what_a_record_is() -> None:
    assert OF_NOBODY.units == OF_NOBODY.one_record(None).units == RECORDS
    assert Ownership(one_record_per_person=True).one_record(None).units == BOTH


def test_a_column_of_names_is_not_one_to_learn_from() -> None:
    Ownership(person="writer").refuse_among(("note", "ward"))
    with pytest.raises(ArgumentError, match="'writer' names persons"):
        Ownership(person="writer").refuse_among(("note", "writer"))
