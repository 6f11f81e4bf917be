"""Calls of a known program are not examined again; whatever differs from the run that was examined is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.errors import UnsupportedModel
from privet.gradients.capture.observer import Observer
from privet.gradients.capture.recorded import Use
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.forms.per_example import Outer
from privet.gradients.norms.planner import Planner
from privet.gradients.rules.example_axis import ExampleAxis
from privet.gradients.rules.layer_rules import RULES
from privet.gradients.rules.rule_tools import Operand
from privet.mechanism.clipping import Threshold
from tests.gradients.reference import LossFunction, add, loop_clipped_sum, relative_error, started
from tests.gradients.zoo import CASES, Case, squared

SIZE = 6
NORM = Threshold(norm=0.5)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)).double()


def images(seed: int) -> Tensor:
    return torch.randn(SIZE, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all operations that were examined, and of every time the planner was asked."""
    names: list[str] = []
    observe, choose = Observer.observe, Planner.choose

    def observed(self: Observer, call: Any, result: Any) -> Any:
        names.append(call.function.__name__)
        return observe(self, call, result)

    def chosen(self: Planner, part: Any, **options: Any) -> Any:
        names.append("planner")
        return choose(self, part, **options)

    monkeypatch.setattr(Observer, "observe", observed)
    monkeypatch.setattr(Planner, "choose", chosen)
    return names


def sums_of(model: nn.Module, loss: LossFunction, batches: list[Tensor], log: list[str]) -> list[tuple[float, int]]:
    """For each batch, how far the engine's sum is from the loop's, and how much was examined for it."""
    running, into, rule = started(BookKeeping(), model, NORM)
    found = []
    try:
        for batch in batches:
            log.clear()
            into.clear()
            add(running, model, batch, rule, into, loss)
            num_examined = len(log)
            found.append((relative_error(into.flat, loop_clipped_sum(model, loss, batch, NORM)), num_examined))
    finally:
        running.close()
    return found


def normalised() -> nn.Sequential:
    """A group norm, which hands out its statistics, and a layer norm, whose parameters are named arguments."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 3)]
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("build", [network, normalised])
def test_calls_of_a_known_program_are_not_examined_and_its_sums_stay_right(
    build: Callable[[], nn.Module], examined: list[str]
) -> None:
    found = sums_of(build(), squared, [images(seed) for seed in range(5)], examined)
    assert max(error for error, _ in found) <= 1e-9
    assert [bool(number) for _, number in found] == [True, True, False, False, False]  # proven, then prepared


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_every_way_of_using_a_parameter_stays_right_when_it_is_known(case: Case) -> None:
    torch.manual_seed(0)
    model = case.build().double()
    batches = [inputs.double() if inputs.is_floating_point() else inputs for inputs in map(case.inputs, [5] * 4)]
    found = sums_of(model, squared, batches, [])
    assert max(error for error, _ in found) <= 1e-6


class Switched(nn.Module):
    """Two layers and a constant beside them, which a switch replaces after some batches."""

    def __init__(self, later: Callable[[Switched, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.other = nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.constant, self.is_late, self.later = torch.ones(3), False, later

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        beside = self.later(self, hidden) if self.is_late else self.constant
        found: Tensor = self.last(hidden + beside) + self.other(hidden)
        return found


SWITCHES = {
    "a weight that was made earlier": lambda model, hidden: model.kept,
    "a leaf that requires gradients": lambda model, hidden: torch.ones(3, requires_grad=True),
    "a layer": lambda model, hidden: model.other(hidden),
    "another type": lambda model, hidden: torch.ones(3, dtype=torch.int64),
    "another shape": lambda model, hidden: torch.ones(len(hidden), 3),
    "no gradients": lambda model, hidden: model.first(hidden.detach()[:, :1].expand(-1, 4)).detach(),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_known_program_that_changes_is_examined_and_exact_or_refused(name: str, examined: list[str]) -> None:
    model = Switched(SWITCHES[name])
    model.kept = model.other.weight.sum(0) * 1.0
    running, into, rule = started(BookKeeping(), model, NORM)
    batches = [torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    for number, batch in enumerate(batches):
        model.is_late = number >= 4
        model.kept = model.other.weight.sum(0) * 1.0
        examined.clear()
        into.clear()
        try:
            add(running, model, batch, rule, into, squared)
        except UnsupportedModel:
            running.close()
            assert model.is_late
            return
        assert bool(examined) == (number < 2 or model.is_late)
        assert relative_error(into.flat, _loop(model, batch)) <= 1e-4


def _loop(model: Switched, batch: Tensor) -> Tensor:
    parameters = list(model.parameters())
    total = torch.zeros(sum(value.numel() for value in parameters), dtype=torch.float64)
    for index in range(len(batch)):
        model.kept = model.other.weight.sum(0) * 1.0
        found = torch.autograd.grad(squared(model, batch[index : index + 1]).sum(), parameters)
        flat = torch.cat([part.flatten() for part in found]).double()
        total += flat * min(1.0, 0.5 / float(flat.norm()))
    return total


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])  # of the second no call is seen
def test_a_known_layer_that_is_called_without_gradients_is_examined(mode: Callable[[], Any]) -> None:
    model = network()
    running, into, rule = started(BookKeeping(), model, NORM)
    for seed in range(4):
        add(running, model, images(seed), rule, into, squared)

    def frozen_below(model: nn.Module, inputs: Tensor) -> Tensor:
        first, *rest = model  # type: ignore[misc]
        with mode():
            hidden = first(inputs)
        losses: Tensor = nn.Sequential(*rest)(hidden.clone()).square().sum(1)
        return losses

    with pytest.raises(UnsupportedModel, match=r"0\.bias.*took no part"):
        add(running, model, images(9), rule, into, frozen_below)


def test_another_clipping_bound_needs_no_new_examination(examined: list[str]) -> None:
    model = network()
    running, into, rule = started(BookKeeping(), model, NORM)
    for seed in range(4):
        add(running, model, images(seed), rule, into, squared)
    examined.clear()
    into.clear()
    halved = Threshold(norm=0.25).for_groups(1)
    into.sensitivity = halved.sensitivity
    add(running, model, images(9), halved, into, squared)
    assert not examined
    assert relative_error(into.flat, loop_clipped_sum(model, squared, images(9), Threshold(norm=0.25))) <= 1e-9


def test_a_rule_that_gives_a_known_use_another_shape_is_measured_as_that_shape() -> None:
    is_late = False

    def split(use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
        found = RULES[functional.linear](use, axis, batch_size)
        if not is_late:
            return found
        source, part = found[0]
        assert isinstance(part, Outer)
        inputs = torch.cat([part.inputs, part.inputs], 1)  # the second position adds nothing
        out_grads = torch.cat([part.out_grads, torch.zeros_like(part.out_grads)], 1)
        return [(source, Outer(inputs=inputs, out_grads=out_grads)), *found[1:]]

    torch.manual_seed(0)
    model = nn.Linear(5, 4).double()
    running, into, rule = started(BookKeeping(rules={**RULES, functional.linear: split}), model, NORM)
    for seed in range(6):
        is_late = seed == 5
        batch = torch.randn(SIZE, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        into.clear()
        add(running, model, batch, rule, into, squared)
        assert relative_error(into.flat, loop_clipped_sum(model, squared, batch, NORM)) <= 1e-9
