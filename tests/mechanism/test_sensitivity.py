"""The bound on one unit: positive, finite, and added up in the norm it is declared in."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.errors import ArgumentError
from privet.mechanism.sensitivity import Norm, Sensitivity

bounds = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=8).map(tuple)


@given(bounds=bounds)
@settings(deadline=None, max_examples=100)
def test_totals_are_the_length_of_the_bounds_in_their_norm(bounds: tuple[float, ...]) -> None:
    assert Sensitivity(bounds=bounds).total == pytest.approx(math.sqrt(sum(b * b for b in bounds)))
    assert Sensitivity(bounds=bounds, norm=Norm.L1).total == pytest.approx(sum(bounds))


@given(bounds=bounds)
@settings(deadline=None, max_examples=50)
def test_a_total_is_at_least_every_bound_and_at_most_their_sum(bounds: tuple[float, ...]) -> None:
    for norm in Norm:
        total = Sensitivity(bounds=bounds, norm=norm).total
        assert max(bounds) * (1 - 1e-12) <= total <= sum(bounds) * (1 + 1e-12)


def test_one_group_keeps_its_bound_to_the_last_bit() -> None:
    assert Sensitivity(bounds=(0.1,)).total == 0.1


@pytest.mark.parametrize("bounds", [(), (0.0,), (1.0, -1.0), (math.inf,), (math.nan,), (True,), ("1",)], ids=str)
def test_bounds_that_bound_nothing_are_refused(bounds: tuple[object, ...]) -> None:
    with pytest.raises(ArgumentError, match="bounds"):
        Sensitivity(bounds=bounds)  # type: ignore[arg-type]
