"""Shuffled batches: one charge covers one epoch, whole or broken off, and an epoch is never continued."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from privet.accounting.ledger import Ledger
from privet.errors import LedgerMismatch, LoopError, PlanError
from privet.mechanism.noise import Gaussian
from privet.mechanism.sums import ClippedSum, NormalSource, PrivateSum
from privet.training.session import Step
from privet.training.start import privatize
from privet.vocabulary import Adjacency
from tests.training.tools import Counting, Watched, examples, flat, network, plain_sgd, run, shuffle, take_steps, walk


def test_an_epoch_is_charged_once_and_uses_every_example_once() -> None:
    model, data = network(), Watched(examples())
    optimizer = plain_sgd(model)
    counting = Counting(optimizer)
    plan = shuffle(epochs=3, batches=4)
    with privatize(model, optimizer, data, plan) as session:
        for step in session.steps():
            assert session.ledger.charged_rounds == step.index // 4 + 1
            walk(step, model)
            step.update()
    assert counting.steps == plan.num_steps == 12
    assert session.ledger.charged == [(plan.round_event, 3)]
    for epoch in range(3):
        assert sorted(data.asked[8 * epoch : 8 * epoch + 8]) == list(range(8))
    assert session.guarantee().epsilon == plan.guarantee().epsilon


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_a_broken_off_epoch_is_paid_in_full_and_never_continued(steps: int, tmp_path: Path) -> None:
    plan = shuffle(epochs=3, batches=4)
    model, data = network(), Watched(examples())
    with privatize(model, plain_sgd(model), data, plan, folder=tmp_path) as session:
        run(session, model, at_most=steps)
    begun = -(-steps // 4)
    assert Ledger.read(tmp_path / "ledger.jsonl").charged_rounds == begun
    data.asked.clear()
    resumed = network()
    with privatize(resumed, plain_sgd(resumed), data, plan, folder=tmp_path) as session:
        assert run(session, resumed) == 4 * (3 - begun)
    assert Ledger.read(tmp_path / "ledger.jsonl").charged_rounds == 3
    assert sorted(data.asked) == sorted(list(range(8)) * (3 - begun))


@pytest.mark.parametrize("steps", [1, 5])
def test_walking_again_after_a_break_starts_a_new_epoch(steps: int) -> None:
    model = network()
    with privatize(model, plain_sgd(model), examples(), shuffle(epochs=3, batches=4)) as session:
        run(session, model, at_most=steps)
        begun = -(-steps // 4)
        for step in session.steps():
            assert step.index >= 4 * begun
            walk(step, model)
            step.update()
    assert session.ledger.charged_rounds == 3


@pytest.mark.parametrize("fails_at", [0, 2])
def test_a_failure_within_an_epoch_charges_that_epoch_once(fails_at: int, tmp_path: Path) -> None:
    model = network()

    def body(step: Step) -> None:
        walk(step, model)
        if step.index == fails_at:
            raise RuntimeError("stop")
        step.update()

    session = privatize(model, plain_sgd(model), examples(), shuffle(), folder=tmp_path)
    with pytest.raises(RuntimeError, match="stop"):
        take_steps(session, body)
    assert Ledger.read(tmp_path / "ledger.jsonl").charged_rounds == 1


def test_a_step_kept_from_a_broken_off_epoch_cannot_be_used() -> None:
    """Its epoch is charged already, so no ledger row would stand in the way of a second release."""
    model = network()
    with privatize(model, plain_sgd(model), examples(), shuffle()) as session:
        for kept in session.steps():
            walk(kept, model)
            if kept.index == 1:
                break
            kept.update()
        before = flat(model)

        def use_it_in_the_next_epoch() -> None:
            for step in session.steps():
                walk(step, model)
                kept.update()

        with pytest.raises(LoopError):
            use_it_in_the_next_epoch()
        assert torch.equal(flat(model), before)


def test_a_step_kept_from_a_closed_session_cannot_be_used() -> None:
    model = network()
    with privatize(model, plain_sgd(model), examples(), shuffle()) as session:
        for kept in session.steps():
            walk(kept, model)
            if kept.index == 1:
                break
            kept.update()
    before = flat(model)
    with pytest.raises(LoopError):
        kept.update()
    assert torch.equal(flat(model), before)


@dataclass(frozen=True, kw_only=True)
class LessNoiseLater(Gaussian):
    """As planned at first, half as much afterwards."""

    calls: list[int] = field(default_factory=list, repr=False)

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        self.calls.append(1)
        assert self.noise_multiplier is not None
        multiplier = self.noise_multiplier / (1 if len(self.calls) == 1 else 2)
        return Gaussian(noise_multiplier=multiplier).add(clipped, source)


def test_every_step_of_an_epoch_is_compared_with_what_was_charged() -> None:
    model = network()
    plan = replace(shuffle(), noise=LessNoiseLater(noise_multiplier=1.0))
    seen = []

    def body(step: Step) -> None:
        walk(step, model)
        seen.append(flat(model))
        step.update()

    with pytest.raises(LedgerMismatch):
        take_steps(privatize(model, plain_sgd(model), examples(), plan), body)
    assert len(seen) == 2
    assert torch.equal(flat(model), seen[1])


def test_adding_or_removing_a_record_has_no_guarantee_under_shuffling() -> None:
    with pytest.raises(PlanError, match="Shuffle"):
        replace(shuffle(), adjacency=Adjacency.ADD_REMOVE)


def test_more_batches_than_examples_make_steps_of_noise() -> None:
    model = network()
    optimizer = plain_sgd(model)
    counting = Counting(optimizer)
    with privatize(model, optimizer, examples(2), shuffle(epochs=2, batches=4)) as session:
        run(session, model)
    assert (counting.steps, session.ledger.charged_rounds) == (8, 2)
