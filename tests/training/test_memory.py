"""Running out of memory halves the physical batch, never the logical one: same examples, same result, one charge."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from privet.gradients.bookkeeping import BookKeeping
from privet.gradients.engine import Engine
from privet.gradients.functional import Functional
from privet.training.session import Session, privatize
from privet.training.telemetry import Unprotected
from tests.training.tools import Watched, examples, flat, full_batch, losses_of, network, plain_sgd, poisson

Losses = Callable[[Tensor, Tensor], Tensor]


def short_of_memory(model: nn.Module, *, room: int) -> Losses:
    """Losses that fail for more than ``room`` examples at once."""

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        if len(inputs) > room:
            raise torch.OutOfMemoryError("artificial")
        return losses_of(model)(inputs, labels)

    return losses


def train(session: Session, losses: Losses) -> None:
    with session:
        for step in session.steps():
            step.accumulate(losses)
            step.update()


def undisturbed(seed: int) -> Tensor:
    model = network()
    train(privatize(model, plain_sgd(model), examples(), poisson(5), seed=seed), losses_of(model))
    return flat(model)


@pytest.mark.parametrize("engine", [BookKeeping(), Functional()], ids=["book-keeping", "functional"])
@pytest.mark.parametrize(("size", "room", "left"), [(8, 4, 4), (8, 1, 1), (7, 2, 2), (256, 3, 2)])
def test_a_step_short_of_memory_gives_the_same_result(engine: Engine, size: int, room: int, left: int) -> None:
    model = network()
    session = privatize(
        model, plain_sgd(model), examples(), poisson(5), physical_batch_size=size, engine=engine, seed=11
    )
    train(session, short_of_memory(model, room=room))
    assert torch.allclose(flat(model), undisturbed(11), rtol=0, atol=1e-6)
    assert session.ledger.charged_rounds == 5
    assert session.physical_batch_size == left


def test_a_step_short_of_memory_reads_the_same_examples_again() -> None:
    model, calm = network(), network()
    disturbed_data, calm_data = Watched(examples()), Watched(examples())
    train(
        privatize(model, plain_sgd(model), disturbed_data, poisson(1), physical_batch_size=8, seed=3),
        short_of_memory(model, room=2),
    )
    train(privatize(calm, plain_sgd(calm), calm_data, poisson(1), seed=3), losses_of(calm))
    assert len(calm_data.asked) > 2
    assert disturbed_data.asked[-len(calm_data.asked) :] == calm_data.asked
    assert set(disturbed_data.asked) == set(calm_data.asked)


def test_what_was_summed_before_memory_ran_out_is_forgotten() -> None:
    """The first pass fails in its last physical batch, after the others were added."""
    model = network()
    calls = 0

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise torch.OutOfMemoryError("artificial")
        return losses_of(model)(inputs, labels)

    told: list[Unprotected] = []
    session = privatize(
        model, plain_sgd(model), examples(), full_batch(1), physical_batch_size=3, telemetry=told.append, seed=2
    )
    train(session, losses)
    calm = network()
    calm_told: list[Unprotected] = []
    train(
        privatize(calm, plain_sgd(calm), examples(), full_batch(1), telemetry=calm_told.append, seed=2),
        losses_of(calm),
    )
    assert torch.allclose(flat(model), flat(calm), rtol=0, atol=1e-6)
    assert told[0].mean_loss == pytest.approx(calm_told[0].mean_loss)
    assert (told[0].clipped_share, told[0].batch_size) == (calm_told[0].clipped_share, 8)


def test_a_half_added_physical_batch_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    session = privatize(model, plain_sgd(model), examples(), poisson(5), physical_batch_size=4, seed=11)
    with session:
        whole = session._engine.add_clipped
        calls = 0

        def failing(losses: Tensor, rule: object, into: object) -> Tensor:
            nonlocal calls
            calls += 1
            norms = whole(losses, rule, into)  # type: ignore[arg-type]
            if calls == 2:
                raise torch.OutOfMemoryError("artificial, after the sum was changed")
            return norms

        monkeypatch.setattr(session._engine, "add_clipped", failing)
        for step in session.steps():
            step.accumulate(losses_of(model))
            step.update()
    assert session.physical_batch_size == 2
    assert torch.allclose(flat(model), undisturbed(11), rtol=0, atol=1e-6)


def test_a_single_example_that_does_not_fit_ends_the_run_charged() -> None:
    model = network()
    before = flat(model)
    session = privatize(model, plain_sgd(model), examples(), full_batch(3))
    with pytest.raises(torch.OutOfMemoryError):
        train(session, short_of_memory(model, room=0))
    assert session.physical_batch_size == 1
    assert session.ledger.charged_rounds == 1
    assert torch.equal(flat(model), before)


def test_other_failures_are_not_tried_again() -> None:
    model = network()
    calls = 0

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        nonlocal calls
        calls += len(inputs) == 8  # the pre-flight tries fewer
        raise RuntimeError("a bug in the user's model")

    with pytest.raises(RuntimeError, match="a bug"):
        train(privatize(model, plain_sgd(model), examples(), full_batch(1)), losses)
    assert calls == 1
