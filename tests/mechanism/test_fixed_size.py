"""Batches of one size: uniform, without replacement, for an exchange of records only."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting import dp_event

from privet.errors import ArgumentError, DataError
from privet.mechanism.sampling import FixedSize
from privet.vocabulary import Adjacency
from tests.contract import statistics as stats

NOISE = dp_event.GaussianDpEvent(1.3)


def test_every_subset_of_the_size_is_drawn_equally_often() -> None:
    sampling, rng, count = FixedSize(dataset_size=5, batch_size=2, steps=1), np.random.default_rng(2), 4000
    found = [tuple(next(sampling.round_batches(5, rng)).tolist()) for _ in range(count)]
    pairs = {(i, j) for i in range(5) for j in range(i + 1, 5)}
    assert set(found) == pairs
    expected = count / 10
    assert stats.chi_square(sum((found.count(pair) - expected) ** 2 / expected for pair in pairs), 9) > stats.ALPHA


def test_another_number_of_records_than_planned_is_refused() -> None:
    sampling = FixedSize(dataset_size=10, batch_size=2, steps=1)
    for size in (9, 11):
        with pytest.raises(DataError, match="exactly 10 records"):
            next(sampling.round_batches(size, np.random.default_rng(0)))


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_only_the_exchange_of_a_record_is_covered(adjacency: Adjacency) -> None:
    refusal = FixedSize(dataset_size=10, batch_size=2, steps=1).refusal(adjacency)
    assert (refusal is None) == (adjacency is Adjacency.REPLACE_ONE)
    assert refusal is None or "Poisson" in refusal


def test_a_round_is_charged_as_a_sample_without_replacement() -> None:
    event = FixedSize(dataset_size=10, batch_size=2, steps=3).amplify(NOISE)
    assert event == dp_event.SampledWithoutReplacementDpEvent(10, 2, NOISE)
    assert FixedSize(dataset_size=10, batch_size=10, steps=3).amplify(NOISE) == NOISE


def test_epochs_become_whole_steps() -> None:
    sampling = FixedSize.for_dataset(dataset_size=1000, batch_size=30, epochs=2)
    assert (sampling.num_rounds, sampling.steps_per_round, sampling.expected_batch_size) == (67, 1, 30.0)


@pytest.mark.parametrize(
    "change", [{"batch_size": 11}, {"batch_size": 0}, {"steps": 1.0}, {"dataset_size": 0}], ids=str
)
def test_odd_constants_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        FixedSize(**({"dataset_size": 10, "batch_size": 2, "steps": 1} | change))  # type: ignore[arg-type]
