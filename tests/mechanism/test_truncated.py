"""Truncated Poisson sampling: the right law, the right charge, and slots that hide how many records there are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.errors import AccountingError, ArgumentError, DataError
from privet.mechanism.events import PureDpEvent, TotalVariationDpEvent
from privet.mechanism.truncated import TruncatedPoisson, Truncation, expected_kept, overflow_probability
from privet.vocabulary import Adjacency
from tests.contract import statistics as stats


def truncated(
    *, rate: float = 0.5, size: int = 8, limit: int = 3, truncation: Truncation = Truncation.TIGHT
) -> TruncatedPoisson:
    return TruncatedPoisson(rate=rate, steps=5, dataset_size=size, max_batch_size=limit, truncation=truncation)


def draws(sampling: TruncatedPoisson, num_examples: int, count: int, seed: int = 1) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(next(sampling.round_batches(num_examples, rng)).tolist()) for _ in range(count)]


# (n, b, B) -> probability of more than B, from sums in 40 digits
@pytest.mark.parametrize(
    ("size", "batch", "limit", "probability"),
    [
        (60000, 256, 320, 4.87900826491578e-5),
        (60000, 256, 350, 9.96227500141352e-9),
        (50000, 1024, 1200, 2.79439542407869e-8),
        (50000, 1024, 1280, 3.01438405977751e-15),
        (100000, 64, 110, 6.33461046866254e-8),
        (1000, 10, 30, 6.41992860313766e-8),
        (60000, 1000, 1200, 2.74034275949688e-10),
    ],
)
def test_overflow_has_its_exact_probability(size: int, batch: int, limit: int, probability: float) -> None:
    found = overflow_probability(dataset_size=size, rate=batch / size, max_batch_size=limit)
    assert found == pytest.approx(probability, rel=1e-12)


@given(size=st.integers(1, 40), rate=st.floats(0.01, 1), limit=st.integers(1, 50))
@settings(deadline=None, max_examples=100)
def test_overflow_is_the_tail_of_the_binomial_and_falls_with_the_limit(size: int, rate: float, limit: int) -> None:
    by_hand = sum(math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(limit + 1, size + 1))
    found = overflow_probability(dataset_size=size, rate=rate, max_batch_size=limit)
    assert found == pytest.approx(by_hand, rel=1e-9, abs=1e-300)
    assert overflow_probability(dataset_size=size, rate=rate, max_batch_size=limit + 1) <= found


def test_a_full_batch_keeps_every_subset_of_the_sampled_equally_often() -> None:
    sampling, count = truncated(rate=0.9, size=5, limit=2), 6000
    found = [batch for batch in draws(sampling, 5, count) if len(batch) == 2]
    kinds = {pair: found.count(pair) for pair in {(i, j) for i in range(5) for j in range(i + 1, 5)}}
    expected = len(found) / 10
    assert stats.chi_square(sum((seen - expected) ** 2 / expected for seen in kinds.values()), 9) > stats.ALPHA


def test_batch_sizes_follow_the_binomial_cut_at_the_limit() -> None:
    sampling, count = truncated(), 8000
    sizes = np.bincount([len(batch) for batch in draws(sampling, 8, count)], minlength=4)
    law = [math.comb(8, k) / 2**8 for k in range(3)]
    expected = count * np.array([*law, 1 - sum(law)])
    assert len(sizes) == 4
    assert stats.chi_square(float(((sizes - expected) ** 2 / expected).sum()), 3) > stats.ALPHA


def test_removing_a_record_is_blanking_a_slot_and_moves_no_other_record() -> None:
    sampling = truncated(rate=0.6, size=20, limit=9)
    with_it, without_it = draws(sampling, 15, 500), draws(sampling, 14, 500)
    assert [tuple(i for i in batch if i != 14) for batch in with_it] == without_it
    assert with_it != without_it


def test_more_records_than_slots_are_refused_without_saying_how_many() -> None:
    with pytest.raises(DataError, match="more records than the 8 slots") as refused:
        draws(truncated(), 9, 1)
    assert "9" not in str(refused.value)


def test_the_tight_charge_is_the_event_of_truncation() -> None:
    event = truncated().amplify(dp_event.GaussianDpEvent(1.3))
    assert event == dp_event.TruncatedSubsampledGaussianDpEvent(8, 0.5, 3, 1.3)


def test_the_other_charge_is_poisson_sampling_and_the_overflow_of_each_step() -> None:
    sampling = truncated(truncation=Truncation.TOTAL_VARIATION)
    event = sampling.amplify(dp_event.GaussianDpEvent(1.3))
    poisson = dp_event.PoissonSampledDpEvent(0.5, dp_event.GaussianDpEvent(1.3))
    assert event == dp_event.ComposedDpEvent([poisson, TotalVariationDpEvent(distance=sampling.overflow_probability)])


@pytest.mark.parametrize("truncation", list(Truncation))
def test_a_limit_that_is_never_reached_costs_nothing(truncation: Truncation) -> None:
    noise = dp_event.GaussianDpEvent(1.3)
    sampling = truncated(limit=8, truncation=truncation)
    assert sampling.amplify(noise) == dp_event.PoissonSampledDpEvent(0.5, noise)
    assert truncated(rate=1.0, limit=8, truncation=truncation).amplify(noise) == noise


def test_several_gaussian_releases_on_one_batch_are_charged_as_one() -> None:
    both = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(3.0), dp_event.GaussianDpEvent(4.0)])
    assert truncated().amplify(both).noise_multiplier == pytest.approx(2.4, rel=1e-12)


def test_the_tight_charge_is_refused_for_noise_that_is_not_gaussian() -> None:
    with pytest.raises(AccountingError, match="TOTAL_VARIATION"):
        truncated().amplify(PureDpEvent(epsilon=1.0))


def test_the_divisor_stays_the_expected_batch_when_batches_are_cut() -> None:
    assert truncated(limit=1).expected_batch_size == truncated(limit=8).expected_batch_size == 4


@given(size=st.integers(1, 30), rate=st.floats(0.01, 1), limit=st.integers(1, 40))
@settings(deadline=None, max_examples=60)
def test_the_kept_records_are_counted_exactly(size: int, rate: float, limit: int) -> None:
    by_hand = sum(min(k, limit) * math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(size + 1))
    found = expected_kept(dataset_size=size, rate=rate, max_batch_size=limit)
    assert found == pytest.approx(by_hand, rel=1e-9)


def test_every_adjacency_is_covered() -> None:
    assert [truncated().refusal(adjacency) for adjacency in Adjacency] == [None, None, None]


def test_sizes_become_rate_and_steps() -> None:
    sampling = TruncatedPoisson.for_dataset(dataset_size=1000, batch_size=30, max_batch_size=40, epochs=2)
    assert (sampling.rate, sampling.steps, sampling.max_batch_size) == (0.03, 67, 40)
    with pytest.raises(ArgumentError, match="larger than the declared"):
        TruncatedPoisson.for_dataset(dataset_size=10, batch_size=30, max_batch_size=40, epochs=2)


def test_an_average_batch_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"batch_size \(30\) is larger than max_batch_size \(20\)"):
        TruncatedPoisson.for_dataset(dataset_size=100, batch_size=30, max_batch_size=20, epochs=2)
    fits = TruncatedPoisson.for_dataset(dataset_size=100, batch_size=20, max_batch_size=20, epochs=2)
    assert fits.max_batch_size == 20


@pytest.mark.parametrize(
    "change",
    [
        {"rate": 0.0},
        {"rate": math.nan},
        {"steps": 0},
        {"dataset_size": 1.5},
        {"max_batch_size": 0},
        {"truncation": "x"},
    ],
    ids=str,
)
def test_odd_constants_are_refused(change: dict[str, object]) -> None:
    good = {"rate": 0.1, "steps": 1, "dataset_size": 10, "max_batch_size": 5}
    with pytest.raises(ArgumentError):
        TruncatedPoisson(**(good | change))  # type: ignore[arg-type]
