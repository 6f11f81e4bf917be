"""A model's sensitivity, and the expected cost of noise under it, against derivatives and draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.effects.model_sensitivity import measure_sensitivity
from privet.errors import ArgumentError, PlanError
from privet.mechanism.geometry import Diagonal, Frame
from privet.mechanism.grouping import PerLayer
from privet.mechanism.laplace import L2Laplace
from privet.mechanism.noise import Gaussian, Noise
from privet.mechanism.optimal_laplace import optimal_block_l2, optimal_product_laplace
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.shaped_noise import EllipticalGaussian, GroupwiseGaussian
from privet.mechanism.sums import ClippedSum
from privet.training.randomness import KeystreamNoise


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def measured(count: int = 50) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), torch.randn(count, 4), torch.arange(count) % 3


def test_weights_are_the_derivatives_of_the_mean_loss() -> None:
    model, x, y = measured()
    found = measure_sensitivity(model, losses, x, y)
    gradients = torch.autograd.grad(losses(model(x), y).mean(), list(model.parameters()))
    assert np.allclose(found.weights, torch.cat([g.reshape(-1) for g in gradients]).abs().numpy(), atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())


SIZE = 43
UNITS = Diagonal(coordinate_units=tuple(1 + i / 20 for i in range(SIZE)))
KINDS: dict[str, Noise] = {
    "gaussian": Gaussian(noise_multiplier=2.0),
    "elliptical": EllipticalGaussian(geometry=UNITS, noise_multiplier=2.0),
    "groupwise": GroupwiseGaussian(noise_multiplier=2.0),
    "l2 laplace": L2Laplace(num_coordinates=SIZE, noise_multiplier=2.0),
    "product": optimal_product_laplace([1.0 + i for i in range(SIZE)], epsilon=0.5),
    "block": optimal_block_l2([1.0 + i * i for i in range(SIZE)], epsilon=0.5),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_expected_cost_is_that_of_draws(name: str) -> None:
    model, x, y = measured()
    found = measure_sensitivity(model, losses, x, y, grouping=PerLayer())
    bounds, stream = Sensitivity(bounds=(0.3, 0.4)), KeystreamNoise(bytes(48))
    costs = []
    for _ in range(1500):
        flat = torch.zeros(SIZE, dtype=torch.float64)
        frame = Frame.of(UNITS, found.layout, flat) if name == "elliptical" else None
        total = ClippedSum(flat=flat, layout=found.layout, sensitivity=bounds, frame=frame)
        costs.append(float(np.abs(KINDS[name].add(total, stream).flat.numpy()) @ found.weights))
    expected = found.expected_cost(KINDS[name], bounds)
    assert np.mean(costs) == pytest.approx(expected, abs=5 * np.std(costs) / len(costs) ** 0.5)


def test_noise_for_another_model_without_a_size_or_without_examples_is_refused() -> None:
    model, x, y = measured()
    found, bounds = measure_sensitivity(model, losses, x, y), Sensitivity(bounds=(1.0,))
    with pytest.raises(PlanError, match="coordinates"):
        found.expected_cost(L2Laplace(num_coordinates=3, noise_multiplier=1.0), bounds)
    with pytest.raises(PlanError, match="calibrated"):
        found.expected_cost(Gaussian(), bounds)
    with pytest.raises(ArgumentError, match="public examples"):
        measure_sensitivity(model, losses, x[:0], y[:0])
