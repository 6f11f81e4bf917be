"""Wide residual networks with standardised filters, and private steps on them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD

from privet.datasets.arrays import ArrayDataset
from privet.errors import ArgumentError
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.models.wide_networks import StandardisedConv2d, WideBlock, wide_residual
from privet.plan import Plan
from privet.training.augmentation import ShiftAndFlip, Views, mean_over_views
from privet.training.performance import Performance
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit


def small() -> nn.Module:
    return wide_residual((3, 8, 8), 4, depth=10, widening=1)


def test_filters_have_mean_zero_and_the_length_of_their_gain_whatever_their_scale() -> None:
    layer = StandardisedConv2d(3, 16, kernel_size=3)
    with torch.no_grad():
        layer.gain.mul_(2.0)
        before = layer.filters.clone()
        layer.weight.mul_(7.0).add_(3.0)
    assert layer.filters.mean((1, 2, 3)).abs().max() < 1e-6
    assert torch.allclose(layer.filters.flatten(1).norm(dim=1), torch.full((16,), 2.0), rtol=1e-3)
    assert torch.allclose(layer.filters, before, atol=1e-3)


@pytest.mark.parametrize("depth", [9, 15, 4, 17])
def test_depths_that_stages_cannot_share_are_refused(depth: int) -> None:
    with pytest.raises(ArgumentError, match="6 n \\+ 4"):
        wide_residual(depth=depth)


def test_a_deeper_network_has_more_blocks_and_shrinks_images_twice() -> None:
    model = wide_residual((3, 32, 32), 10, depth=22, widening=1)
    blocks = [module for module in model.modules() if isinstance(module, WideBlock)]
    assert len(blocks) == 9
    assert [block.first.stride for block in blocks] == [1, 1, 1, 2, 1, 1, 2, 1, 1]
    shapes = []
    states = torch.zeros(1, 16, 32, 32)
    for block in blocks:
        states = block(states)
        shapes.append(tuple(states.shape[1:]))
    assert shapes == [(16, 32, 32)] * 3 + [(32, 16, 16)] * 3 + [(64, 8, 8)] * 3


def test_a_private_step_on_views_moves_the_weights_by_the_sum_of_clipped_gradients() -> None:
    torch.manual_seed(0)
    model = small().double()
    data = ArrayDataset(features=torch.randn(6, 3, 8, 8, dtype=torch.float64), labels=torch.arange(6) % 4)
    plan = Plan(
        sampling=Poisson(rate=1.0, steps=1, expected_batch_size=6.0),
        clipping=Threshold(norm=0.1),
        noise=Gaussian(noise_multiplier=1e-9),
        delta=1e-5,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )

    def losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, labels, reduction="none")

    expected = torch.zeros(sum(value.numel() for value in model.parameters()), dtype=torch.float64)
    for features, labels in zip(data.features, data.labels, strict=True):
        loss = losses(model(features.unsqueeze(0)), labels.unsqueeze(0)).mean()
        found = torch.cat([value.flatten() for value in torch.autograd.grad(loss, list(model.parameters()))])
        expected += found * (0.1 / found.norm()).clamp(max=1.0)
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    views = Views(dataset=data, transform=ShiftAndFlip(max_shift=0, flip=False), num_views=2)
    loss_of = mean_over_views(lambda inputs, targets: losses(model(inputs), targets))
    with privatize(
        model, SGD(model.parameters(), lr=1.0), views, plan, performance=Performance(physical_batch_size=4), seed=0
    ) as session:
        for step in session.steps():
            step.accumulate(loss_of)
            step.update()
    moved = before - nn.utils.parameters_to_vector(model.parameters()).detach()
    assert torch.allclose(moved * 6, expected, atol=1e-6)
