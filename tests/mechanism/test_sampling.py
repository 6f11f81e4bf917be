"""Constants of a sampler come from declared numbers alone, and odd ones are refused."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.errors import ArgumentError
from privet.mechanism.epoch_sampling import Shuffle
from privet.mechanism.sampling import FullBatch, Poisson


@given(size=st.integers(1, 10**9), share=st.integers(1, 10**6), epochs=st.integers(1, 1000))
@settings(deadline=None, max_examples=200)
def test_epochs_become_whole_steps_without_losing_one_to_rounding(size: int, share: int, epochs: int) -> None:
    batch = min(size, share)
    sampling = Poisson.for_dataset(dataset_size=size, batch_size=batch, epochs=epochs)
    assert sampling.steps == math.ceil(Fraction(epochs * size, batch))
    assert sampling.rate == batch / size
    assert sampling.expected_batch_size == batch


def test_every_small_loader_length_is_kept() -> None:
    for length in range(1, 3000):
        assert Poisson.for_dataset(dataset_size=10 * length, batch_size=10, epochs=1).steps == length


def test_steps_can_be_given_instead_of_epochs() -> None:
    sampling = Poisson.for_dataset(dataset_size=1000, batch_size=50, steps=7)
    assert (sampling.rate, sampling.num_rounds, sampling.steps_per_round) == (0.05, 7, 1)


@pytest.mark.parametrize("given", [{}, {"steps": 3, "epochs": 1}], ids=str)
def test_steps_and_epochs_are_alternatives(given: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match="exactly one of steps and epochs"):
        Poisson.for_dataset(dataset_size=100, batch_size=10, **given)


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ArgumentError, match="larger than the declared"):
        Poisson.for_dataset(dataset_size=100, batch_size=101, epochs=1)


@pytest.mark.parametrize("rate", [0, -0.1, 1.0001, math.nan, "0.1", None, True], ids=str)
def test_a_rate_that_is_no_probability_is_refused(rate: object) -> None:
    with pytest.raises(ArgumentError, match="rate"):
        Poisson(rate=rate, steps=1, expected_batch_size=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, 1.5, 2.0, True, "3", None], ids=str)
def test_counts_are_whole_and_positive(count: object) -> None:
    for build in (
        lambda: Poisson(rate=0.1, steps=count, expected_batch_size=1),
        lambda: FullBatch(steps=count, expected_batch_size=1),
        lambda: Shuffle(batches=count, epochs=1, expected_batch_size=1),
        lambda: Shuffle(batches=1, epochs=count, expected_batch_size=1),
    ):
        with pytest.raises(ArgumentError):
            build()


@pytest.mark.parametrize("size", [0, -3.0, math.inf, math.nan], ids=str)
def test_the_divisor_is_positive_and_finite(size: float) -> None:
    for build in (
        lambda: Poisson(rate=0.1, steps=1, expected_batch_size=size),
        lambda: FullBatch(steps=1, expected_batch_size=size),
        lambda: Shuffle(batches=1, epochs=1, expected_batch_size=size),
    ):
        with pytest.raises(ArgumentError, match="expected_batch_size"):
            build()


def test_numbers_of_other_libraries_become_plain_numbers() -> None:
    sampling = Poisson(rate=np.float32(0.5), steps=np.int64(3), expected_batch_size=np.float64(2))  # type: ignore[arg-type]
    assert (type(sampling.rate), type(sampling.steps), type(sampling.expected_batch_size)) == (float, int, float)


def test_rounds_and_steps_are_counted_as_charged() -> None:
    shuffle = Shuffle(batches=8, epochs=3, expected_batch_size=1)
    assert (shuffle.num_rounds, shuffle.steps_per_round) == (3, 8)
    full = FullBatch(steps=4, expected_batch_size=1)
    assert (full.num_rounds, full.steps_per_round) == (4, 1)
