"""Laws of the room that measured norms leave for rounding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch

from privet.gradients.norms.strategies import Squares, hedged, total_of

HALVES = [torch.bfloat16, torch.float16]


def weighted_length(rows: torch.Tensor, weight: float, dtype: torch.dtype) -> float:
    """The length that one example really adds when its weighted factor is rounded to ``dtype``."""
    return float((rows.double() * weight).to(dtype).double().norm())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_products_of_half_precision_leave_room_for_their_rounding(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    worst = 0.0
    for _ in range(300):
        rows = torch.randn(40, generator=generator).to(dtype)
        squares = rows.float().square().sum().reshape(1)
        measured = float(hedged(squares.clone(), squares.clone(), 1, rows).safe().sqrt())
        worst = max(worst, weighted_length(rows, 1 / measured, dtype))
    # All forty numbers rounded away from zero at once is what the room is made for.
    upwards = torch.full((1000,), 1 + 2.0**-7).to(torch.bfloat16)
    squares = upwards.float().square().sum().reshape(1)
    measured = float(hedged(squares.clone(), squares.clone(), 1, upwards).safe().sqrt())
    assert measured >= float(upwards.double().norm()) * (1 + 2.0**-8)
    assert worst <= 1.0


def test_full_precision_needs_no_room_but_a_floor_under_cancellation() -> None:
    rows = torch.ones(8)
    exact = hedged(torch.tensor([4.0]), torch.tensor([8.0]), 1, rows).safe()
    assert exact.tolist() == [4.0]
    cancelled = hedged(torch.tensor([0.0]), torch.tensor([8.0]), 1, rows).safe()
    assert float(cancelled) > 0


@contextmanager
def multiplying_with(bits: str, operation: Any) -> Iterator[None]:
    before = operation.fp32_precision
    operation.fp32_precision = bits
    try:
        yield
    finally:
        operation.fp32_precision = before


@pytest.mark.parametrize(("bits", "room"), [("bf16", 2.0**-6), ("tf32", 2.0**-8), ("ieee", 0.0)])
def test_a_processor_that_may_multiply_with_fewer_bits_leaves_room(bits: str, room: float) -> None:
    one, rows, processor = torch.tensor([1.0]), torch.ones(8), cast("Any", torch.backends.mkldnn)
    with multiplying_with(bits, processor.matmul):
        assert float(hedged(one.clone(), one.clone(), 1, rows).safe()) == 1 + room
        assert float(hedged(one.double(), one.double(), 1, rows.double()).safe()) == 1
    with multiplying_with(bits, processor.conv):
        assert float(hedged(one.clone(), one.clone(), 1, rows).safe()) == 1
        assert float(hedged(one.clone(), one.clone(), 1, rows, convolves=True).safe()) == 1 + room


def test_rooms_of_different_precision_add_up_each_with_its_own() -> None:
    half, full = torch.ones(2, dtype=torch.bfloat16), torch.ones(2)
    parts = [
        hedged(torch.tensor([1.0]), torch.tensor([1.0]), 1, half),
        hedged(torch.tensor([2.0]), torch.tensor([2.0]), 1, full),
        Squares(sums=torch.tensor([4.0])),
    ]
    assert float(total_of(parts)) == pytest.approx(7 + 2.0**-6)
