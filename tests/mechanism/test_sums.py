"""A private sum writes gradients once, in the parameters' shapes and types, divided by a public constant."""

from __future__ import annotations

import pytest
import torch
from dp_accounting import GaussianDpEvent
from torch import nn

from privet.errors import ArgumentError
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.sums import ClippedSum, PrivateSum


def setting(dtype: torch.dtype = torch.float32) -> tuple[list[nn.Parameter], PrivateSum]:
    parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in ((2, 3), (), (4,))]
    layout = Layout.of([(str(i), tuple(p.shape)) for i, p in enumerate(parameters)], OneGroup())
    flat = torch.arange(float(layout.num_coordinates))
    return parameters, PrivateSum(flat=flat, layout=layout, event=GaussianDpEvent(1.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gradients_are_the_parts_of_the_sum_over_the_divisor(dtype: torch.dtype) -> None:
    parameters, private = setting(dtype)
    private.write_gradients(parameters, divisor=4)
    joined = torch.cat([value.grad.reshape(-1) for value in parameters if value.grad is not None])
    assert torch.equal(joined, (torch.arange(11.0) / 4).to(dtype))
    assert all(value.grad is not None and value.grad.shape == value.shape for value in parameters)
    assert all(value.grad is not None and value.grad.dtype == dtype for value in parameters)


def test_written_gradients_do_not_follow_the_buffer_into_the_next_step() -> None:
    # the buffer holds the next step's sum before noise: a gradient that shares its memory would show that sum
    parameters, private = setting()
    private.write_gradients(parameters, divisor=4)
    written = [value.grad.clone() for value in parameters if value.grad is not None]
    private.flat.fill_(777.0)
    assert all(torch.equal(value.grad, before) for value, before in zip(parameters, written, strict=True))


@pytest.mark.parametrize("divisor", [0, -1.0, float("nan"), float("inf"), None, True])
def test_a_divisor_that_is_no_positive_number_is_refused_and_nothing_written(divisor: object) -> None:
    parameters, private = setting()
    with pytest.raises(ArgumentError, match="divisor"):
        private.write_gradients(parameters, divisor=divisor)  # type: ignore[arg-type]
    assert all(value.grad is None for value in parameters)


def test_a_sum_for_other_parameters_is_refused() -> None:
    parameters, private = setting()
    with pytest.raises(ValueError):
        private.write_gradients(parameters[:2], divisor=1)


def test_a_sum_before_noise_has_no_way_to_an_optimizer() -> None:
    layout = Layout.of([("weight", (3,))], OneGroup())
    clipped = ClippedSum(flat=torch.zeros(3), layout=layout, sensitivity=Sensitivity(bounds=(1.0,)))
    assert not hasattr(clipped, "write_gradients")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_in_kept_memory_are_those_in_new_memory_bit_for_bit(dtype: torch.dtype) -> None:
    parameters, private = setting(dtype)
    private.flat = torch.randn(private.layout.num_coordinates, dtype=dtype, generator=torch.Generator().manual_seed(0))
    memory = torch.full_like(private.flat, 7.0)
    private.write_gradients(parameters, divisor=3, divided=lambda flat, by: torch.div(flat, by, out=memory))
    assert torch.equal(memory, private.flat / 3)
    assert all(value.grad is not None and value.grad.dtype == dtype for value in parameters)
    assert parameters[0].grad is not None
    assert parameters[0].grad.data_ptr() == memory.data_ptr()
