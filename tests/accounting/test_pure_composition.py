"""Pure guarantees, composed: exact sums against brute force and published values."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.accounting.gaussian_dp import gdp_epsilon
from privet.accounting.pure_composition import PureCurve


def composed_epsilon(*, epsilon_each: float, num_releases: int, delta: float, rate: float = 1.0) -> float:
    return PureCurve(rate=rate, epsilon_each=epsilon_each, num_releases=num_releases).epsilon(delta)


def composed_delta(*, epsilon_each: float, num_releases: int, epsilon: float, rate: float = 1.0) -> float:
    curve = PureCurve(rate=rate, epsilon_each=epsilon_each, num_releases=num_releases)
    return float(curve.deltas(np.array([epsilon]))[0])


@pytest.mark.parametrize(
    ("count", "each", "delta", "epsilon"),
    [
        (10, 0.1, 1e-6, 0.99937090572176),
        (100, 0.1, 1e-5, 4.3067913725165),
        (1000, 0.01, 1e-6, 1.3654467099938),
        (30, 0.5, 1e-5, 12.983970299478),
        (5, 1.0, 1e-4, 4.9995209916075),
        (3000, 0.02, 1e-5, 4.8633795700899),
    ],
)
def test_optimal_composition_has_its_exact_epsilon(count: int, each: float, delta: float, epsilon: float) -> None:
    found = composed_epsilon(epsilon_each=each, num_releases=count, delta=delta)
    assert found == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.parametrize(
    ("count", "each", "epsilon", "delta"),
    [
        (10, 0.1, 0.5, 0.009929626917388855),
        (100, 0.1, 3.0, 0.001361398694831639),
        (20, 0.5, 5.0, 0.05442039257934609),
        (4, 1.0, 1.5, 0.4275678256150635),
        (50, 0.2, 0.0, 0.5179431646490416),
    ],
)
def test_optimal_composition_has_its_exact_delta(count: int, each: float, epsilon: float, delta: float) -> None:
    found = composed_delta(epsilon_each=each, num_releases=count, epsilon=epsilon)
    assert found == pytest.approx(delta, rel=1e-12)


def brute_force(count: int, each: float, rate: float, epsilon: float) -> float:
    """Add up all outcomes of randomised response, one by one, in both orders."""
    wrong = 1 / (1 + math.exp(each))
    absent = (1 - wrong, wrong)
    present = tuple((1 - rate) * a + rate * p for a, p in zip(absent, (wrong, 1 - wrong), strict=True))
    totals = [0.0, 0.0]
    for outcome in itertools.product((0, 1), repeat=count):
        with_it = math.prod(present[bit] for bit in outcome)
        without_it = math.prod(absent[bit] for bit in outcome)
        totals[0] += max(0.0, with_it - math.exp(epsilon) * without_it)
        totals[1] += max(0.0, without_it - math.exp(epsilon) * with_it)
    return max(totals)


@given(st.integers(1, 9), st.floats(0.01, 3), st.floats(0.05, 1), st.floats(0, 4))
@settings(deadline=None, max_examples=60)
def test_the_sum_over_counts_is_the_sum_over_outcomes(count: int, each: float, rate: float, epsilon: float) -> None:
    found = composed_delta(epsilon_each=each, num_releases=count, epsilon=epsilon, rate=rate)
    assert found == pytest.approx(brute_force(count, each, rate, epsilon), rel=1e-9, abs=1e-13)


@given(st.integers(1, 500), st.floats(0.01, 3), st.floats(0.01, 1), st.floats(-9, -1))
@settings(deadline=None, max_examples=40)
def test_a_curve_read_both_ways_closes_on_the_safe_side(count: int, each: float, rate: float, digits: float) -> None:
    curve = PureCurve(rate=rate, epsilon_each=each, num_releases=count)
    epsilon = curve.epsilon(10**digits)
    assert float(curve.deltas(np.array([epsilon]))[0]) <= 10**digits * (1 + 1e-12)
    if epsilon > 1e-6:
        assert float(curve.deltas(np.array([epsilon * (1 - 1e-6)]))[0]) >= 10**digits * (1 - 1e-3)


def test_sampling_amplifies_one_release_by_the_known_formula() -> None:
    for rate, each in ((0.1, 1.0), (0.01, 3.0), (0.5, 0.2)):
        amplified = math.log1p(rate * math.expm1(each))
        assert composed_epsilon(epsilon_each=each, num_releases=1, delta=1e-14, rate=rate) == pytest.approx(
            amplified, rel=1e-9
        )


def test_huge_guarantees_and_many_releases_neither_overflow_nor_hang() -> None:
    start = time.process_time()
    many = composed_epsilon(epsilon_each=1e-3, num_releases=10**6, delta=1e-6)
    # A million tiny losses are as good as one Gaussian release.
    assert many == pytest.approx(gdp_epsilon(1.0, 1e-6), rel=1e-4)
    assert time.process_time() - start < 10
    assert composed_epsilon(epsilon_each=5000.0, num_releases=3, delta=1e-6) == pytest.approx(15000, rel=1e-6)
    assert composed_delta(epsilon_each=800.0, num_releases=3, epsilon=1.0) == pytest.approx(1.0)
