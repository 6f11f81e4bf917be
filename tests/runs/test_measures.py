from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betainc

from privet.errors import ArgumentError
from privet.runs.measures import CurvePoint, Measure, Metrics, mean, share

counts = st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts)
@settings(deadline=None, max_examples=100)
def test_the_ends_of_the_interval_are_where_the_count_becomes_a_two_and_a_half_percent_event(
    count: tuple[int, int],
) -> None:
    right, total = count
    found = share("accuracy", right, total)
    assert 0 <= found.low <= found.value <= found.high <= 1
    if right > 0:
        assert math.isclose(betainc(right, total - right + 1, found.low), 0.025, rel_tol=1e-6)
    if right < total:
        assert math.isclose(betainc(right + 1, total - right, found.high), 0.975, rel_tol=1e-6)


def test_the_interval_of_eight_in_ten_is_the_published_one() -> None:
    found = share("accuracy", 8, 10)
    assert (round(found.low, 4), round(found.high, 4)) == (0.4439, 0.9748)


def test_no_examples_say_nothing() -> None:
    found = share("accuracy", 0, 0)
    assert (found.low, found.high) == (0.0, 1.0)


def test_more_right_answers_than_examples_are_refused() -> None:
    with pytest.raises(ArgumentError):
        share("accuracy", 2, 1)


def test_the_interval_of_a_mean_has_the_width_of_the_normal_law() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    found = mean("loss", sum(values), sum(value**2 for value in values), 4)
    assert found.value == 2.5
    assert math.isclose(found.high - found.value, 1.959964 * math.sqrt(5 / 3 / 4), rel_tol=1e-5)


@pytest.mark.parametrize("total", [0, 1])
def test_a_mean_of_fewer_than_two_numbers_has_no_width(total: int) -> None:
    found = mean("loss", 3.0 * total, 9.0 * total, total)
    assert found.low == found.value == found.high


def test_metrics_read_back_as_themselves() -> None:
    row = share("accuracy", 3, 4)
    metrics = Metrics(measures=(row,), curve=(CurvePoint(step=5, epsilon=1.5, measure=row),))
    assert Metrics.from_dict(metrics.to_dict()) == metrics


@pytest.mark.parametrize("data", [{}, {"measures": 3}, {"measures": [{}]}, {"measures": [], "curve": [3]}])
def test_what_are_no_metrics_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        Metrics.from_dict(data)


def test_a_measure_with_text_for_a_number_is_refused() -> None:
    row = share("accuracy", 1, 2).to_dict()
    with pytest.raises(ArgumentError):
        Measure.from_dict(row | {"value": "0.5"})
