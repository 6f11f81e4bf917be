"""Laws of training on persons with many records: the person's gradient is what is clipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import StackDataset, Subset, TensorDataset

from privet.errors import ArgumentError, DataError, LoopError, PlanError
from privet.federated import Agreement, ClippedSums, Coordinator, Party, Sessions, run_in_process
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.functional import Functional
from privet.mechanism.clipping import Threshold
from privet.mechanism.grouping import PerLayer
from privet.mechanism.mask_rates import Constant
from privet.mechanism.masking import RandomMask
from privet.mechanism.noise import Gaussian
from privet.mechanism.persons import BoundedPersons, SampledPersons
from privet.mechanism.sampling import FullBatch, Poisson, Sampling
from privet.plan import Plan
from privet.training.augmentation import Views, mean_over_views
from privet.training.distributed.drawing import SharedDraws
from privet.training.performance import Performance
from privet.training.persons import PersonDraws, PersonRecords
from privet.training.session import Session
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit
from tests.contract.test_clipped_sums import RULES, each_rule

NUM = 40
POISSON = Poisson(rate=0.3, steps=4, expected_batch_size=6)
FULL = FullBatch(steps=10, expected_batch_size=1)


def examples(seed: int = 0, size: int = NUM) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(size, 5, generator=generator), torch.randint(0, 3, (size,), generator=generator))


def network() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def plan_of(sampling: Sampling, **changes: Any) -> Plan:
    plan = Plan(
        sampling=sampling,
        clipping=Threshold(norm=0.5),
        noise=Gaussian(noise_multiplier=1.0),
        delta=1e-5,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD if sampling.contribution is None else Unit.PERSON,
    )
    return replace(plan, **changes)


Losses = Callable[..., Tensor]


def losses_of(model: nn.Module) -> Losses:
    return lambda x, y: functional.cross_entropy(model(x), y, reduction="none")


def trained(dataset: Any, plan: Plan, *, wrap: Callable[[Losses], Losses] = lambda f: f, **options: Any) -> Tensor:
    """Train with one seed, and return all weights."""
    model = network()
    with session_of(model, dataset, plan, **options) as session:
        for step in session.steps():
            step.accumulate(wrap(losses_of(model)))
            step.update()
    return weights_of(model)


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().reshape(-1) for value in model.parameters()])


def session_of(model: nn.Module, dataset: Any, plan: Plan, **options: Any) -> Session:
    return privatize(model, torch.optim.SGD(model.parameters(), lr=0.5), dataset, plan, seed=7, **options)


def clipped_sum(dataset: Any, plan: Plan, *, first: int = 0, **options: Any) -> Tensor:
    """Return the sum of one step, without its noise: noise that is far too small to see."""
    model = network()
    quiet = replace(plan, noise=Gaussian(noise_multiplier=1e-9))
    with session_of(model, dataset, quiet, **options) as session:
        step = next(iter(session.steps(first=first)))
        step.accumulate(losses_of(model))
        step.update()
        found = torch.cat([value.grad.reshape(-1) for value in model.parameters() if value.grad is not None])
    return found * plan.sampling.expected_batch_size


def owned(dataset: Any, owners: Any) -> PersonRecords:
    return PersonRecords(dataset=dataset, persons=owners)


# ------------------------------------------------------------------------------------------------- bit for bit


@pytest.mark.parametrize("engine", [BookKeeping(), Functional()], ids=["book-keeping", "functional"])
@pytest.mark.parametrize(
    "around", [lambda s: SampledPersons(sampling=s, max_records=1), lambda s: BoundedPersons(sampling=s, max_records=5)]
)
def test_with_one_record_per_person_a_run_is_the_record_level_one_bit_for_bit(around: Any, engine: Any) -> None:
    performance = Performance(engine=engine, physical_batch_size=7)
    records = trained(examples(), plan_of(POISSON), performance=performance)
    persons = trained(owned(examples(), range(NUM)), plan_of(around(POISSON)), performance=performance)
    assert torch.equal(records, persons)


def test_one_record_each_of_several_that_may_come_is_the_same_up_to_rounding() -> None:
    records = trained(examples(), plan_of(POISSON))
    persons = trained(owned(examples(), range(NUM)), plan_of(SampledPersons(sampling=POISSON, max_records=3)))
    torch.testing.assert_close(records, persons, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------------------------- the bound on a person


@pytest.mark.parametrize("engine", [BookKeeping(), Functional()], ids=["book-keeping", "functional"])
@each_rule
def test_a_person_with_a_thousand_records_moves_the_sum_by_at_most_the_bound(rule: str, engine: Any) -> None:
    many = examples(size=1000)
    # the largest gradients that the loss has: every record counts a hundredfold
    large = TensorDataset(many.tensors[0] * 100, many.tensors[1])
    sampling = SampledPersons(sampling=FULL, max_records=64)
    piece, first = RULES[rule]
    plan = plan_of(sampling, clipping=piece, grouping=PerLayer())
    options = {"performance": Performance(engine=engine, physical_batch_size=128)}
    found = clipped_sum(owned(large, [0] * 1000), plan, first=first, **options)
    bound = max(piece.start(num_groups=2, num_steps=20, expected_batch_size=1).begin(first, found).sensitivity.bounds)
    assert found.norm() <= bound * 2**0.5 * (1 + 1e-5)
    assert found.norm() > 0.1 * bound or "drop" in rule or "after" in rule, "a rule that drops long gradients drops it"


def test_bounded_records_of_a_person_move_the_sum_by_at_most_their_number_of_bounds() -> None:
    plan = plan_of(BoundedPersons(sampling=FULL, max_records=3))
    same = TensorDataset(torch.ones(1000, 5) * 50, torch.zeros(1000, dtype=torch.long))
    found = clipped_sum(owned(same, [0] * 1000), plan)
    assert found.norm() == pytest.approx(3 * 0.5, rel=1e-4), "three equal records, each clipped by itself"


@pytest.mark.parametrize("engine", [BookKeeping(), Functional()], ids=["book-keeping", "functional"])
@pytest.mark.parametrize("size", [8, 11, 64])
def test_the_clipped_gradient_is_the_mean_over_the_persons_records(engine: Any, size: int) -> None:
    """Gradients are averaged, not inputs; physical batches of any size give the same sum."""
    data, owners = examples(), np.repeat(np.arange(8), 5)
    plan = plan_of(SampledPersons(sampling=FULL, max_records=8))
    found = clipped_sum(owned(data, owners), plan, performance=Performance(engine=engine, physical_batch_size=size))
    model, wanted = network(), torch.zeros(0)
    for person in range(8):
        rows = torch.from_numpy(np.flatnonzero(owners == person))
        loss = losses_of(model)(data.tensors[0][rows], data.tensors[1][rows]).mean()
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
        clipped = gradient * min(1.0, 0.5 / float(gradient.norm()))
        wanted = clipped if person == 0 else wanted + clipped
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_persons_with_few_records_are_not_diluted_by_the_filling() -> None:
    one = clipped_sum(owned(Subset(examples(), [3]), ["a"]), plan_of(SampledPersons(sampling=FULL, max_records=1)))
    many = clipped_sum(owned(Subset(examples(), [3]), ["a"]), plan_of(SampledPersons(sampling=FULL, max_records=9)))
    torch.testing.assert_close(one, many, rtol=1e-5, atol=1e-7)


def test_a_person_with_a_record_whose_gradient_is_not_finite_adds_nothing() -> None:
    data, owners = examples(), np.repeat(np.arange(8), 5)
    spoiled = data.tensors[0].clone()
    spoiled[7] = float("inf")
    plan = plan_of(SampledPersons(sampling=FULL, max_records=5))
    found = clipped_sum(owned(TensorDataset(spoiled, data.tensors[1]), owners), plan)
    rest = [place for place in range(NUM) if owners[place] != 1]
    without = clipped_sum(owned(Subset(data, rest), owners[rest]), plan)
    torch.testing.assert_close(found, without, rtol=1e-4, atol=1e-6)


# --------------------------------------------------------------------------------------- it works with the rest


def test_manual_loops_masks_groups_and_views_work_with_persons() -> None:
    data = owned(examples(), np.repeat(np.arange(10), 4))
    sampling = SampledPersons(sampling=POISSON, max_records=3)
    mask = RandomMask(schedule=Constant(value=0.5))
    for plan in (plan_of(sampling), plan_of(sampling, mask=mask, grouping=PerLayer())):
        by_hand = network()
        with session_of(by_hand, data, plan) as session:
            for step in session.steps():
                for batch in step.microbatches():
                    step.backward(losses_of(by_hand)(*batch))
                step.update()
        torch.testing.assert_close(weights_of(by_hand), trained(data, plan), rtol=1e-5, atol=1e-7)
    views = Views(dataset=examples(), transform=lambda rows: rows, num_views=2)
    twice = trained(owned(views, np.repeat(np.arange(10), 4)), plan_of(sampling), wrap=mean_over_views)
    torch.testing.assert_close(twice, trained(data, plan_of(sampling)), rtol=1e-4, atol=1e-6)


def test_a_field_names_the_person_and_stays_out_of_the_loss() -> None:
    data, owners = examples(), np.repeat(np.arange(10), 4)
    plan = plan_of(SampledPersons(sampling=POISSON, max_records=3))
    wanted = trained(owned(data, owners), plan)
    items = [(x, f"person {who}", y) for (x, y), who in zip(data, owners, strict=True)]
    assert torch.equal(trained(PersonRecords(dataset=items, person_of=1), plan), wanted)
    called = PersonRecords(dataset=items, person_of=lambda item: item[1]).owners
    assert (called.of_record == owners).all()
    mappings = [{"x": x, "who": int(who), "y": y} for (x, y), who in zip(data, owners, strict=True)]
    by_key = trained(PersonRecords(dataset=mappings, person_of="who"), plan, wrap=lambda f: lambda b: f(b["x"], b["y"]))
    assert torch.equal(by_key, wanted)
    with pytest.raises(DataError, match="names no field"):
        PersonRecords(dataset=mappings, person_of="patient")


def test_workers_read_the_records_of_persons(tmp_path: Path) -> None:
    array = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (NUM, 5))
    array[:] = examples().tensors[0].numpy()
    stacked: Any = StackDataset(np.load(tmp_path / "x.npy", mmap_mode="r"), examples().tensors[1])
    plan, owners = plan_of(SampledPersons(sampling=POISSON, max_records=3)), np.repeat(np.arange(10), 4)
    ahead = trained(owned(stacked, owners), plan, performance=Performance(workers=1))
    assert torch.equal(ahead, trained(owned(examples(), owners), plan))


def test_a_run_is_resumed_and_refuses_other_owners(tmp_path: Path) -> None:
    plan, owners = plan_of(BoundedPersons(sampling=POISSON, max_records=3)), np.repeat(np.arange(10), 4)
    model = network()
    with session_of(model, owned(examples(), owners), plan, folder=tmp_path, checkpoint_every=1) as session:
        for step in session.steps():
            step.accumulate(losses_of(model))
            step.update()
            if step.index == 1:
                break
    with pytest.raises(DataError, match="not those this run began with"):
        session_of(network(), owned(examples(), np.tile(np.arange(10), 4)), plan, folder=tmp_path).__enter__()
    again = network()
    with session_of(again, owned(examples(), owners), plan, folder=tmp_path) as session:
        for step in session.steps():
            step.accumulate(losses_of(again))
            step.update()
    assert session.is_complete


@pytest.mark.parametrize("way", [ClippedSums(), Sessions(learning_rate=0.5)], ids=["sums", "sessions"])
@pytest.mark.parametrize(
    "sampling",
    [SampledPersons(sampling=FULL, max_records=3), BoundedPersons(sampling=FULL, max_records=3)],
    ids=["persons", "records"],
)
def test_parties_that_hold_persons_train_the_central_model(way: Any, sampling: Any, tmp_path: Path) -> None:
    """Two parties with three records of each person: no record is left out, so only the noise could differ."""
    data, owners = examples(size=30), np.repeat(np.arange(10), 3)
    plan = plan_of(sampling, noise=Gaussian(noise_multiplier=1e-7))
    agreement = Agreement(plan=plan, contribution=way, learning_rate=0.5, max_records=30)
    assert "nobody's data lie with two parties" in agreement.guarantee().assumptions
    parties = {}
    for number, rows in enumerate((range(12), range(12, 30))):
        model = network()
        parties[number] = Party(
            agreement=agreement,
            model=model,
            dataset=owned(Subset(data, list(rows)), owners[list(rows)]),
            losses=losses_of(model),
            folder=tmp_path / str(number),
            seed=number,
        )
    with Coordinator(agreement=agreement, model=network(), folder=tmp_path / "c", seed=5) as coordinator:
        run_in_process(coordinator, parties)
    if isinstance(way, ClippedSums):
        torch.testing.assert_close(weights_of(coordinator.model), trained(owned(data, owners), plan), atol=1e-4, rtol=0)
    assert (weights_of(coordinator.model) - weights_of(network())).abs().max() > 0.01
    with pytest.raises(DataError, match="whose they are"):
        Party(agreement=agreement, model=network(), dataset=data, losses=losses_of(network()), folder=tmp_path / "b")


# ------------------------------------------------------------------------------------------------------ refusals


def test_a_person_that_does_not_fit_into_a_physical_batch_is_refused() -> None:
    plan = plan_of(SampledPersons(sampling=POISSON, max_records=9))
    with pytest.raises(PlanError, match="must go through the model together"):
        session_of(network(), owned(examples(), range(NUM)), plan, performance=Performance(physical_batch_size=8))


def test_data_that_do_not_say_whose_records_they_are_are_refused() -> None:
    with pytest.raises(DataError, match="whose they are"):
        session_of(network(), examples(), plan_of(SampledPersons(sampling=POISSON, max_records=2)))


def test_a_plan_about_persons_must_bound_their_records() -> None:
    with pytest.raises(DataError, match="SampledPersons"):
        session_of(network(), owned(examples(), range(NUM)), plan_of(POISSON, unit=Unit.PERSON))


def test_records_with_owners_can_be_protected_as_records() -> None:
    plain = trained(examples(), plan_of(POISSON))
    assert torch.equal(trained(owned(examples(), [1] * NUM), plan_of(POISSON)), plain)


def test_records_with_owners_get_no_second_ones() -> None:
    owned = PersonRecords(dataset=examples(size=4), persons="aabb")
    with pytest.raises(ArgumentError, match="several owners"):
        PersonRecords(dataset=owned, persons="abab")


def test_names_and_records_must_be_equally_many() -> None:
    with pytest.raises(DataError, match="numbers differ"):
        owned(examples(), [1, 2, 3])
    with pytest.raises(ArgumentError, match="one of persons"):
        PersonRecords(dataset=examples())


def test_a_loss_that_is_a_mean_is_refused() -> None:
    model = network()
    plan = plan_of(SampledPersons(sampling=FULL, max_records=2))
    with session_of(model, owned(examples(), [0, 0, 1, 1] * 10), plan) as session:
        step = next(iter(session.steps()))
        with pytest.raises(LoopError, match="one loss for each"):
            step.accumulate(lambda x, y: functional.cross_entropy(model(x), y))


def test_a_person_is_on_one_rank_with_all_records_of_the_step() -> None:
    data = owned(examples(), np.repeat(np.arange(10), 4))
    sampling = SampledPersons(sampling=FULL, max_records=3)
    found = []
    for rank in range(3):
        # every rank has the same streams, since they share the run's secret
        items, records = np.random.default_rng(1), np.random.default_rng(2)
        draws = PersonDraws(sampling=sampling, contribution=sampling, dataset=data)
        ranks: Any = SimpleNamespace(rank=rank, size=3)
        found += list(SharedDraws(ranks, b"key", pads=False).parts(lambda d=draws, i=items, r=records: d.round(i, r)))  # type: ignore[misc]
    assert [part.shape[1] for part in found] == [3, 3, 3]
    owners = [set(data.owners.of_record[part.reshape(-1)].tolist()) for part in found]
    assert sorted(person for part in owners for person in part) == list(range(10))
