"""Both engines against a per-example loop in double precision, over every supported way of using a parameter."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn

from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.mechanism.clipping import Threshold
from privet.mechanism.grouping import OneGroup, PerLayer, PerParameter
from tests.gradients.reference import engine_clipped_sum, loop_clipped_sum, median_norm, relative_error
from tests.gradients.zoo import CASES, Case, squared

BATCH = 9
PAIRS = [
    pytest.param(engine, case, id=f"{type(engine).__name__}-{case.name}")
    for case in CASES
    for engine in (BookKeeping(), Functional())
    if case.functional or isinstance(engine, BookKeeping)
]


@functools.cache
def by_loop(case: Case) -> tuple[nn.Module, Tensor, Threshold, Tensor]:
    """A model, its inputs, a bound that clips about half of them, and the clipped sum by the loop."""
    torch.manual_seed(0)
    model, inputs = case.build(), case.inputs(BATCH)
    clipping = Threshold(norm=median_norm(model, squared, inputs))
    return model, inputs, clipping, loop_clipped_sum(model, squared, inputs, clipping)


def test_the_zoo_is_large_and_its_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 75


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(("engine", "case"), PAIRS)
@pytest.mark.parametrize("physical_batch_size", [1, 7, None])
def test_clipped_sum_equals_the_per_example_loop(engine: Engine, case: Case, physical_batch_size: int | None) -> None:
    model, inputs, clipping, expected = by_loop(case)
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-5)):
        typed = inputs.to(dtype) if inputs.is_floating_point() else inputs
        found = engine_clipped_sum(
            engine, model.to(dtype), squared, typed, clipping, physical_batch_size=physical_batch_size
        )
        assert relative_error(found, expected) <= tolerance


@pytest.mark.parametrize("grouping", [OneGroup(), PerLayer(), PerParameter()], ids=lambda g: type(g).__name__)
@pytest.mark.parametrize("name", ["residual_inplace", "bare_parameters", "tied_linear", "transformer_layer"])
def test_groups_are_clipped_each_by_its_own_norm(grouping: OneGroup | PerLayer | PerParameter, name: str) -> None:
    torch.manual_seed(1)
    case = next(case for case in CASES if case.name == name)
    model, inputs = case.build().double(), case.inputs(BATCH)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    clipping = Threshold(norm=median_norm(model, squared, inputs))
    expected = loop_clipped_sum(model, squared, inputs, clipping, grouping)
    found = engine_clipped_sum(BookKeeping(), model, squared, inputs, clipping, grouping)
    assert relative_error(found, expected) <= 1e-9
