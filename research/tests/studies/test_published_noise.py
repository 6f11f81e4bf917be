"""A published rule for shaped noise, kept here as a negative control: an attack that must break it, and not ours.

Xiang, Yang and Li (2019) choose Gaussian noise of different sizes under a plain bound on the length of a contribution.
As solved in their group's code, privacy is enforced for one contribution only, the one along the model's sensitivity;
a coordinate that the sensitivity calls unimportant gets almost no noise. Whoever contributes there is seen. This rule
exists nowhere in the library.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from numpy.typing import NDArray

from privet.accounting.calibration import calibrate_noise
from privet.mechanism.geometry import Diagonal, Frame
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.noise import Gaussian
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.shaped_noise import EllipticalGaussian
from privet.mechanism.sums import ClippedSum
from privet.training.randomness import KeystreamNoise
from privet.vocabulary import Adjacency

Array = NDArray[np.float64]
SIZE, TRIALS, EPSILON, DELTA, BOUND = 650, 2000, 1.0, 1e-5, 1.0


def sensitivity_of_a_model() -> Array:
    """Weights as a softmax model on images has them: many small ones, and border pixels that are always black."""
    weights = np.abs(np.random.default_rng(0).normal(size=SIZE)) * np.exp(np.random.default_rng(1).normal(size=SIZE))
    weights[:100] = 0.0
    return weights


def nominal_multiplier() -> float:
    return calibrate_noise(dp_event.GaussianDpEvent, epsilon=EPSILON, delta=DELTA, adjacency=Adjacency.ADD_REMOVE)


def published_stds(weights: Array) -> Array:
    """The rule, at the Gaussian's own exact constant for (epsilon, delta), which is kinder than the published one."""
    floor = np.maximum(weights, 1e-12 * weights.max())
    contribution = BOUND * floor / np.linalg.norm(floor)
    total = np.cbrt((contribution * floor) ** 2).sum()
    stds = math.sqrt(total) * np.cbrt(contribution**2 / floor)
    reached = math.sqrt(float(((contribution / stds) ** 2).sum()))
    return np.asarray(stds * reached * nominal_multiplier())


def attack_rates(without: Array, with_record: Array, size: float) -> tuple[float, float]:
    """How often the record is called present when it is, and when it is not, from its coordinate alone."""
    return float((with_record > size / 2).mean()), float((without > size / 2).mean())


def allowed(false_rate: float) -> float:
    """The most true positives at this rate of false ones, with five standard errors for the trials."""
    return math.exp(EPSILON) * false_rate + DELTA + 5 * 2 * math.sqrt(0.25 / TRIALS)


def test_the_published_rule_meets_its_constraint_and_is_broken_by_a_dead_coordinate() -> None:
    weights = sensitivity_of_a_model()
    stds = published_stds(weights)
    along = BOUND * weights / np.linalg.norm(weights)
    assert math.sqrt(float(((along / stds) ** 2).sum())) == pytest.approx(1 / nominal_multiplier(), rel=1e-6)
    noise = np.random.default_rng(2).normal(size=(2, TRIALS)) * stds[0]
    true_rate, false_rate = attack_rates(noise[0], BOUND + noise[1], BOUND)
    assert true_rate >= 0.99
    assert false_rate == 0
    assert true_rate > allowed(false_rate)
    assert stds @ weights < nominal_multiplier() * weights.sum(), "what it saves is what it does not protect"


LAYOUT = Layout.of([("weight", (SIZE,))], OneGroup())


def test_plain_gaussian_noise_withstands_the_attack() -> None:
    stream = KeystreamNoise(bytes(range(48)))
    released = np.empty((2, TRIALS))
    piece = Gaussian(noise_multiplier=nominal_multiplier())
    for present in (0, 1):
        for trial in range(TRIALS):
            flat = torch.zeros(SIZE, dtype=torch.float64)
            flat[0] = present * BOUND
            total = ClippedSum(flat=flat, layout=LAYOUT, sensitivity=Sensitivity(bounds=(BOUND,)))
            released[present, trial] = float(piece.add(total, stream).flat[0])
    true_rate, false_rate = attack_rates(released[0], released[1], BOUND)
    assert true_rate <= allowed(false_rate)


def test_the_same_shape_withstands_it_when_clipping_shares_its_units() -> None:
    shape = np.maximum(published_stds(sensitivity_of_a_model()), 1e-3)
    geometry = Diagonal(coordinate_units=tuple((shape / shape.max()).tolist()))
    frame = Frame.of(geometry, LAYOUT, torch.zeros(SIZE, dtype=torch.float64))
    piece, stream = (
        EllipticalGaussian(geometry=geometry, noise_multiplier=nominal_multiplier()),
        KeystreamNoise(bytes(48)),
    )
    record = torch.zeros(SIZE, dtype=torch.float64)
    record[0] = BOUND
    inside = frame.whitened(record)
    inside *= BOUND / inside.norm()  # the most that clipping lets through, along the dead coordinate
    seen = inside.clone()
    frame.rescale_(seen, power=1.0)
    released = np.empty((2, TRIALS))
    for present in (0, 1):
        for trial in range(TRIALS):
            total = ClippedSum(
                flat=inside * present, layout=LAYOUT, sensitivity=Sensitivity(bounds=(BOUND,)), frame=frame
            )
            released[present, trial] = float(piece.add(total, stream).flat[0])
    true_rate, false_rate = attack_rates(released[0], released[1], float(seen[0]))
    assert true_rate <= allowed(false_rate)
    assert float(seen[0]) < 0.01 * BOUND


def test_no_shape_beats_equal_noise_under_a_plain_bound() -> None:
    rng, multiplier = np.random.default_rng(4), nominal_multiplier()
    for _ in range(50):
        weights, stds = rng.exponential(size=SIZE), np.exp(rng.normal(size=SIZE))
        directions = np.eye(SIZE)
        worst = np.sqrt(((directions / stds) ** 2).sum(1)).max()
        private = stds * worst * multiplier
        assert private @ weights >= multiplier * weights.sum() * (1 - 1e-12)
