"""The watch over the weights: its cost in calls, and what it reaches in an optimizer's state."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from privet.errors import WeightsChanged
from privet.mechanism.noise import Gaussian
from privet.training.weight_watch import fingerprints, guard, holdings
from privet.training.weight_watch.guard import LoopGuard

FILES = {str(Path(module.__file__)) for module in (guard, holdings, fingerprints)}  # type: ignore[arg-type]


def calls_of_a_step(num_layers: int) -> int:
    """Return how many functions of the watch a usual step calls, for a model of so many layers that Adam trains."""
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(num_layers)])
    optimizer = Adam(model.parameters())
    for value in model.parameters():
        value.grad = torch.ones_like(value)
    optimizer.step()
    watch = LoopGuard(model, optimizer, found=lambda: None)
    watch.resume(3)
    total: Any = None
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        is_function = not frame.f_code.co_name.startswith("<")  # comprehensions are calls in old versions of Python
        count += event == "call" and is_function and frame.f_code.co_filename in FILES

    sys.setprofile(note)
    try:
        watch.pass_begins()
        watch.forward_ends()
        watch.before_noise(total, Gaussian())
        with watch.updating(is_kept=False), watch.opened([]):
            pass
    finally:
        sys.setprofile(None)
    return count


def test_a_usual_step_calls_no_function_for_each_tensor() -> None:
    calls_of_a_step(2)  # whatever is imported or cached once is so by now
    few, many = calls_of_a_step(2), calls_of_a_step(40)
    assert few == many > 0


class Odd(Optimizer):
    """Keeps tensors under keys and in containers of all kinds."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.inner = Adam([torch.zeros(2, requires_grad=True)])
        self.inner.state[self.inner.param_groups[0]["params"][0]] = {"kept": torch.zeros(3)}
        for group in self.param_groups:
            for value in group["params"]:
                self.state[value] = {0: torch.zeros(3), 1: torch.zeros(3), "list": [torch.zeros(3), torch.zeros(3)]}
        self.state[torch.zeros(1)] = {"of a stranger": torch.zeros(3)}
        self.state[torch.zeros(2)] = {"of a stranger": torch.zeros(3)}

    def step(self, closure: Any = None) -> Any:
        """Do nothing."""


def kept_by(optimizer: Optimizer) -> list[Tensor]:
    found: list[Tensor] = []
    for kept in (*optimizer.state.values(), *optimizer.inner.state.values()):  # type: ignore[attr-defined]
        for value in kept.values():
            found += value if isinstance(value, list) else [value]
    return found


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("is_counted", [True, False])
def test_every_tensor_of_an_optimizers_state_is_watched(number: int, is_counted: bool) -> None:
    model = nn.Linear(2, 2, bias=False)
    optimizer = Odd(model.parameters())
    watch = LoopGuard(model, optimizer, found=lambda: None)
    kept = kept_by(optimizer)
    assert len(kept) == 7
    (kept[number] if is_counted else kept[number].data).add_(1)
    with pytest.raises(WeightsChanged, match="optimizer"):
        watch.look(waits=True)
