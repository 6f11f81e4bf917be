"""Cyclic batches are disjoint, the same in every epoch, and dealt without looking at the data."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.errors import ArgumentError
from privet.mechanism.epoch_sampling import Cyclic
from tests.contract import statistics as stats


def cyclic(*, batches: int = 4, epochs: int = 3, secret_partition: bool = False) -> Cyclic:
    return Cyclic(batches=batches, epochs=epochs, expected_batch_size=5, secret_partition=secret_partition)


def epoch(sampling: Cyclic, num_examples: int, rng: np.random.Generator) -> list[list[int]]:
    return [batch.tolist() for batch in sampling.round_batches(num_examples, rng)]


@pytest.mark.parametrize("secret", [False, True])
@given(num_examples=st.integers(0, 200), batches=st.integers(1, 30), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60)
def test_an_epoch_uses_every_example_once_in_level_batches(
    secret: bool, num_examples: int, batches: int, seed: int
) -> None:
    sampling = cyclic(batches=batches, secret_partition=secret)
    found = epoch(sampling, num_examples, np.random.default_rng(seed))
    assert sorted(index for batch in found for index in batch) == list(range(num_examples))
    sizes = [len(batch) for batch in found]
    assert sizes == sorted(sizes, reverse=True), "the larger batches come first"
    assert sizes[0] - sizes[-1] <= 1


@pytest.mark.parametrize("secret", [False, True])
def test_every_epoch_of_a_run_has_the_same_batches_whatever_else_was_drawn(secret: bool) -> None:
    sampling, rng = cyclic(secret_partition=secret), np.random.default_rng(3)
    first = epoch(sampling, 23, rng)
    rng.random(1000)
    assert epoch(sampling, 23, rng) == first


def test_a_public_partition_is_the_same_for_every_key_and_a_secret_one_is_not() -> None:
    one, two = np.random.default_rng(1), np.random.default_rng(2)
    assert epoch(cyclic(), 40, one) == epoch(cyclic(), 40, two)
    secret = cyclic(secret_partition=True)
    assert epoch(secret, 40, one) != epoch(secret, 40, two)
    assert (cyclic().same_batches_after_restart, secret.same_batches_after_restart) == (True, False)


def test_a_secret_partition_puts_an_example_into_every_batch_equally_often() -> None:
    sampling, runs = cyclic(secret_partition=True), 2000
    found = np.zeros(4)
    for seed in range(runs):
        found[[7 in batch for batch in epoch(sampling, 12, np.random.default_rng(seed))].index(True)] += 1
    expected = runs / 4
    assert stats.chi_square(float(((found - expected) ** 2 / expected).sum()), 3) > stats.ALPHA


def test_a_secret_partition_is_not_what_the_stream_itself_draws() -> None:
    order = [i for batch in epoch(cyclic(secret_partition=True), 50, np.random.default_rng(9)) for i in batch]
    assert order != np.random.default_rng(9).permutation(50).tolist()


def test_a_generator_without_a_key_is_refused_for_a_secret_partition() -> None:
    class Words(np.random.bit_generator.ISeedSequence):
        def generate_state(self, n_words: int, dtype: type = np.uint32) -> np.ndarray:
            return np.arange(1, n_words + 1, dtype=dtype)

    rng = np.random.Generator(np.random.PCG64(Words()))
    drawn: Iterator[np.ndarray] = cyclic(secret_partition=True).round_batches(8, rng)
    with pytest.raises(ArgumentError, match="SeedSequence"):
        next(drawn)


@given(size=st.integers(1, 10**7), share=st.integers(1, 10**5))
@settings(deadline=None, max_examples=100)
def test_no_batch_of_a_declared_size_is_larger_than_the_divisor(size: int, share: int) -> None:
    batch_size = min(size, share)
    sampling = Cyclic.for_dataset(dataset_size=size, batch_size=batch_size, epochs=2)
    assert math.ceil(size / sampling.batches) <= batch_size == sampling.expected_batch_size
    assert sampling.num_rounds * sampling.steps_per_round == 2 * math.ceil(size / batch_size)


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ArgumentError, match="larger than the public"):
        Cyclic.for_dataset(dataset_size=10, batch_size=11, epochs=1)


@pytest.mark.parametrize("value", [1, 0, "yes", None], ids=repr)
def test_a_partition_is_secret_or_it_is_not(value: object) -> None:
    with pytest.raises(ArgumentError, match="secret_partition"):
        Cyclic(batches=2, epochs=1, expected_batch_size=1, secret_partition=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "3", None], ids=str)
def test_counts_are_whole_and_positive(count: object) -> None:
    for build in (
        lambda: Cyclic(batches=count, epochs=1, expected_batch_size=1),
        lambda: Cyclic(batches=1, epochs=count, expected_batch_size=1),
    ):
        with pytest.raises(ArgumentError):
            build()
