"""A device is asked once in a step whether all gradients were finite; where one was not, the sum starts over."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from privet.gradients.engines.bookkeeping import RunningBookKeeping
from privet.training import summing
from privet.training.performance import Performance
from privet.training.start import privatize
from tests.training.tools import examples, flat, full_batch, losses_of, network, plain_sgd

STEPS = 6


def trained(data: TensorDataset, *, is_explicit: bool = False) -> Tensor:
    model = network()
    performance = Performance(physical_batch_size=4)
    with privatize(model, plain_sgd(model), data, full_batch(STEPS), performance=performance, seed=3) as session:
        for step in session.steps():
            if is_explicit:
                for inputs, labels in step.microbatches():
                    step.backward(losses_of(model)(inputs, labels))
            else:
                step.accumulate(losses_of(model))
            step.update()
    return flat(model)


def spoiled(value: float) -> TensorDataset:
    inputs, labels = (tensor.clone() for tensor in examples().tensors)
    inputs[1] = value
    return TensorDataset(inputs, labels)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let the processor pass for a device that is not waited for; return the answers to all questions."""
    found: list[bool] = []
    all_finite = RunningBookKeeping.all_finite

    def noted(self: RunningBookKeeping) -> bool:
        found.append(all_finite(self))
        return found[-1]

    monkeypatch.setattr(summing, "_ASYNCHRONOUS", frozenset(["cpu"]))
    monkeypatch.setattr(RunningBookKeeping, "all_finite", noted)
    return found


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_an_example_that_is_not_finite_adds_zero_though_nobody_looked_in_time(
    value: float, monkeypatch: pytest.MonkeyPatch, asked: list[bool]
) -> None:
    late = trained(spoiled(value))
    assert asked.count(False) == 1, "the first step that finds it starts over, and later ones look in time"
    monkeypatch.undo()
    assert torch.equal(late, trained(spoiled(value)))
    assert late.isfinite().all()


def test_sums_that_are_finite_are_the_same_whenever_one_looks(
    monkeypatch: pytest.MonkeyPatch, asked: list[bool]
) -> None:
    late = trained(examples())
    assert asked == [True] * STEPS
    monkeypatch.undo()
    assert torch.equal(late, trained(examples()))


def test_a_loop_of_the_users_own_cannot_start_over_and_looks_at_once(asked: list[bool]) -> None:
    assert trained(spoiled(float("nan")), is_explicit=True).isfinite().all()
    assert not asked
