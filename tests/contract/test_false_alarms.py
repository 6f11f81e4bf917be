"""The statistical laws of noise and sampling do not accuse the real pieces, over two hundred keys.

A key of a perfect source is odd with a chance of ``ALPHA``; two of two hundred with 0.0002. A wrong source is odd at
every key, so one odd key is allowed. (Key 0 of the Philox stream is one: its mean lies 4.2 standard errors off. Drawn
anew with numpy, its next 599 keys have uniform p-values.)
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from tests.contract import statistics as stats
from tests.contract.noises import Source, each_source
from tests.contract.test_noise import noise_p_values, zero_sum
from tests.contract.test_samplers import poisson_p_values

KEYS = 200


def is_alarm(found: dict[str, float]) -> bool:
    """Whether the oddest of several tests is odd even among so many."""
    return min(found.values()) * len(found) < stats.ALPHA


def noise_alarms(source: Source, keys: range) -> list[int]:
    piece = Gaussian(noise_multiplier=1.0)

    def is_odd(key: int) -> bool:
        stream = source(key)
        return is_alarm(noise_p_values(*(piece.add(zero_sum((1.0,)), stream).flat for _ in range(2))))

    return [key for key in keys if is_odd(key)]


def sampling_alarms(keys: range) -> list[int]:
    draw = Poisson(rate=0.1, steps=1, expected_batch_size=1).round_batches
    return [key for key in keys if is_alarm(poisson_p_values(draw, 0.1, seed=key))]


@each_source
def test_noise_of_a_few_keys_raises_at_most_one_alarm(source: Source) -> None:
    assert len(noise_alarms(source, range(3))) <= 1


def test_samples_of_a_few_keys_raise_at_most_one_alarm() -> None:
    assert len(sampling_alarms(range(2))) <= 1


@pytest.mark.slow
@each_source
def test_noise_of_two_hundred_keys_raises_at_most_one_alarm(
    source: Source, record_property: Callable[[str, object], None]
) -> None:
    alarms = noise_alarms(source, range(KEYS))
    record_property("keys tried", KEYS)
    record_property("false alarms", len(alarms))
    assert len(alarms) <= 1


@pytest.mark.slow
def test_samples_of_two_hundred_keys_raise_at_most_one_alarm(record_property: Callable[[str, object], None]) -> None:
    alarms = sampling_alarms(range(KEYS))
    record_property("keys tried", KEYS)
    record_property("false alarms", len(alarms))
    assert len(alarms) <= 1
