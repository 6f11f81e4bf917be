"""What one step releases: (clipped sum + noise) over a public constant, charged before it is read, empty or not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD
from torch.utils.data import TensorDataset

from privet.accounting.ledger import Ledger
from privet.errors import LedgerMismatch, LoopError, PlanError
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch, Poisson
from privet.mechanism.sums import ClippedSum, NormalSource, PrivateSum
from privet.plan import Plan
from privet.training.checkpoint import load_checkpoint
from privet.training.performance import Performance
from privet.training.randomness import Streams
from privet.training.session import Step
from privet.training.start import privatize
from tests.gradients.reference import loop_clipped_sum
from tests.training.tools import (
    CPU,
    Counting,
    Watched,
    examples,
    flat,
    flat_gradient,
    full_batch,
    losses_of,
    network,
    plain_sgd,
    plan_of,
    poisson,
    run,
    take_steps,
    walk,
)

NUM_COORDINATES = flat(network()).numel()


def noise_of(seed: int, std: float, steps: int) -> list[Tensor]:
    """The noise that a session with this seed draws, drawn again by hand."""
    source = Streams.new(CPU, seed=seed).noise
    draws = torch.zeros(steps, NUM_COORDINATES)
    for draw in draws:
        source.add_normal(draw, std)
    return list(draws)


def gradients_of_a_run(plan: Plan, dataset: TensorDataset, *, seed: int, learning_rate: float = 0.0) -> list[Tensor]:
    model = network()
    found = []
    with privatize(model, SGD(model.parameters(), lr=learning_rate), dataset, plan, seed=seed) as session:
        for step in session.steps():
            walk(step, model)
            step.update()
            found.append(flat_gradient(model).clone())
    return found


@pytest.mark.parametrize("num_examples", [0, 5], ids=["no examples", "empty samples"])
def test_an_empty_batch_releases_exactly_noise_and_is_charged(num_examples: int) -> None:
    rate = 0.5 if num_examples == 0 else 1e-9
    plan = plan_of(Poisson(rate=rate, steps=3, expected_batch_size=4.0), norm=0.7, noise_multiplier=1.3)
    model = network()
    counting = Counting(optimizer := plain_sgd(model))
    with privatize(model, optimizer, examples(num_examples), plan, seed=5) as session:
        for step, noise in zip(session.steps(), noise_of(5, 0.7 * 1.3, 3), strict=False):
            assert list(step.microbatches()) == []
            step.update()
            assert torch.equal(flat_gradient(model), noise.div(4.0))
    assert (counting.steps, session.ledger.charged_rounds) == (3, 3)


def test_an_empty_batch_may_be_updated_without_asking_for_its_examples() -> None:
    model = network()
    with privatize(model, plain_sgd(model), examples(0), poisson(3)) as session:
        for step in session.steps():
            step.update()
    assert session.ledger.charged_rounds == 3


def test_a_release_is_the_clipped_sum_plus_noise_over_the_public_size() -> None:
    model = network()
    plan = full_batch(1, norm=0.3, noise_multiplier=0.5)
    inputs, labels = examples().tensors

    def loss(module: nn.Module, index: Tensor) -> Tensor:
        typed = inputs.to(next(module.parameters()).dtype)
        return functional.cross_entropy(module(typed[index]), labels[index], reduction="none")

    expected = loop_clipped_sum(model, loss, torch.arange(8), plan.clipping) + noise_of(9, 0.3 * 0.5, 1)[0]
    with privatize(
        model, plain_sgd(model), examples(), plan, performance=Performance(physical_batch_size=3), seed=9
    ) as session:
        run(session, model)
    assert torch.allclose(flat_gradient(model).double(), expected / 8.0, rtol=0, atol=1e-6)


def test_every_release_has_its_charged_round_and_every_round_its_release() -> None:
    model = network()
    counting = Counting(optimizer := plain_sgd(model))
    with privatize(model, optimizer, examples(5), poisson(40, rate=0.1)) as session:
        for done, step in enumerate(session.steps()):
            assert (counting.steps, session.ledger.charged_rounds) == (done, done + 1)
            walk(step, model)
            step.update()
    assert (counting.steps, session.ledger.charged_rounds) == (40, 40)


def test_steps_are_counted_alike_whatever_they_hold_in_the_session_and_in_its_checkpoint(tmp_path: Path) -> None:
    model = network()
    session = privatize(
        model, plain_sgd(model), examples(), poisson(5), seed=3, folder=tmp_path / "run", checkpoint_every=1
    )
    with session:
        for step in session.steps():
            walk(step, model)
            step.update()
            assert session.steps_taken == step.index + 1
    found = load_checkpoint(tmp_path / "run" / "checkpoint.safetensors")
    assert found is not None
    assert (found.step, found.steps_taken) == (5, 5)


def test_what_the_ledger_says_after_a_run_is_what_the_plan_promised() -> None:
    model = network()
    plan = poisson(4)
    with privatize(model, plain_sgd(model), examples(), plan) as session:
        run(session, model)
    assert session.ledger.charged == [(plan.round_event, 4)]
    found, promised = session.guarantee(), plan.guarantee()
    assert replace(found, assumptions=promised.assumptions) == promised
    assert set(found.assumptions) >= set(promised.assumptions)


def test_an_unfinished_run_is_charged_what_it_used() -> None:
    model = network()
    plan = poisson(4)
    session = privatize(model, plain_sgd(model), examples(), plan)
    assert session.guarantee().epsilon == 0
    with session:
        assert session.guarantee().epsilon == 0
        run(session, model, at_most=2)
    assert session.guarantee().epsilon == poisson(2).guarantee().epsilon


def test_a_round_is_durably_charged_before_any_of_its_examples_is_read(tmp_path: Path) -> None:
    model = network()
    counting = Counting(optimizer := plain_sgd(model))
    seen: list[int] = []

    def look() -> None:
        charged = Ledger.read(tmp_path / "ledger.jsonl").charged_rounds
        assert charged > counting.steps
        seen.append(charged)

    with privatize(model, optimizer, Watched(examples(), look), full_batch(12), folder=tmp_path) as session:
        run(session, model)
    assert sorted(set(seen)) == [10, 12]


@pytest.mark.parametrize("num_examples", [5, 6, 50])
def test_the_size_of_the_data_set_changes_no_constant(num_examples: int) -> None:
    """Records without a gradient, however many and however sampled, leave every release bit for bit the noise."""
    model = network()
    noise = noise_of(2, 1.0, 4)
    with privatize(model, plain_sgd(model), examples(num_examples), poisson(4), seed=2) as session:
        for step, drawn in zip(session.steps(), noise, strict=False):
            step.accumulate(lambda inputs, labels: 0.0 * losses_of(model)(inputs, labels))
            step.update()
            assert torch.equal(flat_gradient(model), drawn.div(4.0))
    assert session.ledger.charged_rounds == 4


@pytest.mark.parametrize("place", [0, 3, 8])
def test_a_record_without_a_gradient_leaves_an_update_bit_for_bit_the_same(place: int) -> None:
    inputs, labels = examples().tensors
    weights = torch.ones(8)
    found = []
    for injected in (False, True):
        tensors = [inputs, labels, weights]
        if injected:
            extra = [torch.full((1, 3), 7.0), labels[:1], torch.zeros(1)]
            tensors = [torch.cat([a[:place], b, a[place:]]) for a, b in zip(tensors, extra, strict=True)]
        model = network()
        session = privatize(
            model,
            plain_sgd(model),
            TensorDataset(*tensors),
            full_batch(),
            performance=Performance(physical_batch_size=1),
            seed=4,
        )
        with session:
            for step in session.steps():
                step.accumulate(lambda x, y, weight, model=model: weight * losses_of(model)(x, y))
                step.update()
        found.append(flat(model))
    assert torch.equal(*found)


def test_one_more_record_moves_a_release_at_most_the_bound_over_the_public_size() -> None:
    """Not over the number of records: dividing by that would move all others too."""
    plan = plan_of(FullBatch(steps=1, expected_batch_size=8.0), norm=0.3)
    inputs, labels = examples(9).tensors
    inputs[8] *= 1e6
    more, fewer = (gradients_of_a_run(plan, TensorDataset(inputs[:size], labels[:size]), seed=0)[0] for size in (9, 8))
    moved = float((more - fewer).norm())
    assert moved <= 0.3 / 8.0 * (1 + 1e-5)
    assert moved >= 0.29 / 8.0


@pytest.mark.parametrize(
    "engine", [BookKeeping(), Functional(), Functional(chunk_size=2)], ids=["book-keeping", "functional", "in pieces"]
)
@pytest.mark.parametrize("physical_batch_size", [1, 3, 256])
def test_engine_and_physical_batch_size_change_neither_the_result_nor_the_charge(
    engine: Engine, physical_batch_size: int
) -> None:
    expected, model = network(), network()
    plan = poisson(4)
    with privatize(expected, plain_sgd(expected), examples(), plan, seed=6) as reference:
        run(reference, expected)
    session = privatize(
        model,
        plain_sgd(model),
        examples(),
        plan,
        performance=Performance(engine=engine, physical_batch_size=physical_batch_size),
        seed=6,
    )
    with session:
        run(session, model)
    assert torch.allclose(flat(model), flat(expected), rtol=0, atol=1e-6)
    assert session.ledger.charged == reference.ledger.charged


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_precision_changes_no_charge(dtype: torch.dtype) -> None:
    model = network().to(dtype)
    inputs, labels = examples().tensors
    plan = poisson(3)
    with privatize(model, plain_sgd(model), TensorDataset(inputs.to(dtype), labels), plan) as session:
        run(session, model)
    assert session.ledger.charged == [(plan.round_event, 3)]
    assert all(value.dtype is dtype and value.grad is not None for value in model.parameters())
    assert flat(model).isfinite().all()


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e38, -1e38])
def test_an_example_with_an_impossible_gradient_adds_nothing(poison: float) -> None:
    plan = full_batch(1)
    inputs, labels = examples().tensors
    poisoned = inputs.clone()
    poisoned[3] = poison
    weights = torch.ones(8)
    weights[3] = 0.0

    def release(tensor: Tensor, weight: Tensor) -> Tensor:
        model = nn.Linear(3, 2)
        nn.init.constant_(model.weight, 0.1)
        nn.init.zeros_(model.bias)
        with privatize(model, plain_sgd(model), TensorDataset(tensor, labels, weight), plan, seed=1) as session:
            for step in session.steps():
                step.accumulate(lambda x, y, w: w * functional.cross_entropy(model(x), y, reduction="none"))
                step.update()
        return flat_gradient(model)

    found, without = release(poisoned, torch.ones(8)), release(inputs, weights)
    assert found.isfinite().all()
    assert float((found - without).norm()) <= 1.0 / 8.0 * (1 + 1e-5)


@dataclass(frozen=True, kw_only=True)
class HalfTheNoise(Gaussian):
    """Says one thing and does another, honestly reporting what it did."""

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        assert self.noise_multiplier is not None
        return Gaussian(noise_multiplier=self.noise_multiplier / 2).add(clipped, source)


def lying() -> Plan:
    return replace(full_batch(), noise=HalfTheNoise(noise_multiplier=2.0))


def test_a_release_that_is_not_what_was_charged_is_refused_and_charged_as_what_it_is() -> None:
    model = network()
    before = flat(model)
    plan = lying()
    session = privatize(model, plain_sgd(model), examples(), plan)

    def body(step: Step) -> None:
        walk(step, model)
        step.update()

    with pytest.raises(LedgerMismatch):
        take_steps(session, body)
    assert torch.equal(flat(model), before)
    assert all(value.grad is None for value in model.parameters())
    assert session.ledger.charged == [(plan.round_event, 1), (Gaussian(noise_multiplier=1.0).event(), 1)]


def test_a_refused_release_cannot_be_tried_again() -> None:
    model = network()
    before = flat(model)
    plan = lying()

    def body(step: Step) -> None:
        walk(step, model)
        with pytest.raises(LedgerMismatch):
            step.update()
        step.update()

    with pytest.raises((LedgerMismatch, LoopError)):
        take_steps(privatize(model, plain_sgd(model), examples(), plan), body)
    assert torch.equal(flat(model), before)


def test_a_mismatch_that_was_caught_comes_up_again_when_the_session_ends() -> None:
    model = network()

    def leave_early() -> None:
        session = privatize(model, plain_sgd(model), examples(), lying())
        with session:
            for step in session.steps():
                walk(step, model)
                with pytest.raises(LedgerMismatch):
                    step.update()
                break

    with pytest.raises(LedgerMismatch):
        leave_early()


def test_a_plan_without_noise_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    model = network()
    plan = replace(full_batch(), noise=Gaussian())
    with pytest.raises(PlanError, match="noise_multiplier"):
        privatize(model, plain_sgd(model), examples(), plan, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
