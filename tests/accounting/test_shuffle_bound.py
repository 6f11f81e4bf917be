"""Shuffled batches are never charged less than what is known to leak; called Poisson sampling they would be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from privet.accounting.guarantee import guarantee
from privet.mechanism.epoch_sampling import Cyclic, Shuffle
from privet.mechanism.events import compose
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson, Sampling
from privet.vocabulary import Adjacency, Unit


def shuffle_lower_bound(noise: float, batches: int, delta: float) -> float:
    """Return a lower bound on epsilon of one shuffled epoch: the largest coordinate tells (Chua et al., 2024)."""
    cut = np.linspace(-2, 14, 40001)
    others = (batches - 1) * np.log(ndtr(cut / noise))
    first = 1 - ndtr((cut - 2) / noise) * np.exp(others)
    second = 1 - ndtr((cut - 1) / noise) * np.exp(others)
    return float(brentq(lambda e: float((first - math.exp(e) * second).max()) - delta, 0, 40))


def charged(sampling: Sampling, noise: float, delta: float) -> float:
    event = compose([(sampling.amplify(Gaussian(noise_multiplier=noise).event()), sampling.num_rounds)])
    return guarantee(event, delta=delta, adjacency=Adjacency.ZERO_OUT, unit=Unit.RECORD).epsilon


@pytest.mark.parametrize(
    ("noise", "batches", "delta", "lower", "poisson"),
    [
        (1.1, 234, 1e-5, 2.981, 0.307),
        (0.8, 234, 1e-5, 5.554, 0.890),
        (0.5, 234, 1e-5, 9.997, 5.030),
        (0.6, 1000, 1e-6, 8.833, 2.107),
        (0.4, 17192, 1 / 550152, 14.14, 4.451),
    ],
)
def test_a_shuffled_epoch_is_charged_above_its_lower_bound_and_poisson_would_not_be(
    noise: float, batches: int, delta: float, lower: float, poisson: float
) -> None:
    leaked = shuffle_lower_bound(noise, batches, delta)
    assert leaked == pytest.approx(lower, rel=1e-3)
    for piece in (Shuffle, Cyclic):
        spent = charged(piece(batches=batches, epochs=1, expected_batch_size=1), noise, delta)
        assert spent >= leaked * (1 - 1e-6), "at little noise the bound and the charge all but meet"
    sampled = charged(Poisson(rate=1 / batches, steps=batches, expected_batch_size=1), noise, delta)
    assert sampled == pytest.approx(poisson, abs=2e-3)
    assert sampled < lower
