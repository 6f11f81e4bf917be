"""The pieces of a step, run a million times beside each other, against what the accountant charges for them.

One record with a gradient far beyond the bound is present or absent; an attacker sees every released sum and knows
everything else. A missing factor of two, noise of the wrong size or a wrong normaliser would show at once.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from privet.accounting.accountants import PLD
from privet.mechanism.clipping import Threshold
from privet.mechanism.events import compose
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.mechanism.sums import ClippedSum
from privet.training.randomness import KeystreamNoise
from privet.vocabulary import Adjacency

RUNS, BOUND = 1_000_000, 0.7


def released(sampling: Poisson, noise: Gaussian, *, is_present: bool, seed: int) -> list[Tensor]:
    """Return every step's noisy sum over the bound: one coordinate of the vectors is one run."""
    rng = np.random.default_rng(seed)
    source = KeystreamNoise(np.random.SeedSequence(seed).generate_state(6, np.uint64).tobytes())
    rule = Threshold(norm=BOUND).for_groups(1)
    gradient = 40.0
    clipped = gradient * float(rule.factors(torch.tensor([[gradient]])))
    layout = Layout.of([("runs", (RUNS,))], OneGroup())
    found = []
    for _ in range(sampling.steps):
        joins = torch.from_numpy(rng.random(RUNS) < sampling.rate) if is_present else torch.zeros(RUNS)
        total = ClippedSum(flat=joins.double() * clipped, layout=layout, sensitivity=rule.sensitivity)
        found.append(noise.add(total, source).flat / BOUND)
    return found


def log_odds(sums: list[Tensor], rate: float, sigma: float) -> Tensor:
    """Return the best test of presence against absence."""
    odds = torch.zeros(RUNS, dtype=torch.float64)
    for value in sums:
        odds += torch.log1p(rate * torch.expm1((2 * value - 1) / (2 * sigma**2)))
    return odds


@pytest.mark.parametrize(("rate", "sigma", "steps"), [(1.0, 1.3, 1), (0.3, 0.8, 3), (0.1, 0.7, 10)], ids=str)
def test_the_best_attack_on_the_steps_finds_what_they_are_charged_and_no_more(
    rate: float, sigma: float, steps: int
) -> None:
    sampling = Poisson(rate=rate, steps=steps, expected_batch_size=3.0)
    noise, delta = Gaussian(noise_multiplier=sigma), 0.02
    event = compose([(sampling.amplify(noise.event()), steps)])
    epsilon = PLD().epsilon(event, delta=delta, adjacency=Adjacency.ADD_REMOVE)
    with_record = log_odds(released(sampling, noise, is_present=True, seed=1), rate, sigma)
    without = log_odds(released(sampling, noise, is_present=False, seed=2), rate, sigma)
    found, error = 0.0, 0.0
    # the record may be the one that is added or the one that is removed; the worse direction is what is charged
    for first, second in ((with_record, without), (-without, -with_record)):
        hits, alarms = (float((side > epsilon).double().mean()) for side in (first, second))
        error = max(error, math.sqrt(hits * (1 - hits) + math.exp(2 * epsilon) * alarms * (1 - alarms)) / RUNS**0.5)
        found = max(found, hits - math.exp(epsilon) * alarms)
    assert found <= delta + 4 * error
    assert found >= 0.9 * delta - 4 * error
    assert error < 0.1 * delta
