from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import bdtr, bdtrc

from privet.attacks.intervals import clopper_pearson, lower_limit, upper_limit
from privet.errors import ArgumentError


@given(trials=st.integers(1, 400), data=st.data(), confidence=st.floats(0.5, 0.9999))
def test_the_ends_are_where_the_binomial_tails_are_as_promised(
    trials: int, data: st.DataObject, confidence: float
) -> None:
    successes = data.draw(st.integers(0, trials))
    low, high = (end(successes, trials, confidence=confidence) for end in (lower_limit, upper_limit))
    if successes > 0:
        assert bdtrc(successes - 1, trials, low) == pytest.approx(1 - confidence, rel=1e-6)
    if successes < trials:
        assert bdtr(successes, trials, high) == pytest.approx(1 - confidence, rel=1e-6)


def test_known_values_of_the_two_sided_interval() -> None:
    found = clopper_pearson(1, 1000)
    assert (found.low, found.high) == (pytest.approx(2.5318e-5, rel=1e-4), pytest.approx(5.5589e-3, rel=1e-4))


def test_certain_ends_and_empty_trials() -> None:
    assert clopper_pearson(0, 10).low == 0.0
    assert clopper_pearson(10, 10).high == 1.0
    nothing = clopper_pearson(0, 0)
    assert (nothing.value, nothing.low, nothing.high) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(("successes", "trials"), [(3, 2), (-1, 2), (0, -1), (0.5, 2)])
def test_counts_that_cannot_be_are_refused(successes: int, trials: int) -> None:
    with pytest.raises(ArgumentError):
        clopper_pearson(successes, trials)
