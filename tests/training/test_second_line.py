"""The experiments behind the rules are few and small: passes through the model and their rows are counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from privet.training.performance import Performance
from privet.training.preflight import preflight
from privet.training.start import privatize
from tests.training.tools import full_batch

SIZE, WIDTH, TOKENS = 16, 6, 11
Losses = Callable[[Tensor, Tensor], Tensor]


class Counted:
    """Counts the passes through a model, and their rows, within some functions of the pre-flight."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = defaultdict(list)
        self._inside = "step"

    def within(self, name: str) -> Any:
        original = getattr(preflight, name)

        def call(*args: Any, **named: Any) -> Any:
            outer, self._inside = self._inside, name
            try:
                return original(*args, **named)
            finally:
                self._inside = outer

        return mock.patch.object(preflight, name, call)

    def note(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.rows[self._inside].append(len(args[0]))


def images() -> tuple[nn.Module, Dataset[Any]]:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))
    return model, TensorDataset(torch.randn(SIZE, WIDTH), torch.arange(SIZE) % 2)


def texts() -> tuple[nn.Module, Dataset[Any]]:
    model = nn.Sequential(nn.Embedding(TOKENS, WIDTH), nn.Flatten(), nn.Linear(4 * WIDTH, 2))
    return model, TensorDataset(torch.randint(0, TOKENS, (SIZE, 4)), torch.arange(SIZE) % 2)


def passes(model: nn.Module, data: Dataset[Any], num_steps: int) -> list[dict[str, list[int]]]:
    """Train; return for every step the rows of each pass."""
    found, counted = [], Counted()
    handle = model.register_forward_pre_hook(counted.note)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = privatize(
        model, optimizer, data, full_batch(num_steps), performance=Performance(physical_batch_size=SIZE)
    )
    with counted.within("_proven"), counted.within("_limits_of"), counted.within("_experiment"), session:
        for step in session.steps():
            counted.rows.clear()
            step.accumulate(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"))
            step.update()
            found.append(dict(counted.rows))
    handle.remove()
    return found


@pytest.mark.parametrize("workload", [images, texts])
def test_experiments_on_a_proven_program_take_three_passes_of_three_rows_at_powers_of_two(
    workload: Callable[[], tuple[nn.Module, Dataset[Any]]],
) -> None:
    found = passes(*workload(), num_steps=9)
    assert found[0]["_proven"] == [3, 2]
    assert found[0]["_limits_of"] == [3]
    for number, rows in enumerate(found):
        is_turn = number & (number - 1) == 0
        assert rows.get("_experiment", []) == ([3, 3, 3] if is_turn else [])
        assert set(rows) <= {"step", "_experiment"} or number == 0
        assert sum(rows["step"]) == SIZE


def test_a_program_of_another_kind_is_tried_again() -> None:
    model, data = images()
    rows: list[list[int]] = []
    counted = Counted()
    handle = model.register_forward_pre_hook(counted.note)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = privatize(model, optimizer, data, full_batch(7), performance=Performance(physical_batch_size=SIZE))
    with counted.within("_experiment"), session:
        for step in session.steps():
            counted.rows.clear()
            scale = 2 if step.index >= 5 else None
            step.accumulate(lambda x, y, scale=scale: _losses(model, x, y, scale))  # type: ignore[misc]
            step.update()
            rows.append(counted.rows["_experiment"])
    handle.remove()
    assert rows[5] + rows[6] == [3, 3, 3]


def _losses(model: nn.Module, x: Tensor, y: Tensor, scale: int | None) -> Tensor:
    losses = functional.cross_entropy(model(x), y, reduction="none")
    return losses if scale is None else losses * scale
