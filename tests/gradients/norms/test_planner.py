"""Choosing strategies by trying them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.bookkeeping import BookKeeping, RunningBookKeeping
from privet.gradients.forms.per_example import Outer, PerExample
from privet.gradients.norms.budgets import Budget, Fast, Lean
from privet.gradients.norms.planner import Planner
from privet.gradients.norms.strategies import Gram, NormOnly, RankOne, Squares, Store
from privet.gradients.norms.timing import compared, num_bytes
from privet.mechanism.clipping import Threshold
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.sums import ClippedSum


def outer(batch: int = 6, length: int = 5, width_in: int = 7, width_out: int = 3) -> Outer:
    generator = torch.Generator().manual_seed(0)
    return Outer(
        inputs=torch.randn(batch, length, width_in, generator=generator),
        out_grads=torch.randn(batch, length, width_out, generator=generator),
    )


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A strategy that fails on every call and counts them."""

    calls: list[int] = field(default_factory=list, compare=False)
    name: str = "broken"

    def fits(self, part: PerExample) -> bool:
        return True

    def measure(self, part: PerExample) -> tuple[Squares, PerExample]:
        self.calls.append(len(part))
        raise RuntimeError("no such luck")


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The Gram strategy, counting its calls."""

    calls: list[int] = field(default_factory=list, compare=False)
    name: str = "counted"

    def fits(self, part: PerExample) -> bool:
        return True

    def measure(self, part: PerExample) -> tuple[Squares, PerExample]:
        self.calls.append(len(part))
        return Gram().measure(part)


def test_a_strategy_that_raises_is_recorded_and_never_used() -> None:
    planner = Planner(strategies={Outer: (Broken(), NormOnly())})
    choice = planner.choose(outer())
    planner.settle([choice])
    assert choice.strategy == NormOnly()
    assert choice.tried[0].failure == "RuntimeError: no such luck"
    assert math.isinf(choice.tried[0].seconds)


def test_what_the_last_strategy_raised_is_raised_if_none_can_be_used() -> None:
    with pytest.raises(RuntimeError, match="no such luck"):
        Planner(strategies={Outer: (Broken(), Broken(name="also broken"))}).choose(outer())


def test_times_and_bytes_of_every_candidate_are_those_of_the_whole_batch() -> None:
    part = outer(batch=20)
    found = {each.strategy.name: each for each in compared([Store(), Gram()], part)}
    assert found["store"].kept_bytes == 20 * 7 * 3 * 4
    assert found["gram"].kept_bytes == num_bytes(part) == 20 * 5 * (7 + 3) * 4
    assert all(0 <= each.seconds < 60 for each in found.values())


def test_a_shape_is_tried_once_and_then_only_measured() -> None:
    counted = Counted()
    planner = Planner(strategies={Outer: (counted, NormOnly())}, budget=Fast())
    planner.choose(outer())
    tries = len(counted.calls)
    for _ in range(3):
        planner.choose(outer())
    assert len(counted.calls) == tries
    planner.choose(outer(batch=13))  # more than twice the batch it was chosen for
    assert len(counted.calls) > tries


def test_a_slow_candidate_sees_only_a_slice_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privet.gradients.norms.timing._LONG", 0.0)
    counted = Counted()
    compared([counted, NormOnly()], outer(batch=32))
    assert max(counted.calls) == 4


def test_gradients_far_larger_than_their_factors_are_not_even_written_out_to_try() -> None:
    planner = Planner()
    planner.choose(outer(batch=2, length=2, width_in=200, width_out=200))
    assert {each.strategy for choice in planner._choices.values() for each in choice.tried} == {Gram()}


@pytest.mark.parametrize("budget", [Lean(), Fast()], ids=["lean", "fast"])
def test_the_sum_is_the_same_under_every_budget(budget: Budget) -> None:
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))
    found = [_clipped_sum(model, choice)[0] for choice in (BookKeeping(), BookKeeping(memory=budget))]
    torch.testing.assert_close(*found)


def test_what_was_used_is_known_by_parameter_and_what_plain_training_holds_is_estimated() -> None:
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))
    running = _clipped_sum(model, BookKeeping())[1]
    assert set(running.planner.by_parameter) == {0, 2}  # biases are pooled
    # the output of tanh, its gradient's losses and the model's output; the input belongs to the first use
    assert running.planner.plain_bytes is not None
    assert 5 * 9 * 4 <= running.planner.plain_bytes <= 4 * 5 * (6 + 9 + 9 + 4 + 4 + 4)
    assert running.planner.predicted_peak is not None
    assert running.planner.predicted_peak >= 1


def _clipped_sum(model: nn.Module, engine: BookKeeping) -> tuple[torch.Tensor, RunningBookKeeping]:
    inputs = torch.randn(8, 5, 6, generator=torch.Generator().manual_seed(1))
    named = list(model.named_parameters())
    layout = Layout.of([(name, tuple(value.shape)) for name, value in named], OneGroup())
    rule = Threshold(norm=1.0).for_groups(1)
    running = engine.start(model, [value for _, value in named], layout)
    for _ in range(2):
        into = ClippedSum(
            flat=torch.zeros(layout.num_coordinates), layout=layout, sensitivity=rule.sensitivity
        )  # fmt: skip
        mark_batch([inputs])
        running.begin(len(inputs))
        running.add_clipped(model(inputs).square().sum((1, 2)), rule, into)
    return into.flat, running


def test_a_processor_never_tries_to_write_gradients_out_and_drop_them_where_it_can_keep_them() -> None:
    part = Outer(inputs=torch.randn(8, 6, 20), out_grads=torch.randn(8, 6, 10))
    planner = Planner()
    choice = planner.choose(part)
    planner.settle([choice])
    assert choice.on_processor
    names = {each.strategy.name for each in choice.tried}
    assert {"gram", "store"} <= names
    assert "norm only" not in names


@pytest.mark.parametrize(("length", "expected"), [(1, RankOne), (2, Gram), (40, Store)])
def test_deterministic_algorithms_choose_by_size_and_never_by_the_clock(
    length: int, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clock(*_: object, **__: object) -> None:
        raise AssertionError("a strategy was timed")

    monkeypatch.setattr("privet.gradients.norms.planner.compared", clock)
    part = outer(length=length, width_in=16, width_out=16)
    if expected is not RankOne:  # without the flag the planner would have asked the clock
        with pytest.raises(AssertionError, match="timed"):
            Planner().choose(part)
    torch.use_deterministic_algorithms(True)
    try:
        choice = Planner().choose(part)
    finally:
        torch.use_deterministic_algorithms(False)
    assert isinstance(choice.strategy, expected)
    assert num_bytes(choice.strategy.measure(part)[1]) <= num_bytes(part)
