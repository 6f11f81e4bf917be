"""Several sampled records of one unit: the mixture of Gaussians, by the library, by integration and by drawing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from privet.accounting.accountants import PLD, RDP
from privet.accounting.guarantee import guarantee
from privet.accounting.library_check import confirmed, library_epsilon
from privet.accounting.sampled_records import RecordsRemoval, SampledRecords, binomial_weights
from privet.accounting.tail_truncation import reach_of_bits, tail_delta
from privet.mechanism.events import SampledRecordsDpEvent, compose
from privet.vocabulary import Adjacency, Unit

ADD_REMOVE, ZERO_OUT = Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT


def event(rate: float, records: int, noise: float) -> SampledRecordsDpEvent:
    return SampledRecordsDpEvent(sampling_probability=rate, num_records=records, noise_multiplier=noise)


PAIRS = [(0.01, 8, 2.0), (0.3, 3, 0.7), (0.001, 64, 5.0), (0.5, 2, 0.3), (0.9, 20, 8.0)]


@pytest.mark.parametrize(("rate", "records", "noise"), PAIRS)
def test_losses_increase_and_are_inverted(rate: float, records: int, noise: float) -> None:
    pair = RecordsRemoval(rate=rate, num_records=records, noise_multiplier=noise)
    outcomes = np.linspace(*pair.ends(8.0), 4000)
    losses = pair.loss(outcomes)
    assert (np.diff(losses) >= 0).all()
    inner = losses > losses[0] + 1e-6  # below it the loss is constant to the last digits
    assert np.abs(pair.loss(pair.outcome(losses[inner])) - losses[inner]).max() < 1e-9 * max(1.0, losses[-1])


@pytest.mark.parametrize(("rate", "records", "noise"), PAIRS)
def test_little_mass_lies_beyond_the_ends(rate: float, records: int, noise: float) -> None:
    pair = RecordsRemoval(rate=rate, num_records=records, noise_multiplier=noise)
    low, high = (np.array(end) for end in pair.ends(6.0))
    infinity = np.array(np.inf)
    assert float(pair.upper_mass(high, infinity)) <= float(ndtr(-6.0)) * (1 + 1e-9)
    assert float(pair.upper_mass(-infinity, low)) <= float(ndtr(-6.0)) * (1 + 1e-9)
    halves = float(pair.upper_mass(-infinity, low)) + float(pair.upper_mass(low, infinity))
    assert halves == pytest.approx(1.0, abs=1e-12)


def test_binomial_weights_sum_to_one_for_the_most_records() -> None:
    for rate in (1e-6, 0.01, 0.5, 0.999):
        for records in (1, 2, 64, 1000):
            assert math.fsum(binomial_weights(records, rate)) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(("rate", "records", "noise"), [(0.01, 8, 2.0), (0.05, 3, 1.5), (0.9, 4, 30.0)])
@pytest.mark.parametrize("adjacency", [ADD_REMOVE, ZERO_OUT], ids=lambda member: member.value)
def test_the_library_gives_the_same_epsilon_in_both_directions(
    rate: float, records: int, noise: float, adjacency: Adjacency
) -> None:
    one = compose([(event(rate, records, noise), 20)])
    found = PLD().epsilon(one, delta=1e-6, adjacency=adjacency)
    assert library_epsilon(one, delta=1e-6, adjacency=adjacency) == pytest.approx(found, rel=1e-3)


def test_a_guarantee_is_confirmed_by_the_library() -> None:
    one = compose([(event(0.05, 4, 2.0), 50)])
    promise = guarantee(one, delta=1e-6, adjacency=ADD_REMOVE, unit=Unit.PERSON)
    assert confirmed(promise, one).witness == pytest.approx(promise.epsilon, rel=1e-3)
    assert promise.cross_check is not None
    assert promise.epsilon < promise.cross_check < 1.5 * promise.epsilon


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.0])
def test_drawn_outcomes_tell_no_more_than_the_curve_and_nearly_as_much(epsilon: float) -> None:
    """The composition of three steps, from draws of the mechanism itself and its log-likelihood ratio."""
    rate, records, noise, steps, size = 0.2, 4, 1.5, 3, 400_000
    pair, rng = RecordsRemoval(rate=rate, num_records=records, noise_multiplier=noise), np.random.default_rng(3)
    present = rng.binomial(records, rate, (steps, size)) + noise * rng.standard_normal((steps, size))
    losses = pair.loss(present).sum(0)
    gains = np.maximum(-np.expm1(epsilon - losses), 0.0)
    error = 5 * float(gains.std()) / math.sqrt(size)
    charged = PLD().delta(compose([(event(rate, records, noise), steps)]), epsilon=epsilon, adjacency=ADD_REMOVE)
    assert float(gains.mean()) - error <= charged <= float(gains.mean()) * 1.02 + error + 1e-6


def test_orders_of_renyi_agree_with_the_loss_distribution() -> None:
    one = compose([(event(0.02, 6, 3.0), 200)])
    tight, loose = (kind.epsilon(one, delta=1e-6, adjacency=ADD_REMOVE) for kind in (PLD(), RDP()))
    assert tight < loose < 1.3 * tight


def test_an_exchange_is_refused() -> None:
    assert SampledRecords(rate=0.1, num_records=2, noise_multiplier=1.0).refusal(Adjacency.REPLACE_ONE) is not None
    assert PLD().supports(event(0.1, 2, 1.0), Adjacency.REPLACE_ONE) is not None


def test_the_end_of_the_noise_costs_at_least_what_one_record_pays_and_less_than_all_at_once() -> None:
    def cost(one: SampledRecordsDpEvent) -> float:
        whole, reach = compose([(one, 100)]), reach_of_bits(52)
        return tail_delta(whole, adjacency=ADD_REMOVE, epsilon=1.0, delta=1e-5, reach=reach, num_coordinates=99)

    assert cost(event(0.1, 1, 2.0)) < cost(event(0.1, 4, 2.0)) < cost(event(1.0, 1, 0.5))
