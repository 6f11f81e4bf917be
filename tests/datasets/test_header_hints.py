"""What is said about a first line that is not the declared header, and what of it is never shown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.datasets.header_hints import header_advice

WANTED = ["age", "town", "income"]


@pytest.mark.parametrize(("mark", "shell"), [(";", "';'"), ("\t", "$'\\t'"), ("|", "'|'")])
def test_another_delimiter_that_fits_is_named_as_it_is_typed(mark: str, shell: str) -> None:
    found = header_advice(mark.join(WANTED), WANTED, delimiter=",")
    assert f"--delimiter {shell}" in found


def test_a_delimiter_that_brings_only_some_names_to_light_is_not_suggested() -> None:
    assert "--delimiter" not in header_advice("age;town,x;y", WANTED, delimiter=",")


def test_names_that_are_nearly_right_are_told_with_what_they_stand_for() -> None:
    found = header_advice("Age,towns,income", WANTED, delimiter=",")
    assert "'Age' for 'age'" in found
    assert "'towns' for 'town'" in found


def test_a_first_line_with_numbers_is_taken_for_a_record_and_not_shown() -> None:
    found = header_advice("34,townn,high", WANTED, delimiter=",")
    assert "put a line above it" in found
    assert "townn" not in found


def test_bytes_that_are_no_text_are_told() -> None:
    assert "UTF-8" in header_advice("age,t\N{REPLACEMENT CHARACTER}wn", WANTED, delimiter=",")


def test_a_name_that_stands_twice_is_told() -> None:
    assert "name of its own" in header_advice("age,town,income,age", WANTED, delimiter=",")


def test_a_declared_column_that_the_file_lacks_can_be_removed() -> None:
    assert "Remove" in header_advice("age,town,salary", WANTED, delimiter=",")


def test_a_first_line_that_may_be_a_record_is_not_shown_and_the_reason_is_told() -> None:
    found = header_advice("bob,north,high", ["label"], delimiter=",")
    assert "3 cells" in found
    assert "may be a record" in found
    assert "bob" not in found


CELL = st.text(st.characters(whitelist_categories=("Ll", "Lu")), min_size=4, max_size=12)


@settings(deadline=None, max_examples=60)
@given(cells=st.lists(CELL, min_size=1, max_size=5), mark=st.sampled_from([",", ";", "\t"]))
def test_no_cell_is_shown_that_is_not_nearly_a_wanted_name(cells: list[str], mark: str) -> None:
    found = header_advice(mark.join(cells), ["qqqqqqqqqq"], delimiter=",")
    assert "Did you mean" not in found or any(cell.casefold().count("q") >= 3 for cell in cells)
    known = header_advice("", ["qqqqqqqqqq"], delimiter=",") + "with 'qqqqqqqqqq' names delimiter recipe table UTF"
    assert not any(cell in found and cell not in known and "q" not in cell.casefold() for cell in cells)
