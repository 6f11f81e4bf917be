"""Weights whose rows are sums and multiples of a parameter's: lengths after the way back follow from a few numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.gradients.forms.derived import WayBack

ROWS, SHAPE = 4, (4, 3, 2, 2)
AXES = (1, 2, 3)
Formula = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From a parameter, one number for each of its rows and a table of the same shape to a weight."""


def standardised(v: Tensor, g: Tensor, _: Tensor) -> Tensor:
    variance, mean = torch.var_mean(v, dim=AXES, keepdim=True, correction=0)
    return (v - mean) * (torch.rsqrt(variance * 12 + 1e-4) * g)


def by_batch_norm(v: Tensor, g: Tensor, _: Tensor) -> Tensor:
    rows = functional.batch_norm(v.reshape(1, ROWS, -1), None, None, weight=(g * 0.3).view(-1), training=True, eps=1e-6)
    return rows.reshape_as(v)


KEPT: dict[str, Formula] = {
    "standardised": standardised,
    "by mean and deviation": lambda v, g, _: (v - v.mean(AXES, keepdim=True)) / (v.std(AXES, keepdim=True) + 1e-3) * g,
    "batch norm": by_batch_norm,
    "weight norm": lambda v, g, _: torch._weight_norm(v, g, 0),
    "unit rows": lambda v, g, _: g * v / torch.linalg.vector_norm(v, dim=AXES, keepdim=True),
    "centred": lambda v, g, _: v - v.mean((-3, -2, -1), keepdim=True),
    "scaled": lambda v, g, _: v * g.exp(),
    "shifted": lambda v, g, _: v + g * v.sum(AXES, keepdim=True),
    "scaled by constants": lambda v, g, _: v * g.detach() * 2,
    "flattened": lambda v, g, _: functional.normalize(v.flatten(1), dim=1) * g.view(-1, 1),
}
OTHERS: dict[str, Formula] = {
    "masked": lambda v, g, t: v * t.sign(),
    "with a constant": lambda v, g, t: v + t.detach(),
    "two parameters": lambda v, g, t: v * g + t,
    "squared": lambda v, g, _: v * v * g,
    "bent": lambda v, g, _: v.tanh() * g,
    "turned": lambda v, g, _: v.permute(1, 0, 2, 3) * 2,
    "columns": lambda v, g, _: v - v.mean((0, 2, 3), keepdim=True),
    "one number for all": lambda v, g, _: v / v.norm(),
    "rows that meet": lambda v, g, _: v * torch.softmax(g, 0),
    "another length": lambda v, g, _: v / torch.linalg.vector_norm(v, ord=1, dim=AXES, keepdim=True),
    "the largest": lambda v, g, _: v - v.amax(AXES, keepdim=True),
    "half of a row": lambda v, g, _: v - v[:, :1].sum(AXES, keepdim=True),
    "rows of rows": lambda v, g, _: (v.view(2, 2, 12) - v.view(2, 2, 12).mean(1, keepdim=True)).view(SHAPE),
}


def made(formula: Formula) -> tuple[WayBack, nn.Parameter]:
    torch.manual_seed(0)
    v, g, t = (nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in (SHAPE, (ROWS, 1, 1, 1), SHAPE))
    g.data += 2
    tensor = formula(v, g, t)
    behind = torch.autograd.grad(tensor.sum(), [v, g, t], retain_graph=True, allow_unused=True)
    parameters = tuple(each for each, found in zip((v, g, t), behind, strict=True) if found is not None)
    return WayBack(tensor=tensor, parameters=parameters), v


@pytest.mark.parametrize("name", KEPT)
def test_lengths_of_rows_are_those_of_the_gradients_that_arrive(name: str) -> None:
    way, parameter = made(KEPT[name])
    assert way.rows_of is parameter
    gradients = torch.randn(5, *way.tensor.shape, dtype=torch.float64)
    gradients[3] = 1.0  # all of it along 1
    gradients[4] = way.tensor.detach()
    wanted = way.square_sums(gradients)
    found = way.row_lengths(parameter).square_sums(gradients)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-9 * float(wanted.max()))


@pytest.mark.parametrize("name", KEPT)
def test_no_square_grows_by_more_than_the_gain(name: str) -> None:
    way, _ = made(KEPT[name])
    _, gain = way.measure()
    units = torch.eye(way.tensor.numel(), dtype=torch.float64).view(-1, *way.tensor.shape)
    arrived = torch.cat([found.flatten(1) for found in way.of_each(units) if found is not None], 1)
    assert float(torch.linalg.matrix_norm(arrived, 2).square()) <= float(gain) * (1 + 1e-9)


@pytest.mark.parametrize("name", OTHERS)
def test_weights_of_any_other_kind_are_known_by_their_operations(name: str) -> None:
    way, _ = made(OTHERS[name])
    assert way.rows_of is None


def test_rows_whose_numbers_are_all_equal_are_measured_too() -> None:
    way, parameter = made(KEPT["standardised"])
    parameter.data[1] = 0.5
    way = WayBack(tensor=standardised(parameter, way.parameters[1], parameter), parameters=way.parameters)
    gradients = torch.randn(5, *SHAPE, dtype=torch.float64)
    found = way.row_lengths(parameter).square_sums(gradients)
    torch.testing.assert_close(found, way.square_sums(gradients), rtol=1e-8, atol=0)


def test_what_cancels_on_the_way_back_leaves_the_rounding_of_the_gradients_alone() -> None:
    """Gradients that are nearly constant along a row: squares of what is left, not differences of squares."""
    way, parameter = made(KEPT["standardised"])
    gradients = torch.randn(5, *SHAPE, dtype=torch.float64) + 300
    wanted, lengths = way.square_sums(gradients.float().double()), way.row_lengths(parameter)
    in_single = type(lengths)(direction=lengths.direction.float(), coefficients=lengths.coefficients.float())
    found = in_single.square_sums(gradients.float()).double()
    assert float(((found - wanted) / wanted).abs().max()) < 1e-4  # differences of squares would be off by 1e-2
