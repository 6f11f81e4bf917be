"""A loop that breaks the order of a private step is stopped, and nothing but noised gradients ever reaches a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

from privet.errors import LedgerError, LoopError, LossError, PrivetError
from privet.training.performance import Performance
from privet.training.session import Session, Step
from privet.training.start import privatize
from tests.training.tools import (
    Watched,
    examples,
    flat,
    full_batch,
    losses_of,
    network,
    plain_sgd,
    poisson,
    run,
    take_steps,
    walk,
)


def begin(model: nn.Module, *, steps: int = 3, physical_batch_size: int = 3) -> Session:
    """Three physical batches a step: 3, 3 and 2 examples."""
    return privatize(
        model,
        plain_sgd(model),
        examples(),
        full_batch(steps),
        performance=Performance(physical_batch_size=physical_batch_size),
    )


def backward_twice(step: Step, model: nn.Module) -> None:
    for inputs, labels in step.microbatches():
        losses = losses_of(model)(inputs, labels)
        step.backward(losses)
        step.backward(losses)


def forgotten_backward(step: Step, model: nn.Module) -> None:
    for inputs, labels in step.microbatches():
        losses_of(model)(inputs, labels)


def forgotten_last_backward(step: Step, model: nn.Module) -> None:
    for place, (inputs, labels) in enumerate(step.microbatches()):
        losses = losses_of(model)(inputs, labels)
        if place < 2:
            step.backward(losses)


def backward_outside(step: Step, model: nn.Module) -> None:
    walk(step, model)
    step.backward(torch.zeros(3, requires_grad=True))


def update_before_the_examples(step: Step, model: nn.Module) -> None:
    step.update()


def update_inside_the_walk(step: Step, model: nn.Module) -> None:
    for _ in step.microbatches():
        step.update()


def update_twice(step: Step, model: nn.Module) -> None:
    walk(step, model)
    step.update()
    step.update()


def microbatches_twice(step: Step, model: nn.Module) -> None:
    walk(step, model)
    walk(step, model)


def microbatches_after_update(step: Step, model: nn.Module) -> None:
    walk(step, model)
    step.update()
    walk(step, model)


def microbatches_then_accumulate(step: Step, model: nn.Module) -> None:
    walk(step, model)
    step.accumulate(losses_of(model))


def accumulate_then_microbatches(step: Step, model: nn.Module) -> None:
    step.accumulate(losses_of(model))
    walk(step, model)


def accumulate_twice(step: Step, model: nn.Module) -> None:
    step.accumulate(losses_of(model))
    step.accumulate(losses_of(model))


@pytest.mark.parametrize(
    "mistake",
    [
        backward_twice,
        forgotten_backward,
        forgotten_last_backward,
        backward_outside,
        update_before_the_examples,
        update_inside_the_walk,
        update_twice,
        microbatches_twice,
        microbatches_after_update,
        microbatches_then_accumulate,
        accumulate_then_microbatches,
        accumulate_twice,
    ],
    ids=lambda mistake: mistake.__name__,
)
def test_a_mistake_in_a_step_is_refused_and_its_round_stays_charged(mistake: Callable[[Step, nn.Module], None]) -> None:
    model = network()
    session = begin(model)
    with pytest.raises(LoopError):
        take_steps(session, lambda step: mistake(step, model))
    assert session.ledger.charged_rounds == 1


def test_a_forgotten_update_is_refused_and_changes_nothing() -> None:
    model = network()
    before = flat(model)
    session = begin(model)
    with pytest.raises(LoopError, match=r"step\.update\(\)"):
        take_steps(session, lambda step: walk(step, model))
    assert torch.equal(flat(model), before)
    assert session.ledger.charged_rounds == 1


def test_an_update_after_breaking_off_the_examples_is_refused() -> None:
    """Where a loop breaks off may depend on the examples, and then one example moves the others in and out."""
    model = network()
    before = flat(model)

    def break_off(step: Step) -> None:
        for inputs, labels in step.microbatches():
            step.backward(losses_of(model)(inputs, labels))
            break
        step.update()

    with pytest.raises(LoopError):
        take_steps(begin(model), break_off)
    assert torch.equal(flat(model), before)


@pytest.mark.parametrize("way", ["microbatches", "accumulate"])
def test_an_update_after_the_data_failed_half_way_is_refused(way: str) -> None:
    """Half a sum is not what was sampled, and which half it is may depend on an example."""
    model, data = network(), Watched(examples())
    before = flat(model)

    def fail_in_the_second_batch() -> None:
        if len(data.asked) == 4:
            raise OSError("unreadable")

    data.look = fail_in_the_second_batch

    def body(step: Step) -> None:
        with pytest.raises(OSError, match="unreadable"):
            walk(step, model) if way == "microbatches" else step.accumulate(losses_of(model))
        step.update()

    with pytest.raises(LoopError):
        take_steps(
            privatize(model, plain_sgd(model), data, full_batch(), performance=Performance(physical_batch_size=3)), body
        )
    assert torch.equal(flat(model), before)


@pytest.mark.parametrize("way", ["microbatches", "accumulate"])
def test_a_refused_loss_cannot_be_ignored(way: str) -> None:
    model = network()
    before = flat(model)

    def mean(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return losses_of(model)(inputs, labels).mean()

    with begin(model) as session:
        step = next(session.steps())
        if way == "accumulate":
            with pytest.raises(LossError, match="scalar"):
                step.accumulate(mean)
        else:
            for inputs, labels in step.microbatches():
                with pytest.raises(LossError, match="scalar"):
                    step.backward(mean(inputs, labels))
                break
        with pytest.raises(LoopError):
            step.update()
    assert torch.equal(flat(model), before)


def test_the_next_step_cannot_be_asked_for_while_one_is_open() -> None:
    model = network()
    with pytest.raises(LoopError), begin(model) as session:
        list(session.steps())


def test_two_walks_over_the_steps_cannot_be_mixed() -> None:
    """Two open steps would share one sum, in which an example drawn by both counts twice."""
    model = network()
    before = flat(model)
    with begin(model) as session:
        first = next(session.steps())
        parts = first.microbatches()
        inputs, labels = next(parts)
        first.backward(losses_of(model)(inputs, labels))

        def open_a_second_and_go_on_with_the_first() -> None:
            walk(next(session.steps()), model)
            for inputs, labels in parts:
                first.backward(losses_of(model)(inputs, labels))
            first.update()

        with pytest.raises(LoopError):
            open_a_second_and_go_on_with_the_first()
        assert torch.equal(flat(model), before)


def test_a_step_kept_from_an_earlier_pass_cannot_be_used_again() -> None:
    model = network()
    before = flat(model)
    with begin(model) as session:
        for kept in session.steps():
            walk(kept, model)
            break

        def go_on_with_both() -> None:
            for step in session.steps():
                walk(step, model)
                kept.update()

        with pytest.raises(LoopError):
            go_on_with_both()
        assert torch.equal(flat(model), before)


def test_a_step_kept_from_a_closed_session_cannot_be_used() -> None:
    model = network()
    before = flat(model)
    with begin(model) as session:
        step = next(session.steps())
        walk(step, model)
    with pytest.raises(PrivetError):
        step.update()
    assert torch.equal(flat(model), before)


@pytest.mark.parametrize("keeps_a_folder", [False, True], ids=["in memory", "in a folder"])
def test_a_walk_over_the_steps_can_be_taken_up_again_after_a_break(keeps_a_folder: bool, tmp_path: Path) -> None:
    model = network()
    folder = tmp_path if keeps_a_folder else None
    with privatize(model, plain_sgd(model), examples(), full_batch(5), folder=folder) as session:
        first = run(session, model, at_most=2)
        places = []
        for step in session.steps():
            places.append(step.index)
            walk(step, model)
            step.update()
    assert (first, places) == (2, [2, 3, 4])
    assert session.ledger.charged_rounds == 5


def test_nothing_watches_the_model_after_a_walk_was_broken_off() -> None:
    model = network()
    with begin(model) as session:
        for _ in next(session.steps()).microbatches():
            assert len(_get_current_function_mode_stack()) == 1
            break
        assert _get_current_function_mode_stack() == []


def test_entering_a_session_twice_is_refused() -> None:
    model = network()
    with begin(model) as session:
        run(session, model)
    with pytest.raises(LoopError, match="once"):
        session.__enter__()


def test_steps_before_entering_are_refused_and_cost_nothing() -> None:
    session = begin(network())
    with pytest.raises(LoopError):
        next(session.steps())
    assert session.ledger.charged_rounds == 0


def test_steps_after_leaving_are_refused() -> None:
    model = network()
    with begin(model) as session:
        run(session, model, at_most=1)
    with pytest.raises((LoopError, LedgerError)):
        next(session.steps())
    assert session.ledger.charged_rounds == 1


def test_a_plan_of_k_steps_runs_k_steps_and_no_more() -> None:
    model = network()
    with begin(model, steps=3) as session:
        assert run(session, model) == 3
        assert run(session, model) == 0
    assert session.ledger.charged_rounds == 3


def test_one_session_after_another_may_train_the_same_model() -> None:
    model = network()
    optimizer = plain_sgd(model)
    for _ in range(2):
        with privatize(model, optimizer, examples(), poisson(2)) as session:
            assert run(session, model) == 2
