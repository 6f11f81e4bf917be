"""Calibration: always within the budget, and never far below it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.accounting.accountants import PLD
from privet.accounting.calibration import (
    LARGEST_MULTIPLIER,
    SMALLEST_MULTIPLIER,
    _refine,
    calibrate_noise,
    epsilon_table,
    spent_epsilon,
)
from privet.accounting.gaussian_dp import gdp_mu
from privet.accounting.guarantee import guarantee
from privet.errors import AccountingError, ArgumentError, CalibrationError
from privet.mechanism.events import DpEvent
from privet.vocabulary import Adjacency, Unit

ADD_REMOVE = Adjacency.ADD_REMOVE


def one_step(rate: float, multiplier: float) -> DpEvent:
    return dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier))


def sampled(rate: float, multiplier: float, steps: int) -> DpEvent:
    return dp_event.SelfComposedDpEvent(one_step(rate, multiplier), steps)


# epsilon, delta, rate, steps -> smallest multiplier, by inversion of the Laplace transform of the loss
@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps", "multiplier"),
    [
        (3.0, 1e-5, 0.02048, 3000, 1.73252073),
        (1.0, 1e-5, 0.01, 1000, 1.41461941),
        (8.0, 1e-5, 0.02, 500, 0.65512110),
        (2.0, 1e-6, 0.005, 20000, 1.73417304),
        (1.0, 1e-6, 0.05, 200, 3.19587848),
    ],
)
def test_calibrated_noise_is_the_reference_from_above(
    epsilon: float, delta: float, rate: float, steps: int, multiplier: float
) -> None:
    asked = []

    def make_event(noise: float) -> DpEvent:
        asked.append(noise)
        return sampled(rate, noise, steps)

    found = calibrate_noise(make_event, epsilon=epsilon, delta=delta, adjacency=ADD_REMOVE)
    assert multiplier <= found <= multiplier * (1 + 5e-4)
    # Cheap bracketing first: the number of accountings is what a user waits for.
    assert len(asked) < 40
    reported = guarantee(make_event(found), delta=delta, adjacency=ADD_REMOVE, unit=Unit.RECORD)
    assert epsilon * (1 - 1e-3) <= reported.epsilon <= epsilon


@settings(deadline=None, max_examples=12)
@given(
    st.floats(-0.7, 1.2).map(lambda exponent: 10**exponent),
    st.floats(-9, -2).map(lambda exponent: 10**exponent),
    st.floats(-3, -0.3).map(lambda exponent: 10**exponent),
    st.floats(0, 3.5).map(lambda exponent: round(10**exponent)),
    st.sampled_from(Adjacency),
)
def test_a_calibrated_event_spends_the_budget_and_not_more(
    epsilon: float, delta: float, rate: float, steps: int, adjacency: Adjacency
) -> None:
    found = calibrate_noise(
        lambda noise: sampled(rate, noise, steps), epsilon=epsilon, delta=delta, adjacency=adjacency
    )
    spent = spent_epsilon(sampled(rate, found, steps), delta=delta, adjacency=adjacency)
    assert spent <= epsilon
    less = spent_epsilon(sampled(rate, found * (1 - 2e-3), steps), delta=delta, adjacency=adjacency)
    # Where epsilon jumps (to 0, or between accountants) it is the noise, not epsilon, that must be close.
    assert spent >= epsilon * (1 - 2e-3) or less > epsilon or found == SMALLEST_MULTIPLIER


@pytest.mark.parametrize("crossing", [-3.9, 0.0, 0.321, 2.9999])
def test_where_epsilon_jumps_the_safe_side_of_the_jump_is_returned(crossing: float) -> None:
    def spent(point: float) -> float:
        return 2.0 if point < crossing else 0.5

    found = _refine(spent, 1.0, -4.0, 3.0, 1e-4)
    assert crossing <= found <= crossing + 1e-4


def test_an_end_that_overspends_is_moved_to_the_safe_side() -> None:
    found = _refine(lambda point: math.exp(-point), 1.0, -4.0, -0.5, 1e-4)
    assert 0 <= found <= 1e-4


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_pure_gaussians_are_calibrated_in_closed_form(adjacency: Adjacency) -> None:
    found = calibrate_noise(dp_event.GaussianDpEvent, epsilon=1.0, delta=1e-5, adjacency=adjacency)
    factor = 2 if adjacency is Adjacency.REPLACE_ONE else 1
    exact = factor / gdp_mu(1.0, 1e-5)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 2e-4)


def test_other_releases_are_paid_from_the_same_budget() -> None:
    def make_event(noise: float) -> DpEvent:
        return dp_event.ComposedDpEvent([sampled(0.01, noise, 1000), dp_event.GaussianDpEvent(8.0)])

    alone = calibrate_noise(lambda z: sampled(0.01, z, 1000), epsilon=1.0, delta=1e-5, adjacency=ADD_REMOVE)
    together = calibrate_noise(make_event, epsilon=1.0, delta=1e-5, adjacency=ADD_REMOVE)
    assert together > alone * 1.05
    assert spent_epsilon(make_event(together), delta=1e-5, adjacency=ADD_REMOVE) <= 1.0


def test_a_budget_spent_elsewhere_is_an_error() -> None:
    def make_event(noise: float) -> DpEvent:
        return dp_event.ComposedDpEvent([sampled(0.01, noise, 1000), dp_event.GaussianDpEvent(1.0)])

    with pytest.raises(CalibrationError, match="more than epsilon"):
        calibrate_noise(make_event, epsilon=1.0, delta=1e-5, adjacency=ADD_REMOVE)


def test_a_budget_that_anything_meets_gives_the_least_noise_searched() -> None:
    found = calibrate_noise(lambda noise: sampled(0.0, noise, 10), epsilon=1.0, delta=1e-5, adjacency=ADD_REMOVE)
    assert found == pytest.approx(SMALLEST_MULTIPLIER)
    assert SMALLEST_MULTIPLIER < LARGEST_MULTIPLIER


@pytest.mark.parametrize(
    ("argument", "bad"),
    [
        ("epsilon", 0.0),
        ("epsilon", -1.0),
        ("epsilon", math.nan),
        ("epsilon", math.inf),
        ("epsilon", "1"),
        ("epsilon", True),
        ("delta", 0.0),
        ("delta", 1.0),
        ("delta", math.nan),
        ("delta", None),
        ("adjacency", "replace_one"),
        ("rel_tol", 0.0),
        ("rel_tol", math.nan),
    ],
)
def test_wrong_arguments_are_refused(argument: str, bad: Any) -> None:
    arguments: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "adjacency": ADD_REMOVE} | {argument: bad}
    with pytest.raises(ArgumentError):
        calibrate_noise(lambda noise: sampled(0.01, noise, 100), **arguments)


def test_an_event_that_no_accountant_knows_cannot_be_calibrated() -> None:
    with pytest.raises(AccountingError):
        calibrate_noise(dp_event.LaplaceDpEvent, epsilon=1.0, delta=1e-5, adjacency=Adjacency.REPLACE_ONE)


@pytest.mark.parametrize(
    ("rate", "multiplier", "rounds"), [(0.01, 1.0, 1000), (0.001, 0.6, 10000), (1.0, 10.0, 30), (0.01, 0.02, 50)]
)
def test_a_table_bounds_every_round_and_ends_at_the_report(rate: float, multiplier: float, rounds: int) -> None:
    table = epsilon_table(one_step(rate, multiplier), rounds, delta=1e-5, adjacency=ADD_REMOVE)
    counts, epsilons = [row[0] for row in table], [row[1] for row in table]
    assert table[0] == (0, 0.0)
    assert counts[-1] == rounds
    assert epsilons[-1] == spent_epsilon(sampled(rate, multiplier, rounds), delta=1e-5, adjacency=ADD_REMOVE)
    assert counts == sorted(set(counts))
    assert epsilons == sorted(epsilons)
    for count, epsilon in table[1::5]:
        event = sampled(rate, multiplier, count)
        if PLD().supports(event, ADD_REMOVE) is None:
            assert epsilon >= PLD().epsilon(event, delta=1e-5, adjacency=ADD_REMOVE) * (1 - 1e-3)


def test_a_table_of_few_rounds_has_one_row_each() -> None:
    table = epsilon_table(one_step(0.1, 1.0), 3, delta=1e-5, adjacency=ADD_REMOVE)
    assert [row[0] for row in table] == [0, 1, 2, 3]
    assert epsilon_table(one_step(0.1, 1.0), 0, delta=1e-5, adjacency=ADD_REMOVE) == [(0, 0.0)]


@pytest.mark.parametrize("bad", [-1, 1.5, True, "10"])
def test_a_wrong_number_of_rounds_is_refused(bad: Any) -> None:
    with pytest.raises(ArgumentError):
        epsilon_table(one_step(0.1, 1.0), bad, delta=1e-5, adjacency=ADD_REMOVE)
