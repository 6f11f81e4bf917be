"""Pure guarantees, composed: exact sums against brute force and published values, and the closed bounds above them."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.accounting.gaussian_dp import gdp_epsilon
from privet.accounting.pure_composition import (
    PureCurve,
    advanced_epsilon,
    closed_optimal_epsilon,
    composed_delta,
    composed_epsilon,
    sharper_advanced_epsilon,
)
from privet.errors import ArgumentError


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


def test_the_classical_bounds_have_their_published_values() -> None:
    figures = {"epsilon_each": 0.1, "num_releases": 100, "delta": 1e-5}
    assert advanced_epsilon(**figures) == pytest.approx(5.8502, abs=5e-5)  # type: ignore[arg-type]
    assert sharper_advanced_epsilon(**figures) == pytest.approx(5.2981, abs=5e-5)  # type: ignore[arg-type]


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


@given(st.integers(1, 3000), st.floats(1e-3, 2), st.floats(-12, -1))
@settings(deadline=None, max_examples=60)
def test_every_bound_lies_above_the_exact_one_and_below_plain_addition(count: int, each: float, digits: float) -> None:
    figures = {"epsilon_each": each, "num_releases": count, "delta": 10**digits}
    exact = composed_epsilon(**figures)  # type: ignore[arg-type]
    for bound in (advanced_epsilon, sharper_advanced_epsilon, closed_optimal_epsilon):
        assert exact * (1 - 1e-9) <= bound(**figures) <= count * each  # type: ignore[arg-type]


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


def test_a_failure_probability_of_each_release_adds_up() -> None:
    without = composed_delta(epsilon_each=0.1, num_releases=10, epsilon=0.5)
    with_it = composed_delta(epsilon_each=0.1, num_releases=10, epsilon=0.5, delta_each=1e-3)
    assert with_it == pytest.approx(1 - (1 - 1e-3) ** 10 * (1 - without), rel=1e-12)
    assert composed_delta(epsilon_each=0.0, num_releases=10, epsilon=0.5, delta_each=1e-9) == pytest.approx(1e-8)


def test_huge_guarantees_and_many_releases_neither_overflow_nor_hang() -> None:
    start = time.process_time()
    many = composed_epsilon(epsilon_each=1e-3, num_releases=10**6, delta=1e-6)
    # A million tiny losses are as good as one Gaussian release.
    assert many == pytest.approx(gdp_epsilon(1.0, 1e-6), rel=1e-4)
    assert time.process_time() - start < 10
    assert composed_epsilon(epsilon_each=5000.0, num_releases=3, delta=1e-6) == pytest.approx(15000, rel=1e-6)
    assert composed_delta(epsilon_each=800.0, num_releases=3, epsilon=1.0) == pytest.approx(1.0)


def test_a_release_of_epsilon_zero_costs_nothing() -> None:
    assert composed_epsilon(epsilon_each=0.0, num_releases=7, delta=1e-6) == 0
    assert advanced_epsilon(epsilon_each=0.0, num_releases=7, delta=1e-6) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon_each": -1.0},
        {"epsilon_each": math.nan},
        {"epsilon_each": math.inf},
        {"num_releases": 0},
        {"num_releases": 10**8},
        {"delta": 0.0},
        {"delta": 1.0},
        {"rate": 0.0},
        {"rate": 1.5},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ArgumentError):
        composed_epsilon(**({"epsilon_each": 0.1, "num_releases": 3, "delta": 1e-5} | change))  # type: ignore[arg-type]


def test_a_failure_probability_on_samples_is_refused() -> None:
    with pytest.raises(ArgumentError, match="rate must be 1"):
        composed_delta(epsilon_each=0.1, num_releases=3, epsilon=0.1, rate=0.5, delta_each=1e-3)
