"""What may move weights besides private steps: public changes by their door, and what the library does itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer, lr_scheduler

from privet.accounting.ledger import Ledger
from privet.errors import ArgumentError, LoopError, WeightsChanged
from privet.runs.ledger_check import check_ledger
from privet.training.averaging import ExponentialAverage
from tests.training.tools import examples, losses_of, run, walk
from tests.training.weight_watch.test_weights import (
    Net,
    begin,
    by_data,
    by_load_state_dict,
    by_set,
    by_swapped_frozen_tensors,
    by_swapped_tensors,
    inside,
    trained,
)

CHANGES = [by_data, by_load_state_dict, by_set, by_swapped_tensors, by_swapped_frozen_tensors]


@pytest.mark.parametrize("change", CHANGES)
def test_public_changes_go_through_a_door_and_stand_in_the_guarantee(change: Callable[[Net], None]) -> None:
    model = Net()
    session = begin(model)
    with session:
        run(session, model, at_most=3)
        with session.public_change("clamps the last layer"):
            change(model)
        run(session, model)
    found = session.guarantee()
    assert "the weights were changed after step 3 by: clamps the last layer; this used no private data" in (
        found.assumptions
    )
    assert not found.not_private_because


def by_writing_frozen_tensors(model: Net) -> None:
    with torch.no_grad():
        model.frozen.weight.fill_(1.0)
        model.scale.fill_(2.0)


def test_swapped_frozen_tensors_train_as_written_ones_do_and_carry_no_mark_after_the_session() -> None:
    models = []
    for change in (by_swapped_frozen_tensors, by_writing_frozen_tensors):
        model = Net()
        with begin(model, seed=0) as session:
            run(session, model, at_most=2)
            assert vars(model.frozen.weight)
            with session.public_change("changes the frozen layer"):
                change(model)
            run(session, model)
        models.append(model.state_dict(keep_vars=True))
    swapped, written = models
    assert all(torch.equal(value, written[name]) for name, value in swapped.items())
    assert not any(vars(value) for value in swapped.values())


def test_public_changes_stand_in_the_ledger_before_they_are_made(tmp_path: Path) -> None:
    model = Net()
    session = begin(model, folder=tmp_path)
    with session:
        run(session, model, at_most=1)
        with session.public_change("loads public weights"):
            (change,) = Ledger.read(tmp_path / "ledger.jsonl")._tally.public_changes
            assert (change.step, change.reason) == (1, "loads public weights")
    found = check_ledger(tmp_path)
    assert set(session.guarantee().assumptions) >= {change.assumption}
    assert change.assumption in found.spent.assumptions
    assert found.mismatch is None


def test_the_door_finds_what_was_changed_before_it() -> None:
    model = Net()
    session = begin(model)

    def change() -> None:
        by_data(model)
        with session.public_change("re-initialises the head"):
            pass

    with pytest.raises(WeightsChanged):
        inside(session, change)


@pytest.mark.parametrize("reason", ["", "  ", "two\nlines", "x" * 201, None, 3])
def test_a_public_change_needs_a_reason_in_words(reason: Any) -> None:
    with begin(Net()) as session, pytest.raises(ArgumentError, match="printable"), session.public_change(reason):
        pass


def test_the_door_is_closed_outside_the_session_and_while_a_step_is_summed_up() -> None:
    model = Net()
    session = begin(model)
    with pytest.raises(LoopError, match="with block"), session.public_change("too early"):
        pass
    with session:
        for step in session.steps():
            walk(step, model)
            with pytest.raises(LoopError, match="summed up"), session.public_change("too soon"):
                pass
            step.update()


OPTIMIZERS: list[Callable[[list[nn.Parameter]], Optimizer]] = [
    lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    lambda p: SGD(p, lr=0.1, fused=True),
    lambda p: AdamW(p, lr=0.1, fused=True),
    lambda p: AdamW(p, lr=torch.tensor(0.1), foreach=False),
    lambda p: torch.optim.Adafactor(p, lr=0.1),
    lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_no_alarm_is_raised_by_torchs_optimizers_with_schedules_averages_checkpoints_and_looks(
    make: Callable[[list[nn.Parameter]], Optimizer], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    for at_most in (3, None):
        model = Net()
        optimizer = make(trained(model))
        schedule = lr_scheduler.CosineAnnealingLR(optimizer, 7)
        session = begin(model, optimizer, averaging=ExponentialAverage(), folder=folder, checkpoint_every=2)
        with session:
            for step in session.steps():
                losses_of(model)(*examples().tensors).mean().backward()
                walk(step, model)
                optimizer.zero_grad()
                step.update()
                schedule.step()
                with session.averaged(), torch.no_grad():
                    model.eval()(examples().tensors[0])
                model.train()
                if session.steps_taken == at_most:
                    break
    session.adopt_average()
    by_data(model)  # after the session the model is the user's own
    assert not session.guarantee().not_private_because
    assert check_ledger(folder).mismatch is None


def test_weights_may_not_change_while_their_average_is_in_the_model() -> None:
    model = Net()
    session = begin(model, averaging=ExponentialAverage())

    def change() -> None:
        run(session, model, at_most=2)
        with session.averaged():
            by_data(model)

    with pytest.raises(WeightsChanged):
        inside(session, change)


def test_an_update_that_fails_half_way_is_no_foreign_change() -> None:
    class Failing(SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()
            raise RuntimeError("out of luck")

    model = Net()
    session = begin(model, Failing(trained(model), lr=0.1))
    with pytest.raises(RuntimeError, match="luck"), session:
        run(session, model)
    assert not session.guarantee().not_private_because
