"""Tensors that are no ordinary ones: where their numbers lie is watched all the same, and memory let go is not read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.testing._internal.two_tensor import TwoTensor

from privet.errors import WeightsChanged
from privet.training.weight_watch.guard import LoopGuard

# Memory of this size is given back to the system when it is let go, and whoever reads it there is ended.
_SIZE = 1 << 20


def uncounted() -> Tensor:
    """Return a tensor of which torch counts no changes."""
    with torch.inference_mode():
        return torch.zeros(_SIZE)


def wrapped() -> Tensor:
    found: Tensor = TwoTensor(torch.zeros(_SIZE), torch.zeros(_SIZE))
    return found


def give_other_data(tensor: Tensor) -> None:
    tensor.data = torch.ones(_SIZE)


def let_memory_go(tensor: Tensor) -> None:
    tensor.untyped_storage().resize_(0)


def replace_inner(tensor: Tensor) -> None:
    tensor.b = torch.ones(_SIZE)  # type: ignore[attr-defined]


def inner(change: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    return lambda tensor: change(tensor.b)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (uncounted, give_other_data),
        (uncounted, let_memory_go),
        (wrapped, replace_inner),
        (wrapped, inner(give_other_data)),
        (wrapped, inner(let_memory_go)),
    ],
    ids=["uncounted-data", "uncounted-let-go", "inner-replaced", "inner-data", "inner-let-go"],
)
def test_numbers_that_lie_elsewhere_are_found(make: Callable[[], Tensor], change: Callable[[Tensor], None]) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("table", table := make())
    watch = LoopGuard(model, SGD(model.parameters(), lr=0.1), found=lambda: None)
    watch.look(waits=True)
    change(table)
    with pytest.raises(WeightsChanged, match=r"'table'.*Tensors lie elsewhere"):
        watch.look(waits=True)


def test_an_update_may_put_other_numbers_into_a_wrapper_which_are_watched_from_then_on() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("table", table := wrapped())
    watch = LoopGuard(model, SGD(model.parameters(), lr=0.1), found=lambda: None)
    with watch.updating(is_kept=True):
        replace_inner(table)
    watch.look(waits=True)
    table.b.numpy()[3] = 2.0  # type: ignore[attr-defined]
    with pytest.raises(WeightsChanged, match="'table'"):
        watch.look(waits=True)
