"""Two models trained side by side, as in adversarial training: each session guards and charges its own."""

from __future__ import annotations

from itertools import zip_longest

import pytest
import torch
from torch import Tensor, nn

from privet.errors import LoopError
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.training.performance import Performance
from privet.training.session import Session
from privet.training.start import privatize
from tests.training.tools import examples, flat, full_batch, losses_of, network, plain_sgd, run, walk

ENGINES = pytest.mark.parametrize("engine", [BookKeeping(), Functional()], ids=["book-keeping", "functional"])


def begin(model: nn.Module, engine: Engine | None = None, *, seed: int = 1) -> Session:
    return privatize(
        model,
        plain_sgd(model),
        examples(),
        full_batch(3),
        performance=Performance(physical_batch_size=3, engine=engine or BookKeeping()),
        seed=seed,
    )


def alone(model_seed: int, seed: int) -> Tensor:
    model = network(model_seed)
    with begin(model, seed=seed) as session:
        run(session, model)
    return flat(model)


@ENGINES
def test_steps_of_two_sessions_can_alternate(engine: Engine) -> None:
    first, second = network(1), network(2)
    with begin(first, engine, seed=1) as one, begin(second, engine, seed=2) as two:
        for step, other in zip(one.steps(), two.steps(), strict=True):
            walk(step, first)
            walk(other, second)
            other.update()
            step.update()
    assert torch.allclose(flat(first), alone(1, 1), rtol=0, atol=1e-6)
    assert torch.allclose(flat(second), alone(2, 2), rtol=0, atol=1e-6)
    assert one.ledger.charged_rounds == two.ledger.charged_rounds == 3


@ENGINES
@pytest.mark.parametrize("order", ["last opened first", "first opened first", "one after the other"])
def test_physical_batches_of_two_sessions_can_be_open_at_once(engine: Engine, order: str) -> None:
    first, second = network(1), network(2)
    with begin(first, engine, seed=1) as one, begin(second, engine, seed=2) as two:
        for step, other in zip(one.steps(), two.steps(), strict=True):
            # one of them may be handed a batch more, to see its program on another number of examples
            for batch, other_batch in zip_longest(step.microbatches(), other.microbatches()):
                if batch is None or other_batch is None:
                    if batch is not None:
                        step.backward(losses_of(first)(*batch))
                    if other_batch is not None:
                        other.backward(losses_of(second)(*other_batch))
                    continue
                if order == "one after the other":
                    step.backward(losses_of(first)(*batch))
                    other.backward(losses_of(second)(*other_batch))
                    continue
                losses, other_losses = losses_of(first)(*batch), losses_of(second)(*other_batch)
                if order == "last opened first":
                    other.backward(other_losses)
                    step.backward(losses)
                else:
                    step.backward(losses)
                    other.backward(other_losses)
            step.update()
            other.update()
    assert torch.overrides._get_current_function_mode_stack() == []
    assert torch.allclose(flat(first), alone(1, 1), rtol=0, atol=1e-6)
    assert torch.allclose(flat(second), alone(2, 2), rtol=0, atol=1e-6)


def test_a_frozen_critic_does_not_enter_the_generators_sum() -> None:
    """The generator's loss runs through the critic, whose parameters belong to another session."""
    generator, critic = nn.Linear(3, 3), network(2)
    before = flat(critic)
    with begin(generator) as one, begin(critic) as two:
        for step in one.steps():
            for inputs, labels in step.microbatches():
                step.backward(nn.functional.cross_entropy(critic(generator(inputs)), labels, reduction="none"))
            step.update()
        assert torch.equal(flat(critic), before)
        assert two.ledger.charged_rounds == 0
        assert all(value.grad is None for value in critic.parameters())
        assert run(two, critic) == 3
    assert one.ledger.charged_rounds == two.ledger.charged_rounds == 3


def test_one_session_does_not_open_the_other_sessions_optimizer() -> None:
    first, second = network(1), network(2)
    optimizer, other = plain_sgd(first), plain_sgd(second)
    with privatize(first, optimizer, examples(), full_batch()), privatize(second, other, examples(), full_batch()):
        for one in (optimizer, other):
            with pytest.raises(LoopError):
                one.step()


def test_two_sessions_on_one_optimizer_cannot_both_train() -> None:
    model = network()
    optimizer = plain_sgd(model)
    before = flat(model)
    with (
        privatize(model, optimizer, examples(), full_batch()) as one,
        privatize(model, optimizer, examples(), full_batch()),
    ):
        step = next(one.steps())
        walk(step, model)
        with pytest.raises(LoopError):
            step.update()
        assert torch.equal(flat(model), before)
    assert one.ledger.charged_rounds == 1


def test_a_session_may_follow_another_on_the_same_model_and_each_says_its_own_cost() -> None:
    model = network()
    for seed in (1, 2):
        with begin(model, seed=seed) as session:
            assert run(session, model) == 3
        assert session.ledger.charged_rounds == 3
