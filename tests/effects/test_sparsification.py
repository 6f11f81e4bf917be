"""The analysis of random masks against closed forms, and its claims in miniature on real images."""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from privet.datasets import ArrayDataset, load
from privet.effects.sparsification import (
    ConvergenceTerms,
    budget_noise_term,
    equivalent_clipping,
    frequency_distance,
    gradient_norm_ratio,
    measured_kappa,
    noise_norm_ratio,
    noisy_descent_bound,
    per_example_gradients,
    projected_deviations,
    symmetry,
    times_masked,
)
from privet.errors import ArgumentError
from privet.mechanism.ablations import NoNoise
from privet.mechanism.clipping import Threshold
from privet.mechanism.mask_rates import GradualCooling
from privet.mechanism.masking import Mask, NoMask, RandomMask
from privet.mechanism.noise import Gaussian, Noise
from privet.mechanism.sampling import Poisson
from privet.plan import Plan
from privet.training.performance import Performance
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit

TERMS = ConvergenceTerms(
    clip_norm=0.5,
    noise_multiplier=4.0,
    num_coordinates=19_210,
    smoothness=2.0,
    expected_batch_size=256.0,
    learning_rate=0.5,
    num_steps=1000,
    loss_drop=2.3,
)


# ------------------------------------------------------------------------------------------------------------ the bound


def test_the_terms_are_those_of_the_theorem() -> None:
    assert TERMS.noise_term == pytest.approx(0.5**2 * 4.0**2 * 19_210 * 2.0 / (2 * 256.0**2))
    assert TERMS.descent_term == pytest.approx(2.3 / (0.5 * 1000) + 0.5 * 2.0 * 0.5**2 / 2)
    assert TERMS.bound(0.0) == pytest.approx(TERMS.descent_term + 0.5 * TERMS.noise_term)


@given(noise=st.floats(0.1, 50), rate=st.floats(0.01, 3), drop=st.floats(0, 20))
def test_the_optimal_rate_is_where_the_bound_is_least(noise: float, rate: float, drop: float) -> None:
    terms = replace(TERMS, noise_multiplier=noise, learning_rate=rate, loss_drop=drop)
    best = min(terms.optimal_rate, 0.999_999)
    least = terms.bound(best)
    assert all(least <= terms.bound(other) * (1 + 1e-9) for other in np.linspace(0, 0.999, 57))


def test_the_learning_rate_belongs_in_the_optimal_rate() -> None:
    without = 1 - TERMS.descent_term / TERMS.noise_term
    assert TERMS.optimal_rate == pytest.approx(1 - TERMS.descent_term / (0.5 * TERMS.noise_term))
    assert TERMS.bound(TERMS.optimal_rate) < TERMS.bound(without)


def test_no_rate_helps_without_enough_noise_or_where_kappa_is_what_is_kept() -> None:
    assert replace(TERMS, noise_multiplier=0.01).optimal_rate == 0.0
    bounds = [TERMS.bound(rate, kappa=1 - rate) for rate in (0.0, 0.3, 0.6, 0.9)]
    assert bounds == sorted(bounds)


def test_without_noise_the_bound_is_that_of_clipping_alone_and_no_mask_lowers_it() -> None:
    quiet = replace(TERMS, noise_multiplier=0.0)
    assert quiet.bound(0.0) == quiet.descent_term
    assert quiet.bound(0.75) == pytest.approx(2 * quiet.descent_term)
    assert quiet.optimal_rate == 0.0


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
def test_masked_noisy_descent_on_a_quadratic_stays_below_its_bound_and_near_it(rate: float) -> None:
    size, steps, smoothness, noise_std, deviation, batch = 200, 400, 2.0, 3.0, 1.0, 10
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(size)
    start, found = smoothness * (weights**2).sum() / 2, 0.0
    for _ in range(steps):
        gradient = smoothness * weights
        found += (gradient**2).sum() / steps
        # every example's gradient lies at the distance ``deviation`` from the mean, in a random direction
        spread = rng.standard_normal((batch, size))
        spread *= deviation / np.linalg.norm(spread, axis=1, keepdims=True)
        noisy = gradient + spread.mean(0) + noise_std / batch * rng.standard_normal(size)
        weights -= (rng.random(size) >= rate) * noisy / (smoothness * math.sqrt(steps))
    bound = noisy_descent_bound(
        rate,
        num_coordinates=size,
        smoothness=smoothness,
        noise_std=noise_std,
        gradient_deviation=deviation,
        batch_size=batch,
        num_steps=steps,
        loss_drop=start,
    )
    assert bound / 4 < found <= bound


def test_the_bound_of_noisy_descent_grows_with_the_rate_of_the_mask() -> None:
    values = {"num_coordinates": 10, "num_steps": 100}
    reals = {"smoothness": 1.0, "noise_std": 1.0, "gradient_deviation": 1.0, "batch_size": 4.0, "loss_drop": 1.0}
    bounds = [noisy_descent_bound(rate, **values, **reals) for rate in (0.0, 0.3, 0.6, 0.9)]  # type: ignore[arg-type]
    assert bounds == sorted(bounds)
    assert bounds[0] == pytest.approx(2 / 10 + (1 / 4 + 10 / 16) / 10)


def test_the_budgets_noise_term_is_that_of_the_calibrated_noise_and_grows_at_a_fixed_size_of_the_data() -> None:
    def term(steps: int, size: int) -> float:
        return budget_noise_term(
            num_coordinates=50,
            clip_norm=0.5,
            constant=1.5,
            sampling_rate=math.sqrt(steps) / size,
            num_steps=steps,
            epsilon=2.0,
            delta=1e-5,
        )

    steps, size = 400, 1_000
    noise = 1.5 * (math.sqrt(steps) / size) * math.sqrt(steps * math.log(1e5)) / 2.0
    terms = replace(
        TERMS,
        num_coordinates=50,
        noise_multiplier=noise,
        expected_batch_size=math.sqrt(steps),
        num_steps=steps,
        learning_rate=1 / (TERMS.smoothness * math.sqrt(steps)),
    )
    assert term(steps, size) == pytest.approx(terms.learning_rate * terms.noise_term)
    assert term(1_600, size) == pytest.approx(2 * term(400, size)), "the publication says that it falls"
    assert term(1_600, 2 * size) == pytest.approx(term(400, size) / 2), "as it does at a fixed sampling rate"


def test_threshold_over_one_minus_momentum_is_kept() -> None:
    assert equivalent_clipping(0.1, momentum=0.9, new_momentum=0.0) == pytest.approx(1.0)
    assert equivalent_clipping(1.0, momentum=0.0, new_momentum=0.9) == pytest.approx(0.1)
    with pytest.raises(ArgumentError, match="momentum"):
        equivalent_clipping(1.0, momentum=1.0, new_momentum=0.0)


def test_an_equivalent_threshold_moves_the_weights_as_far() -> None:
    def displacement(clip: float, momentum: float) -> float:
        weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = SGD([weight], lr=0.5, momentum=momentum)
        for step in range(400):
            weight.grad = torch.full((1,), clip if step == 0 else 0.0, dtype=torch.float64)
            optimizer.step()
        return float(weight.detach())

    other = equivalent_clipping(0.3, momentum=0.9, new_momentum=0.5)
    assert displacement(other, 0.5) == pytest.approx(displacement(0.3, 0.9))


# ----------------------------------------------------------------------------------------------------- what is measured


def classifier() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    return model, torch.randn(40, 6), torch.randint(0, 3, (40,))


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def test_per_example_gradients_add_up_to_autograds() -> None:
    model, inputs, labels = classifier()
    found = per_example_gradients(model, cross_entropy, inputs, labels)
    total = torch.autograd.grad(cross_entropy(model(inputs), labels).sum(), list(model.parameters()))
    assert torch.allclose(found.sum(0), torch.cat([value.reshape(-1) for value in total]), atol=1e-5)


def test_kappa_is_one_without_a_mask_and_what_is_kept_when_nothing_is_long() -> None:
    model, inputs, labels = classifier()
    gradients = per_example_gradients(model, cross_entropy, inputs, labels)
    assert measured_kappa(gradients, clip_norm=30.0, rate=0.0).value == pytest.approx(1.0)
    generous = measured_kappa(gradients, clip_norm=1e3, rate=0.75, num_masks=400)
    assert generous.premise_holds
    assert generous.value == pytest.approx(0.25, rel=0.15)


def test_kappa_rises_above_what_is_kept_only_where_its_premise_fails() -> None:
    model, inputs, labels = classifier()
    gradients = per_example_gradients(model, cross_entropy, inputs, labels)
    typical = float((gradients - gradients.mean(0)).norm(dim=1).median())
    found = measured_kappa(gradients, clip_norm=typical / 0.75, rate=0.5)
    assert not found.premise_holds
    assert found.value > 0.6
    assert math.isnan(measured_kappa(gradients, clip_norm=1e-6, rate=0.5).value)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.5, 0.9, 0.99])
def test_masked_noise_is_shorter_by_the_root_of_what_is_kept(rate: float) -> None:
    assert noise_norm_ratio(550_570, rate=rate, num_draws=10) == pytest.approx(math.sqrt(1 - rate), rel=0.01)


def test_what_is_kept_gets_longer_the_more_is_clipped() -> None:
    model, inputs, labels = classifier()
    gradients = per_example_gradients(model, cross_entropy, inputs, labels)
    generator, rate = torch.Generator().manual_seed(0), 0.7
    keep = torch.rand(gradients.shape[1], generator=generator) > rate
    assert gradient_norm_ratio(gradients, keep, clip_norm=1e3) == pytest.approx(1.0)
    tight = gradient_norm_ratio(gradients, keep, clip_norm=1e-3)
    assert 1.3 < tight < 1.4 / math.sqrt(1 - rate)
    with pytest.raises(ArgumentError, match="boolean"):
        gradient_norm_ratio(gradients, keep.float(), clip_norm=1.0)


def test_deviations_are_centred_and_repeatable() -> None:
    gradients = torch.randn(50, 30) + 4
    points = projected_deviations(gradients, seed=3)
    assert points.shape == (50, 2)
    assert torch.allclose(points.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-10)
    assert torch.equal(points, projected_deviations(gradients, seed=3))
    assert not torch.equal(points, projected_deviations(gradients, seed=4))


def test_symmetric_points_pass_and_lopsided_ones_do_not() -> None:
    generator = torch.Generator().manual_seed(1)
    round_ = torch.randn(120, 2, generator=generator)
    lopsided = torch.rand(120, 2, generator=generator).log().neg() - 1
    assert symmetry(round_).p_value > 0.02
    found = symmetry(lopsided)
    assert found.p_value <= 0.01
    assert found.energy_distance > symmetry(round_).energy_distance
    assert symmetry(round_).effect < 0.01 < found.effect < 1
    assert symmetry(3 * lopsided).effect == pytest.approx(found.effect), "has no unit"
    assert symmetry(torch.zeros(5, 2)).effect == 0.0


def test_masked_coordinates_are_counted() -> None:
    first, second = torch.tensor([True, False, True]), torch.tensor([False, False, True])
    counts = times_masked([first, None, second], 3)
    assert counts.tolist() == [1, 2, 0]
    assert frequency_distance(counts, counts) == 0.0
    assert frequency_distance(np.zeros(5, dtype=np.int64), np.ones(5, dtype=np.int64)) == 1.0
    with pytest.raises(ArgumentError, match="at least one"):
        frequency_distance(counts, np.zeros(0, dtype=np.int64))


def test_gradients_of_another_shape_are_refused() -> None:
    for shape in ((3,), (0, 4), (4, 0)):
        with pytest.raises(ArgumentError, match="example, coordinate"):
            measured_kappa(torch.zeros(shape), clip_norm=1.0, rate=0.5)


# ------------------------------------------------------------------------------------------------------- in miniature


class MaskedAfterwards(SGD):
    """Masks gradients when clipping and noise are done: what random sparsification is not."""

    steps_taken = 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        generator = torch.Generator().manual_seed(self.steps_taken // 7)
        for group in self.param_groups:
            for value in group["params"]:
                value.grad *= torch.rand(value.shape, generator=generator) >= 0.9 * self.steps_taken / 141
        self.steps_taken += 1
        super().step()


@functools.cache
def images() -> ArrayDataset:
    train = load("fashion_mnist_small").train
    small = functional.adaptive_avg_pool2d(train.features[:1800], (8, 8))
    return ArrayDataset(features=small.flatten(1), labels=train.labels[:1800])


@functools.cache
def accuracy(
    noise: Noise, clip: float, learning_rate: float, mask: Mask, seed: int, optimizer: type[SGD] = SGD
) -> float:
    """Training accuracy, in percent, of a network trained for twenty epochs on small pictures of clothes."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    data = images()
    plan = Plan(
        sampling=Poisson.for_dataset(dataset_size=1800, batch_size=256, epochs=20),
        clipping=Threshold(norm=clip),
        noise=noise,
        mask=mask,
        delta=1e-5,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )
    descent = optimizer(model.parameters(), lr=learning_rate)
    with privatize(model, descent, data, plan, seed=seed, performance=Performance(physical_batch_size=512)) as session:
        for step in session.steps():
            step.accumulate(lambda inputs, labels: cross_entropy(model(inputs), labels))
            step.update()
    return 100 * float((model(data.features).argmax(1) == data.labels).double().mean())


MASK = RandomMask(schedule=GradualCooling(final=0.9))
SEEDS = range(4)
LOUD, CALM = Gaussian(noise_multiplier=4.0), Gaussian(noise_multiplier=1.0)


def gain(
    noise: Noise, clip: float, learning_rate: float, *, mask: Mask = MASK, optimizer: type[SGD] = SGD
) -> tuple[float, float]:
    """Mean gain of the masked arm over the same seeds without, in points of accuracy, and its standard error."""
    gains = [
        accuracy(noise, clip, learning_rate, mask, seed, optimizer)
        - accuracy(noise, clip, learning_rate, NoMask(), seed)
        for seed in SEEDS
    ]
    return statistics.mean(gains), statistics.stdev(gains) / math.sqrt(len(gains))


def test_random_sparsification_helps_under_much_noise_and_hurts_under_little() -> None:
    loud, loud_error = gain(LOUD, 1.0, 4.0)
    calm, calm_error = gain(CALM, 0.25, 1.0)
    assert loud > 2 * loud_error
    assert loud > 2
    assert calm < -2 * calm_error


def test_without_noise_there_is_nothing_to_gain() -> None:
    found, error = gain(NoNoise(), 0.25, 1.0)
    assert found < 2 * error


def test_masking_after_clipping_gains_less_than_masking_before() -> None:
    before, _ = gain(LOUD, 1.0, 4.0)
    after, error = gain(LOUD, 1.0, 4.0, mask=NoMask(), optimizer=MaskedAfterwards)
    assert after < before - error
