"""The constants that a convex network carries hold for every input, label and pair of weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from privet.errors import ArgumentError
from privet.models.convex_losses import ConvexLoss, OneVsRestLogistic, RadialSquared, SoftmaxCrossEntropy
from privet.models.convex_relu import BoundedFeatures, ConvexRelu, FeatureBound, UnitFeatures

LOSSES: dict[str, ConvexLoss] = {
    "softmax": SoftmaxCrossEntropy(),
    "logistic": OneVsRestLogistic(),
    "clipped-logistic": OneVsRestLogistic(largest_residual=0.3),
    "clipped-squared": RadialSquared(largest_residual=0.7),
}
BOUNDS: dict[str, FeatureBound] = {"unit": UnitFeatures(radius=1.5), "bounded": BoundedFeatures(radius=0.8)}
losses = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
bounds = pytest.mark.parametrize("features", BOUNDS.values(), ids=BOUNDS.keys())


def network(loss: ConvexLoss, features: FeatureBound | None = None, num_outputs: int = 3) -> ConvexRelu:
    torch.manual_seed(2)
    return ConvexRelu((5,), num_outputs, num_gates=7, loss=loss, features=features).double()


def gradient(model: ConvexRelu, weights: Tensor, record: Tensor, label: int) -> Tensor:
    """Return the gradient of one record's loss at these weights, by autograd alone."""
    given_weights = weights.clone().requires_grad_()
    outputs = torch.func.functional_call(model, {"linear.weight": given_weights}, (record[None],))
    return torch.autograd.grad(model.loss.losses(outputs, torch.tensor([label])).sum(), given_weights)[0]


@losses
@bounds
@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), spread=st.sampled_from([0.01, 1.0, 30.0]), scale=st.sampled_from([1e-20, 1.0, 1e15]))
def test_gradients_are_bounded_monotone_and_smooth(
    loss: ConvexLoss, features: FeatureBound, seed: int, spread: float, scale: float
) -> None:
    model = network(loss, features)
    rng = torch.Generator().manual_seed(seed)
    record = torch.randn(5, dtype=torch.float64, generator=rng) * scale
    first, second = (torch.randn(21, 5, dtype=torch.float64, generator=rng) * spread for _ in range(2))
    label = seed % 3
    at_first, at_second = gradient(model, first, record, label), gradient(model, second, record, label)
    for found in (at_first, at_second):
        assert found.norm() <= model.gradient_bound * (1 + 1e-12)
    moved, turned = first - second, at_first - at_second
    assert (moved * turned).sum() >= -1e-12 * moved.norm()
    assert turned.norm() <= model.smoothness * moved.norm() * (1 + 1e-9) + 1e-14


@losses
@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), share=st.floats(0.01, 1.0), ridge=st.floats(0, 1))
def test_a_step_brings_two_models_closer(loss: ConvexLoss, seed: int, share: float, ridge: float) -> None:
    model = network(loss)
    rate = share * 2 / (2 * ridge + model.smoothness)
    rng = torch.Generator().manual_seed(seed)
    records = torch.randn(4, 5, dtype=torch.float64, generator=rng)
    first, second = (3 * torch.randn(21, 5, dtype=torch.float64, generator=rng) for _ in range(2))

    def stepped(weights: Tensor) -> Tensor:
        mean = sum(gradient(model, weights, record, label % 3) for label, record in enumerate(records)) / 4
        return weights - rate * (mean + ridge * weights)

    assert (stepped(first) - stepped(second)).norm() <= (1 - rate * ridge) * (first - second).norm() + 1e-12


def test_a_step_on_flatly_clipped_softmax_drives_two_models_apart() -> None:
    logits = torch.tensor(
        [[1.23764755, 3.92748001, 1.71371008], [-2.64304848, 5.68671179, 3.10186681]], dtype=torch.float64
    )
    residuals = logits.softmax(1) - torch.tensor([1.0, 0, 0], dtype=torch.float64)
    clipped = residuals * (0.909079 / residuals.norm(dim=1, keepdim=True)).clamp_max(1)
    moved, turned = logits[0] - logits[1], clipped[0] - clipped[1]
    assert functional.cosine_similarity(moved, turned, dim=0).item() == pytest.approx(-0.377, abs=5e-4)
    assert (moved - 0.01 * turned).norm() > moved.norm()


@pytest.mark.parametrize(
    ("loss", "num_outputs", "bound", "smoothness"),
    [
        (SoftmaxCrossEntropy(), 10, 2 * math.sqrt(2), 2.0),
        (OneVsRestLogistic(), 10, 2 * math.sqrt(10), 1.0),
        (OneVsRestLogistic(largest_residual=0.25), 4, 1.0, 1.0),
        (OneVsRestLogistic(largest_residual=0.25), 1, 0.5, 1.0),
        (RadialSquared(largest_residual=0.5), 10, 1.0, 4.0),
    ],
    ids=["softmax", "logistic", "clipped", "one-output", "squared"],
)
def test_the_constants_are_the_proven_ones(loss: ConvexLoss, num_outputs: int, bound: float, smoothness: float) -> None:
    model = network(loss, UnitFeatures(radius=2.0), num_outputs)
    assert model.gradient_bound == pytest.approx(bound)
    assert model.smoothness == pytest.approx(smoothness)


@losses
def test_a_loss_is_the_integral_of_its_bounded_residual(loss: ConvexLoss) -> None:
    outputs = torch.linspace(-6, 6, 2001, dtype=torch.float64)[:, None].repeat(1, 3).requires_grad_()
    found = loss.losses(outputs, torch.zeros(2001, dtype=torch.long))
    (slopes,) = torch.autograd.grad(found.sum(), outputs)
    rises = torch.cumulative_trapezoid(slopes.sum(1), outputs[:, 0].detach())
    assert np.allclose((found[1:] - found[0]).detach(), rises, atol=1e-4)


@bounds
def test_the_output_is_that_of_the_written_out_features(features: FeatureBound) -> None:
    model = network(SoftmaxCrossEntropy(), features)
    torch.nn.init.normal_(model.linear.weight)
    inputs = torch.randn(6, 5, dtype=torch.float64)
    weights = model.linear.weight.view(7, 3, 5)
    for row, outputs in zip(inputs, model(inputs), strict=True):
        is_open = (model.gates @ row >= 0).double()
        written = is_open[:, None] * row[None]
        if isinstance(features, UnitFeatures):
            written = written * features.radius / written.norm()
        else:
            written = written * min(1, features.radius / row.norm()) / math.sqrt(7)
        assert written.norm() <= features.radius * (1 + 1e-12)
        assert torch.allclose(torch.einsum("gko,go->k", weights, written), outputs)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, 1e38])
@bounds
def test_no_input_whatever_breaks_the_bound(features: FeatureBound, value: float) -> None:
    torch.manual_seed(3)
    model = ConvexRelu((5,), 3, num_gates=7, features=features)
    outputs = model.losses(torch.full((1, 5), value), torch.tensor([1]))
    (found,) = torch.autograd.grad(outputs.sum(), model.linear.weight)
    assert found.isfinite().all()
    assert found.norm() <= model.gradient_bound * (1 + 1e-5)


def test_impossible_networks_are_refused() -> None:
    with pytest.raises(ArgumentError, match="two outputs or more"):
        ConvexRelu((5,), 1)
    with pytest.raises(ArgumentError, match="input_shape"):
        ConvexRelu((), 2)
    with pytest.raises(ArgumentError, match="radius"):
        UnitFeatures(radius=0)
    with pytest.raises(ArgumentError, match="largest_residual"):
        OneVsRestLogistic(largest_residual=1.5)
    with pytest.raises(ArgumentError, match="largest_residual"):
        RadialSquared(largest_residual=0.0)
