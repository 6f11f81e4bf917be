"""Where no rule forms gradients, a backward pass for each example does, and no example spoils another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privet as pv
from privet.errors import UnsupportedModel
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.mechanism.clipping import Threshold
from tests.gradients.reference import engine_clipped_sum, loop_clipped_sum, relative_error
from tests.gradients.zoo import squared


class Written(nn.Module):
    """A parameter that is written into a part of the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Parameter(torch.randn(2)), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.clone()
        inputs[:, 1:3] = self.token
        found: Tensor = self.head(inputs).log()
        return found


@pytest.mark.parametrize("physical_batch_size", [1, 2, 3, None])
def test_a_parameter_written_into_examples_is_exact(physical_batch_size: int | None) -> None:
    torch.manual_seed(0)
    model, inputs = Written().double(), torch.rand(7, 4, dtype=torch.float64)
    nn.init.constant_(model.head.bias, 9.0)
    expected = loop_clipped_sum(model, squared, inputs, Threshold(norm=0.3))
    found = engine_clipped_sum(
        BookKeeping(), model, squared, inputs, Threshold(norm=0.3), physical_batch_size=physical_batch_size
    )
    assert relative_error(found, expected) <= 1e-9


def _sums(model: nn.Module, inputs: Tensor) -> Tensor:
    plan = pv.Plan(
        sampling=pv.sampling.FullBatch(steps=2, expected_batch_size=len(inputs)),
        clipping=Threshold(norm=0.3), noise=pv.Gaussian(noise_multiplier=1.0), delta=1e-5,
        adjacency=pv.Adjacency.ADD_REMOVE, unit=pv.Unit.RECORD,
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    found = []
    with pv.privatize(model, optimizer, TensorDataset(inputs), plan, seed=0) as session:
        for step in session.steps():
            step.accumulate(lambda part: model(part).square().sum(1))
            found.append(step._clipped.flat.clone())
            step.update()
        assert session.physical_batch_size > 1  # single examples were for the step that needed them
    assert torch.allclose(found[0], found[1], rtol=1e-9)
    return found[0]


def test_an_example_whose_gradient_is_not_finite_adds_zero_and_takes_nothing_from_others() -> None:
    torch.manual_seed(0)
    model, inputs = Written().double(), torch.rand(6, 4, dtype=torch.float64)
    nn.init.constant_(model.head.bias, 9.0)
    spoilt = torch.cat([inputs[:4], torch.full((1, 4), float("inf"), dtype=torch.float64), inputs[4:]])
    assert relative_error(_sums(model, spoilt), _sums(model, inputs)) <= 1e-9


class Leaking(torch.autograd.Function):
    """The gradient that it gives to its weight holds all examples, whatever comes back to it."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return inputs * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        inputs, weight = ctx.saved_tensors
        return gradient * weight, inputs.sum(0)


class Leak(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.token = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(2))

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = Leaking.apply(inputs, self.weight)
        found = found.clone()
        found[:, 1:3] = self.token
        return found


def test_a_function_that_gives_all_examples_to_a_parameter_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModel, match="custom autograd function LeakingBackward computes the gradient of a"):
        engine_clipped_sum(BookKeeping(), Leak().double(), squared, torch.rand(5, 4).double(), Threshold(norm=0.3))


class Mixing(Written):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs - inputs.mean(0))


def test_a_program_that_mixes_examples_is_refused_before_any_backward_pass() -> None:
    with pytest.raises(UnsupportedModel, match="reduces over the examples"):
        engine_clipped_sum(BookKeeping(), Mixing(), squared, torch.rand(5, 4), Threshold(norm=0.3))
