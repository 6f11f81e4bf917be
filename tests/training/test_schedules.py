"""Learning rates that follow a course: its shape, and that a resumed run is where it would have been."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR

from privet.errors import ArgumentError
from privet.training.schedules import CosineDecay, LearningRate, LinearDecay, Schedule, StepDecay
from privet.training.start import privatize
from tests.training.tools import examples, full_batch, network, run, walk

SCHEDULES: list[Schedule] = [
    LinearDecay(),
    LinearDecay(warm_up=0.2, final=0.1),
    CosineDecay(),
    CosineDecay(warm_up=0.1),
    StepDecay(drops=(0.5,)),
]
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)


@each_schedule
@given(progress=st.floats(0, 1))
@settings(deadline=None, max_examples=30)
def test_factors_lie_between_zero_and_one(schedule: Schedule, progress: float) -> None:
    assert isinstance(schedule, Schedule)
    assert 0 <= schedule.factor(progress) <= 1


def test_shapes() -> None:
    assert [LinearDecay(warm_up=0.5, final=0.2).factor(at) for at in (0, 0.25, 0.5, 0.75, 1)] == pytest.approx(
        [0, 0.5, 1, 0.6, 0.2]
    )
    assert [CosineDecay(final=0.5).factor(at) for at in (0, 0.5, 1)] == pytest.approx([1, 0.75, 0.5])
    assert [StepDecay(drops=(0.5, 0.8), factor_per_drop=0.1).factor(at) for at in (0.4, 0.5, 0.9)] == pytest.approx(
        [1, 0.1, 0.01]
    )


@each_schedule
def test_a_resumed_run_has_the_rates_it_would_have_had(schedule: Schedule, tmp_path: Path) -> None:
    def rates(folder: Path | None, at_most: int | None = None) -> list[float]:
        model = network()
        optimizer = SGD(model.parameters(), lr=0.5)
        rate = LearningRate(optimizer, schedule, num_steps=9)
        found = []
        with privatize(model, optimizer, examples(), full_batch(9), folder=folder) as session:
            for step in session.steps():
                rate.set(step.index)
                found.append(optimizer.param_groups[0]["lr"])
                walk(step, model)
                step.update()
                if len(found) == at_most:
                    break
        return found

    assert rates(tmp_path, at_most=4) + rates(tmp_path) == rates(None)


def test_every_group_keeps_its_own_rate() -> None:
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 1.0}, {"params": model[2].parameters(), "lr": 0.1}]
    optimizer = SGD(groups)
    LearningRate(optimizer, LinearDecay(), num_steps=2).set(1)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.25, 0.025])


def test_schedulers_of_torch_work_too() -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.5)
    scheduler = CosineAnnealingLR(optimizer, T_max=6)
    with privatize(model, optimizer, examples(), full_batch(6)) as session:
        for step in session.steps():
            walk(step, model)
            step.update()
            scheduler.step()
        assert run(session, model) == 0
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0)
    assert all(bool(torch.isfinite(value).all()) for value in model.parameters())


def test_impossible_courses_are_refused() -> None:
    for build in (lambda: LinearDecay(warm_up=1.0), lambda: CosineDecay(final=2.0), lambda: StepDecay(drops=(0.0,))):
        with pytest.raises(ArgumentError):
            build()
    with pytest.raises(ArgumentError, match="schedule must be"):
        LearningRate(SGD(network().parameters(), lr=0.1), CosineDecay, num_steps=3)  # type: ignore[arg-type]
