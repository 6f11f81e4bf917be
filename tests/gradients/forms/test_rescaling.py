"""Gradients in the units of a geometry: the engine's norms and sums are those of gradients written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.gradients.forms.per_example import Outer
from privet.gradients.forms.rescaling import rescaled
from privet.mechanism.clipping import Threshold
from privet.mechanism.geometry import Diagonal, Factored, Factors, Frame, Geometry, PerGroup
from privet.mechanism.grouping import OneGroup, PerLayer
from privet.mechanism.layout import Layout
from privet.mechanism.sampling import FullBatch
from privet.mechanism.shaped_noise import EllipticalGaussian
from privet.plan import Plan
from privet.training.performance import Performance
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.table(ids) @ self.table.weight.mT).mean(1)


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    images, ids = torch.randn(9, 4, 6, 6), torch.randint(0, 11, (9, 5))
    return {
        "linear": (nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 11)), torch.randn(9, 12)),
        "sequence": (nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 11), Mean()), torch.randn(9, 7, 12)),
        "convolution": (
            nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 2, groups=2), nn.Flatten(), nn.Linear(72, 11)),
            images,
        ),
        "table": (nn.Sequential(nn.Embedding(11, 6), Mean(), nn.Linear(6, 11)), ids),
        "tied table": (Tied(), ids),
        "norm layer": (nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, 11)), torch.randn(9, 12)),
    }


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def geometry(kind: str, layout: Layout) -> Geometry:
    generator = torch.Generator().manual_seed(5)

    def units(count: int) -> tuple[float, ...]:
        return tuple(torch.exp(torch.randn(count, generator=generator)).tolist())

    if kind == "diagonal":
        return Diagonal(coordinate_units=units(layout.num_coordinates))
    if kind == "per group":
        return PerGroup(group_units=units(layout.num_groups))
    return Factored(
        rows=tuple(units(shape[0]) for shape in layout.shapes),
        columns=tuple(units(shape[1]) if len(shape) > 1 else (1.0,) for shape in layout.shapes),
    )


def expected(model: nn.Module, x: Tensor, labels: Tensor, frame: Frame, bounds: tuple[float, ...]) -> Tensor:
    """Return the sum of gradients, each clipped in the units, in plain coordinates."""
    layout = frame.layout
    groups = torch.cat([torch.full((size,), g) for g, size in zip(layout.groups, layout.sizes, strict=True)])
    total = torch.zeros(layout.num_coordinates, dtype=torch.float64)
    for one, label in zip(x, labels, strict=True):
        loss = functional.cross_entropy(model(one.unsqueeze(0)), label.unsqueeze(0))
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
        white = frame.whitened(gradient)
        for group, bound in enumerate(bounds):
            mine = groups == group
            total[mine] += gradient[mine] * (bound / white[mine].norm()).clamp(max=1.0)
    return total


@pytest.mark.parametrize("engine", [BookKeeping(), Functional()], ids=["bookkeeping", "functional"])
@pytest.mark.parametrize("kind", ["factored", "diagonal", "per group"])
@pytest.mark.parametrize("name", list(networks()))
def test_shaped_clipping_is_clipping_of_gradients_written_out(name: str, kind: str, engine: Engine) -> None:
    model, x = networks()[name]
    model = model.double()
    x = x.double() if x.is_floating_point() else x
    labels = torch.arange(9) % 11
    grouping = PerLayer() if kind == "per group" else OneGroup()
    layout = Layout.of([(key, tuple(value.shape)) for key, value in model.named_parameters()], grouping)
    shape, bounds = geometry(kind, layout), (0.2,) * layout.num_groups
    plan = Plan(
        sampling=FullBatch(steps=2, expected_batch_size=9),
        clipping=Threshold(norm=bounds),
        noise=EllipticalGaussian(geometry=shape, noise_multiplier=1e-9),
        delta=1e-5,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
        grouping=grouping,
    )
    frame = Frame.of(shape, layout, torch.zeros(layout.num_coordinates, dtype=torch.float64))
    truth = expected(model, x, labels, frame, bounds)
    dataset = list(zip(x, labels, strict=True))
    optimizer = SGD(model.parameters(), lr=0.0)
    with privatize(
        model, optimizer, dataset, plan, performance=Performance(physical_batch_size=4, engine=engine), seed=1
    ) as session:
        for step in session.steps():
            for some, wanted in step.microbatches():
                step.backward(functional.cross_entropy(model(some), wanted, reduction="none"))
            step.update()
            found = torch.cat([value.grad.reshape(-1) for value in model.parameters() if value.grad is not None]) * 9
            assert torch.allclose(found, truth, rtol=1e-6, atol=1e-7)


def test_factors_of_a_linear_map_are_rescaled_and_not_multiplied_out() -> None:
    part = Outer(inputs=torch.randn(3, 2, 5), out_grads=torch.randn(3, 2, 4))
    factors = Factors(rows=torch.rand(4) + 0.5, columns=torch.rand(5) + 0.5, entries=None)
    found = rescaled(part, factors, (4, 5))
    assert isinstance(found, Outer)
    assert torch.allclose(found.in_full(), factors.over(part.in_full()))
