"""Running out of memory halves the physical batch, never the logical one: same examples, same result, one charge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.isolation.watch import Check, Waiver
from privet.mechanism.adaptive_noise import AdaptiveGaussian, ReleasedSquares
from privet.mechanism.changing_clipping import AdaptiveQuantile
from privet.mechanism.mask_rates import Constant
from privet.mechanism.release_masks import RankedMask
from privet.plan import Plan
from privet.training.performance import Performance
from privet.training.session import Session
from privet.training.start import privatize
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


def undisturbed(plan: Plan, seed: int) -> Tensor:
    model = network()
    train(privatize(model, plain_sgd(model), examples(), plan, seed=seed), losses_of(model))
    return flat(model)


@pytest.mark.parametrize("engine", [BookKeeping(), Functional()], ids=["book-keeping", "functional"])
@pytest.mark.parametrize(("size", "room", "left"), [(8, 4, 4), (8, 1, 1), (7, 2, 2), (256, 3, 2)])
def test_a_step_short_of_memory_gives_the_same_result(engine: Engine, size: int, room: int, left: int) -> None:
    model, plan = network(), poisson(5, rate=0.8)  # the first batch is cut in two: later ones are short of memory too
    session = privatize(
        model,
        plain_sgd(model),
        examples(),
        plan,
        performance=Performance(physical_batch_size=size, engine=engine),
        seed=11,
    )
    train(session, short_of_memory(model, room=room))
    assert torch.allclose(flat(model), undisturbed(plan, 11), rtol=0, atol=1e-6)
    assert session.ledger.charged_rounds == 5
    assert session.physical_batch_size == left


def test_a_step_short_of_memory_reads_the_same_examples_again() -> None:
    model, calm = network(), network()
    disturbed_data, calm_data = Watched(examples()), Watched(examples())
    train(
        privatize(
            model, plain_sgd(model), disturbed_data, poisson(1), performance=Performance(physical_batch_size=8), seed=3
        ),
        short_of_memory(model, room=2),
    )
    train(privatize(calm, plain_sgd(calm), calm_data, poisson(1), seed=3), losses_of(calm))
    assert len(calm_data.asked) > 2
    assert disturbed_data.asked[-len(calm_data.asked) :] == calm_data.asked
    assert set(disturbed_data.asked) == set(calm_data.asked)


class ShortOnce:
    """Runs out of memory once, when this many examples have been read: what came before has been added already."""

    def __init__(self, after: int) -> None:
        self.after, self.read, self.has_failed = after, 0, False

    def __call__(self) -> None:
        self.read += 1
        if self.read == self.after and not self.has_failed:
            self.has_failed = True
            raise torch.OutOfMemoryError("artificial")


ADAPTIVE_COUNT = replace(full_batch(3), clipping=AdaptiveQuantile(norm=0.05, count_noise_std=1e-6))
ADAPTIVE_SQUARES = replace(
    full_batch(3), noise=AdaptiveGaussian(learning=ReleasedSquares(every=1), noise_multiplier=1e-6)
)
PLANS = {
    "a threshold": full_batch(3),
    "a learned threshold": ADAPTIVE_COUNT,
    "learned units": ADAPTIVE_SQUARES,
    "both": replace(ADAPTIVE_COUNT, noise=ADAPTIVE_SQUARES.noise),
    "a ranked mask": replace(full_batch(3), mask=RankedMask(schedule=Constant(value=0.5), refresh_every=1)),
}


@pytest.mark.parametrize("engine", [BookKeeping(), Functional()], ids=["book-keeping", "functional"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_what_was_summed_or_counted_before_memory_ran_out_is_forgotten(plan: Plan, engine: Engine) -> None:
    """The first pass fails in its last physical batch, after the others were added."""

    def outcome(short: ShortOnce, size: int) -> tuple[Tensor, list[float], list[Unprotected], Session]:
        model, told = network(), list[Unprotected]()
        session = privatize(
            model,
            plain_sgd(model),
            Watched(examples(), short),
            plan,
            performance=Performance(physical_batch_size=size, engine=engine),
            telemetry=told.append,
            seed=2,
        )
        train(session, losses_of(model))
        learned = [*session._run.state.clipping.state().values(), *session._run.state.noise.state().values()]
        return flat(model), [number for values in learned for number in values], told, session

    short = ShortOnce(after=8)
    weights, learned, told, session = outcome(short, 3)
    calm_weights, calm_learned, calm_told, calm_session = outcome(ShortOnce(after=0), 2)
    assert short.has_failed
    assert session.physical_batch_size == calm_session.physical_batch_size == 2
    assert torch.allclose(weights, calm_weights, rtol=0, atol=1e-5)
    assert learned == pytest.approx(calm_learned, rel=1e-4)
    for one, other in zip(told, calm_told, strict=True):
        assert one.mean_loss == pytest.approx(other.mean_loss, rel=1e-4)
        assert (one.clipped_share, one.batch_size) == (other.clipped_share, 8)


def test_a_half_added_physical_batch_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    session = privatize(
        model, plain_sgd(model), examples(), poisson(5), performance=Performance(physical_batch_size=4), seed=11
    )
    with session:
        whole = session._run.engine.add_clipped
        calls = 0

        def failing(losses: Tensor, rule: object, into: object) -> Tensor:
            nonlocal calls
            calls += 1
            norms = whole(losses, rule, into)  # type: ignore[arg-type]
            if calls == 2:
                raise torch.OutOfMemoryError("artificial, after the sum was changed")
            return norms

        monkeypatch.setattr(session._run.engine, "add_clipped", failing)
        for step in session.steps():
            step.accumulate(losses_of(model))
            step.update()
    assert session.physical_batch_size == 2
    assert torch.allclose(flat(model), undisturbed(poisson(5), 11), rtol=0, atol=1e-6)


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
        calls += 1
        raise RuntimeError("a bug in the user's model")

    no_experiments = Waiver(check=Check.EXPERIMENTS, because="they would meet the bug first")
    with pytest.raises(RuntimeError, match="a bug"):
        train(privatize(model, plain_sgd(model), examples(), full_batch(1), waive=[no_experiments]), losses)
    assert calls == 1
