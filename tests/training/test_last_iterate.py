"""A session that hides its iterates keeps to the chain that its proof is about, and says so when it did not."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtri
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import TensorDataset

from privet.errors import LoopError, PlanError, WeightsChanged
from privet.mechanism.clipping import Threshold
from privet.mechanism.epoch_sampling import Cyclic
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch, Sampling
from privet.mechanism.strong_convexity import StronglyConvexDescent
from privet.models.convex_losses import RadialSquared
from privet.models.convex_relu import ConvexRelu
from privet.plan import Plan
from privet.runs.ledger_check import check_ledger
from privet.training.averaging import ExponentialAverage
from privet.training.checkpoint import load_checkpoint
from privet.training.session import Session, Step
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Release, Unit

RATE, RIDGE = 0.5, 1e-2
CYCLIC = Cyclic(batches=4, epochs=3, expected_batch_size=2)


def network() -> ConvexRelu:
    torch.manual_seed(0)
    return ConvexRelu((3,), 2, num_gates=4)


def plan_for(model: ConvexRelu, *, sampling: Sampling = CYCLIC, multiplier: float = 1.0, **changes: float) -> Plan:
    constants = {"gradient_bound": model.gradient_bound, "smoothness": model.smoothness}
    return Plan(
        sampling=sampling,
        clipping=Threshold(norm=model.gradient_bound),
        noise=Gaussian(noise_multiplier=multiplier),
        delta=1e-5,
        adjacency=Adjacency.REPLACE_ONE,
        unit=Unit.RECORD,
        release=Release.LAST_ITERATE,
        descent=StronglyConvexDescent(**({"learning_rate": RATE, "ridge": RIDGE} | constants | changes)),
    )


def records(num: int = 8) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(num, 3, generator=generator), torch.arange(num) % 2)


def descend(model: nn.Module) -> SGD:
    return SGD(model.parameters(), lr=RATE, weight_decay=RIDGE)


def session_of(model: ConvexRelu, **options: Any) -> Session:
    given: dict[str, Any] = {"optimizer": descend(model), "dataset": records(), "plan": plan_for(model)} | options
    return privatize(model, given.pop("optimizer"), given.pop("dataset"), given.pop("plan"), **given)


def walk(
    session: Session, model: ConvexRelu, *, steps: int | None = None, after: Callable[[], object] = lambda: None
) -> None:
    with session:
        for step in session.steps():
            step.accumulate(model.losses)
            step.update()
            after()
            if step.index + 1 == steps:
                break


def take_first_step(session: Session, action: Callable[[Step], object]) -> None:
    with session:
        action(next(session.steps()))


# ---------------------------------------------------------------------------------------------------------- the chain


def test_a_whole_run_has_the_guarantee_of_its_plan() -> None:
    model = network()
    session = session_of(model)
    walk(session, model)
    assert session.is_complete
    found, promised = session.guarantee(), session.plan.guarantee()
    assert (found.epsilon, found.mu, found.released) == (promised.epsilon, promised.mu, Release.LAST_ITERATE)


@pytest.mark.parametrize("steps", [1, 4, 8, 11])
def test_a_run_that_stops_early_is_charged_every_iterate_and_says_so(
    steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = network()
    session = session_of(model)
    with caplog.at_level("WARNING", logger="privet"):
        walk(session, model, steps=steps)
    assert "the bound on the last model does not apply" in caplog.text
    found = session.guarantee()
    assert not session.is_complete
    assert found.released is Release.EVERY_ITERATE
    assert found.mu == pytest.approx(2 * math.sqrt(math.ceil(steps / 4)))


def test_a_second_walk_from_inside_an_epoch_is_another_chain() -> None:
    model = network()
    session = session_of(model)
    with session:
        for _ in range(2):
            for step in session.steps():
                step.accumulate(model.losses)
                step.update()
                if step.index == 1:
                    break
    assert session.ledger.charged_rounds == session.plan.num_rounds
    assert not session.is_complete
    assert session.guarantee().released is Release.EVERY_ITERATE


def test_an_interrupted_run_resumes_between_epochs_and_keeps_its_guarantee(tmp_path: Path) -> None:
    model = network()
    walk(session_of(model, folder=tmp_path, checkpoint_every=1), model, steps=6)
    kept = load_checkpoint(tmp_path / "checkpoint.safetensors")
    assert kept is not None
    assert kept.step == 4
    again = network()
    session = session_of(again, folder=tmp_path, checkpoint_every=1)
    walk(session, again)
    assert session.is_complete
    assert session.guarantee().released is Release.LAST_ITERATE
    assert check_ledger(tmp_path / "ledger.jsonl").spent.epsilon == session.plan.guarantee().epsilon


def test_a_ledger_of_an_unfinished_run_charges_every_iterate(tmp_path: Path) -> None:
    model = network()
    walk(session_of(model, folder=tmp_path), model, steps=4)
    assert check_ledger(tmp_path / "ledger.jsonl").spent.released is Release.EVERY_ITERATE


def test_a_secret_deal_cannot_be_resumed(tmp_path: Path) -> None:
    secret = Cyclic(batches=4, epochs=3, expected_batch_size=2, secret_partition=True)
    model = network()
    plan = plan_for(model, sampling=secret)
    walk(session_of(model, plan=plan, folder=tmp_path), model, steps=4)
    again = session_of(network(), plan=plan, folder=tmp_path)
    with pytest.raises(PlanError, match="secret partition is gone"):
        again.__enter__()


# ---------------------------------------------------------------------------------------------------------- refusals


def _with(model: nn.Module, **settings: Any) -> Optimizer:
    return SGD(model.parameters(), **({"lr": RATE, "weight_decay": RIDGE} | settings))


OPTIMIZERS = {
    "adam": (lambda model: Adam(model.parameters(), lr=RATE), "Adam is not proven"),
    "momentum": (lambda model: _with(model, momentum=0.9), "momentum is 0.9"),
    "nesterov": (lambda model: _with(model, momentum=0.9, nesterov=True), "momentum is 0.9"),
    "other-rate": (lambda model: _with(model, lr=0.4), "lr is 0.4"),
    "tensor-rate": (lambda model: _with(model, lr=torch.tensor(RATE)), "lr is tensor"),
    "other-ridge": (lambda model: _with(model, weight_decay=0.0), "weight_decay is 0.0"),
    "uphill": (lambda model: _with(model, maximize=True), "maximize is True"),
}


@pytest.mark.parametrize(("make", "reason"), OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_any_optimizer_but_the_plans_descent_is_refused(make: Any, reason: str) -> None:
    model = network()
    with pytest.raises(PlanError, match=reason):
        session_of(model, optimizer=make(model))


def test_a_learning_rate_that_changes_on_the_way_is_refused() -> None:
    model = network()
    session = session_of(model)
    with pytest.raises(PlanError, match="no schedule"):
        walk(session, model, after=lambda: session.optimizer.param_groups[0].update(lr=0.25))


@torch.no_grad()
def _halve(weights: nn.Parameter) -> None:
    weights.mul_(0.5)


def test_weights_that_change_between_steps_are_refused() -> None:
    model = network()
    session = session_of(model)
    with pytest.raises(WeightsChanged, match=r"linear\.weight"):
        walk(session, model, after=lambda: _halve(model.linear.weight))


@pytest.mark.parametrize("number", [0, 5, 12], ids=["before the first", "between two", "after the last"])
def test_not_even_a_public_change_may_stand_beside_the_steps(number: int) -> None:
    model = network()
    session = session_of(model)
    with session:
        for step in session.steps():
            if step.index == number:
                break
            step.accumulate(model.losses)
            step.update()
        with (
            pytest.raises(LoopError, match="nothing but a step may change the weights"),
            session.public_change("halves the weights"),
        ):
            pytest.fail("the door was opened")
    assert not session.ledger.assumptions
    assert session.is_complete == (number == 12)


def test_weights_changed_after_the_end_by_no_step_take_the_bound_and_every_promise_away(tmp_path: Path) -> None:
    model = network()
    session = session_of(model, folder=tmp_path)

    def change_at_the_end() -> None:
        with session:
            for step in session.steps():
                step.accumulate(model.losses)
                step.update()
            assert session.is_complete
            model.linear.weight.data.mul_(0.5)

    with pytest.raises(WeightsChanged):
        change_at_the_end()
    assert not session.is_complete
    assert session.guarantee().not_private_because
    assert check_ledger(tmp_path).spent.released is Release.EVERY_ITERATE


def test_a_model_without_a_proven_loss_is_refused() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(PlanError, match="Linear carries no proven loss"):
        privatize(model, descend(model), records(), plan_for(network()))


@pytest.mark.parametrize("name", ["gradient_bound", "smoothness"])
def test_constants_below_the_models_own_are_refused(name: str) -> None:
    model = network()
    plan = plan_for(model, **{name: getattr(model, name) * 0.9})
    with pytest.raises(PlanError, match=f"model's {name}"):
        session_of(model, plan=plan)


def test_another_loss_than_the_models_is_refused() -> None:
    model = network()
    session = session_of(model)
    with pytest.raises(PlanError, match=r"step\.accumulate\(model\.losses\)"):
        take_first_step(session, lambda step: step.accumulate(lambda *batch: model.losses(*batch)))


def test_losses_computed_in_the_loop_are_refused() -> None:
    session = session_of(network())
    with pytest.raises(PlanError, match="compute no losses"):
        take_first_step(session, lambda step: next(step.microbatches()))


def test_an_average_of_the_iterates_is_refused() -> None:
    with pytest.raises(PlanError, match="moving average"):
        session_of(network(), averaging=ExponentialAverage())


def test_batches_larger_than_their_divisor_are_refused() -> None:
    with pytest.raises(PlanError, match="steeper than the proven smoothness"):
        session_of(network(), dataset=records(9))


# ---------------------------------------------------------------------------------------------------------- an attack


def _final_weights(target: float, *, steps: int, multiplier: float, runs: int) -> Tensor:
    """Train ``runs`` independent copies of a one-dimensional problem in one session, one per output.

    A target far away makes the cut squared loss a straight line, the worst case of the proof. Each coordinate of the
    sum then moves by an equal share of the sensitivity, and carries noise of its own.
    """
    torch.manual_seed(0)
    model = ConvexRelu((1,), runs, num_gates=1, loss=RadialSquared())
    model.gates.fill_(1.0)
    plan = plan_for(model, sampling=FullBatch(steps=steps, expected_batch_size=1), multiplier=multiplier)
    record = TensorDataset(torch.ones(1, 1), torch.full((1, runs), target))
    walk(privatize(model, descend(model), record, plan, seed=int(target > 0)), model)
    return model.linear.weight.detach().flatten()


def test_an_attack_on_real_sessions_reaches_the_bound_and_never_beats_it() -> None:
    steps, runs, per_copy = 10, 40_000, 6.0
    first, second = (
        _final_weights(target, steps=steps, multiplier=per_copy / math.sqrt(runs), runs=runs) for target in (-1e7, 1e7)
    )
    model = ConvexRelu((1,), 2, num_gates=1, loss=RadialSquared())
    plan = plan_for(model, sampling=FullBatch(steps=steps, expected_batch_size=1), multiplier=per_copy)
    bound = plan.guarantee().mu
    assert bound is not None
    rates = np.array([float((values > 0).float().mean()) for values in (first, second)])
    quantiles = ndtri(rates)
    errors = np.sqrt(rates * (1 - rates) / runs) / (np.exp(-(quantiles**2) / 2) / math.sqrt(2 * math.pi))
    found = float(quantiles[1] - quantiles[0])
    assert 0.95 * bound <= found <= bound + 4 * float(np.hypot(*errors))
