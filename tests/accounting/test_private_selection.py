"""A search of random length: its cost against the library's, its law, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.accounting.accountants import PLD, RDP, tightest
from privet.accounting.guarantee import guarantee
from privet.accounting.private_selection import RandomSearch
from privet.accounting.renyi import ORDERS
from privet.accounting.renyi_composition import log_stopping_probability
from privet.errors import AccountingError, ArgumentError
from privet.mechanism.events import DpEvent, TotalVariationDpEvent, decode_event, encode_event
from privet.vocabulary import Adjacency, Unit
from tests.contract import statistics as stats

ADD_REMOVE = Adjacency.ADD_REMOVE
ONE_RUN = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 1000)
GAUSSIAN = dp_event.GaussianDpEvent(4.0)


def epsilon(event: DpEvent, delta: float = 1e-5) -> float:
    return RDP().epsilon(event, delta=delta, adjacency=ADD_REMOVE)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 4.0, math.inf])
@pytest.mark.parametrize("mean", [1.5, 10.0, 300.0])
def test_a_search_costs_what_the_library_says(mean: float, shape: float) -> None:
    event = RandomSearch(mean=mean, shape=shape).event(GAUSSIAN)
    library = rdp.RdpAccountant(list(ORDERS), NeighboringRelation.ADD_OR_REMOVE_ONE)
    library.compose(event)
    assert epsilon(event) == pytest.approx(library.get_epsilon(1e-5), rel=1e-6)


@pytest.mark.parametrize("shape", [0.0, 1.0])
def test_a_search_costs_more_than_a_run_and_less_than_showing_all_of_them(shape: float) -> None:
    search = RandomSearch(mean=30, shape=shape).event(ONE_RUN)
    assert epsilon(ONE_RUN) < epsilon(search) < epsilon(dp_event.SelfComposedDpEvent(ONE_RUN, 30))


def test_a_longer_search_costs_more_but_only_a_little() -> None:
    found = [epsilon(RandomSearch(mean=mean).event(ONE_RUN)) for mean in (2, 20, 200, 2000)]
    assert found == sorted(found)
    assert found[-1] < 2.5 * found[0]


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0])
def test_a_search_of_mean_one_is_one_run(shape: float) -> None:
    assert {RandomSearch(mean=1, shape=shape).draw_num_runs(np.random.default_rng(seed)) for seed in range(20)} == {1}


@pytest.mark.parametrize("mean", [1.0 + 1e-12, 1.5, 40.0, 5000.0])
@pytest.mark.parametrize("shape", [0.0, 1e-3, 0.5, 1.0, 7.0, 1e3, 1e6])
def test_a_search_of_any_shape_draws_its_mean_of_runs(mean: float, shape: float) -> None:
    search, rng = RandomSearch(mean=mean, shape=shape), np.random.default_rng(5)
    runs = [search.draw_num_runs(rng) for _ in range(50)]
    assert min(runs) >= 1
    assert shape < 0.5 or np.mean(runs) == pytest.approx(mean, rel=1.0)


@given(st.floats(1.001, 1e4), st.floats(0, 10))
@settings(deadline=None, max_examples=60)
def test_the_stopping_probability_gives_the_mean(mean: float, shape: float) -> None:
    log_gamma = log_stopping_probability(mean, shape)
    gamma = math.exp(log_gamma)
    spread = -log_gamma if shape == 0 else -math.expm1(shape * log_gamma) / shape
    assert (1 / gamma - 1) / spread == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0, math.inf])
def test_the_number_of_runs_follows_the_law_that_is_charged(shape: float) -> None:
    search, rng, count = RandomSearch(mean=3.0, shape=shape), np.random.default_rng(5), 6000
    drawn = np.array([search.draw_num_runs(rng) for _ in range(count)])
    law = law_of_length(3.0, shape, 12)
    expected = count * np.append(law, 1 - law.sum())
    found = np.append([(drawn == k).sum() for k in range(12)], (drawn >= 12).sum())
    used = expected > 5
    assert used.sum() >= 6
    distance = float(((found - expected)[used] ** 2 / expected[used]).sum())
    assert stats.chi_square(distance, int(used.sum()) - 1) > stats.ALPHA


def law_of_length(mean: float, shape: float, upto: int) -> np.ndarray:
    """Return the probabilities of 0, 1, ... runs, straight from the definition."""
    if math.isinf(shape):
        return np.array([math.exp(-mean) * mean**k / math.factorial(k) for k in range(upto)])
    gamma = math.exp(log_stopping_probability(mean, shape))
    weights = [0.0]
    for k in range(1, upto):
        product = math.prod((j + shape) / (j + 1) for j in range(k)) if shape > 0 else 1 / k
        scale = gamma**-shape - 1 if shape > 0 else -math.log(gamma)
        weights.append((1 - gamma) ** k / scale * product)
    return np.array(weights)


def test_a_search_is_accounted_by_renyi_divergences_and_survives_json() -> None:
    event = RandomSearch(mean=10).event(ONE_RUN)
    assert tightest(event, ADD_REMOVE, 1e-5) == RDP()
    assert "search" in str(PLD().supports(event, ADD_REMOVE))
    assert decode_event(encode_event(event)) == event
    promise = guarantee(dp_event.ComposedDpEvent([event, GAUSSIAN]), delta=1e-5, adjacency=ADD_REMOVE, unit=Unit.RECORD)
    assert promise.epsilon > epsilon(event)


def test_a_search_over_nothing_costs_nothing_and_over_plain_text_everything() -> None:
    search = RandomSearch(mean=10)
    assert epsilon(search.event(dp_event.NoOpDpEvent())) == 0
    assert epsilon(search.event(dp_event.NonPrivateDpEvent())) == math.inf


def test_a_search_over_runs_that_may_differ_is_refused() -> None:
    event = RandomSearch(mean=10).event(dp_event.ComposedDpEvent([GAUSSIAN, TotalVariationDpEvent(distance=1e-9)]))
    with pytest.raises(AccountingError, match="RepeatAndSelect"):
        tightest(event, ADD_REMOVE, 1e-5)


@pytest.mark.parametrize("change", [{"mean": 0.5}, {"mean": math.inf}, {"shape": -1.0}, {"shape": math.nan}], ids=str)
def test_odd_searches_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ArgumentError):
        RandomSearch(**({"mean": 2.0} | change))


def test_an_event_with_a_mean_below_one_is_refused() -> None:
    with pytest.raises(ArgumentError, match="mean"):
        epsilon(dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 0.5, 1.0))
