"""Random allocation: never below what an attacker finds, exact where integration can say, below Poisson sampling."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from numpy.typing import NDArray
from scipy.special import ndtr

from privet.accounting.accountants import PLD, RDP
from privet.accounting.random_allocation import (
    AllocatedGaussian,
    _log_moments,
    _log_negative_moments,
    allocation_pair,
)
from privet.errors import AccountingError
from privet.mechanism.events import RandomAllocationDpEvent
from privet.vocabulary import Adjacency

Array = NDArray[np.float64]
ADD_REMOVE = Adjacency.ADD_REMOVE
EPSILONS = np.array([0.05, 0.3, 1.0])


def allocated(steps: int, z: float, epochs: int = 1) -> SelfComposedDpEvent:
    return SelfComposedDpEvent(RandomAllocationDpEvent(steps=steps, event=GaussianDpEvent(z)), epochs)


def by_coins(steps: int, z: float, epochs: int = 1) -> SelfComposedDpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(1 / steps, GaussianDpEvent(z)), steps * epochs)


# ------------------------------------------------------------------------------------------- two steps, by integration


def call(strike: Array, z: float) -> Array:
    """Return E max(Y - strike, 0) for the lognormal term Y of mean one: the formula of Black and Scholes."""
    with np.errstate(divide="ignore", invalid="ignore"):
        above = (0.5 - z * z * np.log(np.maximum(strike, 0.0))) / z  # of the term tilted by itself
    value = ndtr(above) - np.maximum(strike, 0.0) * ndtr(above - 1 / z)
    return np.where(strike <= 0, 1 - strike, value)


def exact_of_two(z: float, epsilon: float) -> tuple[float, float]:
    """Return both hockey-stick divergences of one use in two steps, by one integral over the first of them."""
    x = np.linspace(-12 * z, 12 * z + 2, 200_001)
    density = np.exp(-((x / z) ** 2) / 2) / (z * math.sqrt(2 * math.pi))
    first = np.exp((2 * x - 1) / (2 * z * z))
    width = float(x[1] - x[0])
    present = float((call(2 * math.exp(epsilon) - first, z) * density).sum()) * width / 2
    strike = 2 * math.exp(-epsilon) - first
    put = call(strike, z) - (1 - strike)  # E max(strike - Y, 0)
    absent = float((put * density).sum()) * width * math.exp(epsilon) / 2
    return present, absent


@pytest.mark.parametrize("z", [1.0, 1.5, 2.0, 5.0])
def test_two_steps_cost_what_integration_says(z: float) -> None:
    pair = allocation_pair(2, z)
    masses, ratios = np.diff(pair.lower), np.exp(pair.losses)
    for epsilon in (0.01, 0.1, 0.5, 1.0):
        present, absent = exact_of_two(z, epsilon)
        found = float(masses @ np.maximum(ratios - math.exp(epsilon), 0.0)) + pair.at_infinity
        other = float(masses @ np.maximum(1 - math.exp(epsilon) * ratios, 0.0))
        assert present * (1 - 1e-9) - 1e-15 <= found <= present * 1.02 + 1e-9
        assert absent * (1 - 1e-9) - 1e-15 <= other <= absent * 1.02 + 1e-9
        charged = PLD().delta(allocated(2, z), epsilon=epsilon, adjacency=ADD_REMOVE)
        assert max(present, absent) <= charged <= 1.02 * max(present, absent) + 1e-9


@pytest.mark.parametrize(("steps", "z"), [(2, 1.0), (7, 0.8), (50, 1.5), (1000, 3.0), (400, 0.7)])
def test_the_pair_has_the_masses_and_the_variance_of_the_sum(steps: int, z: float) -> None:
    pair = allocation_pair(steps, z)
    assert pair.lower[-1] == pytest.approx(1.0, abs=1e-8)
    assert pair.upper[-1] + pair.at_infinity == pytest.approx(1.0, abs=1e-8)
    assert pair.at_infinity < 1e-8
    variance = float(np.diff(pair.lower) @ (np.exp(pair.losses) - 1) ** 2)
    exact = math.expm1(1 / z**2) / steps
    assert exact * (1 - 1e-6) <= variance <= exact * 1.02


# -------------------------------------------------------------------------------------------- many settings, by chance


def settings() -> Iterator[tuple[int, float, int]]:
    rng = np.random.default_rng(2)
    for _ in range(200):
        steps = int(np.exp(rng.uniform(np.log(10), np.log(300))))
        yield steps, float(np.round(rng.uniform(0.7, 3.0), 2)), int(rng.integers(1, 5))


def losses(steps: int, z: float, epochs: int, number: int, *, is_present: bool) -> Array:
    """Return exact losses of runs of the worst case, with the record or without it."""
    rng, total = np.random.default_rng(steps), np.zeros(number)
    for _ in range(epochs):
        x = rng.normal(0.0, z, (number, steps))
        x[:, 0] += is_present
        total += np.log(np.exp((2 * x - 1) / (2 * z * z)).mean(1))
    return total if is_present else -total


def check(steps: int, z: float, epochs: int) -> None:
    curve = PLD().curve(allocated(steps, z, epochs), ADD_REMOVE)
    number = max(2000, 2_000_000 // (steps * epochs))
    found = curve.deltas(EPSILONS)
    for is_present in (True, False):
        drawn = losses(steps, z, epochs, number, is_present=is_present)
        for epsilon, bound in zip(EPSILONS, found, strict=True):
            values = np.maximum(0.0, -np.expm1(epsilon - drawn))
            error = float(values.std()) / math.sqrt(number)
            assert float(values.mean()) - 4.5 * error <= bound, (steps, z, epochs, epsilon)
    coins = PLD().epsilon(by_coins(steps, z, epochs), delta=1e-6, adjacency=ADD_REMOVE)
    assert curve.epsilon(1e-6) <= coins, (steps, z, epochs)


@pytest.mark.parametrize("place", range(0, 200, 25))
def test_the_bound_lies_between_what_chance_shows_and_poisson_sampling(place: int) -> None:
    check(*list(settings())[place])


@pytest.mark.slow
@pytest.mark.parametrize("place", range(10))
def test_two_hundred_bounds_lie_between_what_chance_shows_and_poisson_sampling(place: int) -> None:
    for setting in list(settings())[place::10]:
        check(*setting)


@pytest.mark.parametrize(("steps", "z", "epochs"), [(10, 1.0, 1), (60, 0.8, 2), (25, 2.0, 4)])
def test_the_bound_is_as_small_as_the_best_attacker_shows(steps: int, z: float, epochs: int) -> None:
    curve = PLD().curve(allocated(steps, z, epochs), ADD_REMOVE)
    drawn = losses(steps, z, epochs, 4_000_000 // (steps * epochs), is_present=True)
    values = np.maximum(0.0, -np.expm1(0.05 - drawn))
    error = float(values.std()) / math.sqrt(len(values))
    assert float(curve.deltas(np.array([0.05]))[0]) <= 1.005 * float(values.mean()) + 4.5 * error


# The package random-allocation 1.0.5 of Feldman and Shenfeld (arXiv 2502.08202), default settings: its lower bound on
# delta, and the least of its upper bounds where that was computed (orders 2 to 40).
PUBLISHED = (
    (100, 1.0, 0.5, 2.213505e-5, None),
    (100, 0.8, 1.0, 5.683391e-5, None),
    (1000, 1.0, 0.3, 6.217434e-9, None),
    (50, 1.5, 0.2, 4.891028e-5, None),
    (10_000, 0.6, 1.0, 6.219928e-8, None),
    (20, 1.0, 1.0, 2.386820e-4, 2.668241e-3),
    (1000, 0.7, 1.0, 7.707665e-7, 6.684237e-6),
)


@pytest.mark.parametrize(("steps", "z", "epsilon", "least", "most"), PUBLISHED)
def test_the_bound_lies_between_the_published_lower_and_upper_bounds(
    steps: int, z: float, epsilon: float, least: float, most: float | None
) -> None:
    found = PLD().delta(allocated(steps, z), epsilon=epsilon, adjacency=ADD_REMOVE)
    assert least <= found
    assert most is None or found <= most


def test_where_the_published_lower_bound_is_tight_the_bound_equals_it() -> None:
    # one step alone has next to all of the mass here, which is what that lower bound counts
    for steps, z, epsilon, least, _ in (PUBLISHED[4], PUBLISHED[6]):
        assert PLD().delta(allocated(steps, z), epsilon=epsilon, adjacency=ADD_REMOVE) <= 1.05 * least


def test_gradients_that_adapt_tell_no_more_than_the_worst_case() -> None:
    """An attacker who makes contributions shorter after some releases, and longer after others."""
    steps, z, number = 12, 1.0, 200_000
    rng = np.random.default_rng(0)
    place = rng.integers(steps, size=number)
    ratio, length = np.zeros(number), np.ones(number)
    for step in range(steps):
        seen = rng.normal(0.0, z, number) + length * (place == step)
        ratio += np.exp((2 * length * seen - length**2) / (2 * z * z)) / steps
        length = np.where(seen > 0, 1.0, 0.5)
    for epsilon in (0.05, 0.3):
        values = np.maximum(0.0, 1 - math.exp(epsilon) / ratio)
        charged = PLD().delta(allocated(steps, z), epsilon=epsilon, adjacency=ADD_REMOVE)
        assert float(values.mean()) - 4.5 * float(values.std()) / math.sqrt(number) <= charged


def test_a_choice_of_two_out_of_eight_costs_at_most_two_choices_of_one_out_of_four() -> None:
    steps, z, number = 8, 1.2, 200_000
    rng = np.random.default_rng(1)
    x = rng.normal(0.0, z, (number, steps))
    x[:, :2] += 1
    terms = np.exp((2 * x - 1) / (2 * z * z))
    # the mean of products over all pairs of steps
    ratio = (terms.sum(1) ** 2 - (terms**2).sum(1)) / (steps * (steps - 1))
    for epsilon in (0.1, 0.5, 1.5):
        values = np.maximum(0.0, 1 - math.exp(epsilon) / ratio)
        charged = PLD().delta(allocated(4, z, 2), epsilon=epsilon, adjacency=ADD_REMOVE)
        assert float(values.mean()) - 4.5 * float(values.std()) / math.sqrt(number) <= charged


# --------------------------------------------------------------------------------------------------------- the borders


def test_renyi_divergences_lie_above_the_loss_distribution() -> None:
    for steps, z in ((2, 1.0), (30, 1.0), (500, 2.0)):
        event = allocated(steps, z, 3)
        assert RDP().epsilon(event, delta=1e-5, adjacency=ADD_REMOVE) >= PLD().epsilon(
            event, delta=1e-5, adjacency=ADD_REMOVE
        )


def test_renyi_divergences_of_one_step_are_those_of_a_gaussian() -> None:
    for z in (0.5, 1.0, 3.0):
        orders = np.arange(2.0, 33.0)
        for moments in (_log_moments(1, z), _log_negative_moments(1, z)):
            assert np.allclose(moments[2:] / (orders - 1), orders / (2 * z * z), rtol=1e-4)


@pytest.mark.parametrize(("steps", "z"), [(3, 1.0), (40, 1.0), (500, 2.0)])
def test_moments_of_both_signs_are_those_of_the_pair(steps: int, z: float) -> None:
    pair = allocation_pair(steps, z)
    is_real = pair.losses > -3.0  # below, there is only the noise of the transform
    masses, ratios = np.diff(pair.lower)[is_real], np.exp(pair.losses[is_real])
    for order in (2, 3, 4):
        assert math.expm1(_log_moments(steps, z)[order]) == pytest.approx(
            float(masses @ ratios**order) - 1, rel=0.02, abs=1e-6
        )
        assert math.expm1(_log_negative_moments(steps, z)[order]) == pytest.approx(
            float(masses @ ratios ** (1.0 - order)) - 1, rel=0.02, abs=1e-5
        )


def test_an_exchange_and_too_little_noise_are_refused() -> None:
    assert "REPLACE_ONE" in str(AllocatedGaussian(steps=5, noise_multiplier=1.0).refusal(Adjacency.REPLACE_ONE))
    for steps, z in ((20, 0.3), (20, 0.01), (20, 1e6), (2, 0.7)):
        with pytest.raises(AccountingError, match="too small"):
            allocation_pair(steps, z)
    assert math.isfinite(RDP().epsilon(allocated(20, 0.3), delta=1e-5, adjacency=ADD_REMOVE))


def test_one_step_is_a_release_on_all_records() -> None:
    one, plain = (
        PLD().epsilon(event, delta=1e-5, adjacency=ADD_REMOVE) for event in (allocated(1, 2.0), GaussianDpEvent(2.0))
    )
    assert one == plain
