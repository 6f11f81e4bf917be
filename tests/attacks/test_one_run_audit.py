"""The one-run audit on real trainings: correct ones pass, ones without their noise are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from privet.attacks.audit_claim import AuditFinding
from privet.attacks.canary_attacks import GradientAttack, LossAttack
from privet.attacks.one_run_audit import OneRunAudit
from privet.errors import DataError, PlanError
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FixedSize, Poisson
from privet.mechanism.sums import ClippedSum, NormalSource, PrivateSum
from privet.plan import Plan
from privet.vocabulary import Adjacency, Unit

WIDTH, CLASSES, CANARIES = 600, 10, 300


@dataclass(frozen=True, kw_only=True)
class AlmostNoNoise(Gaussian):
    """Broken: adds a thousandth of what it says."""

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        return super().add(clipped, _Thousandth(inner=source))


@dataclass(frozen=True, kw_only=True)
class _Thousandth:
    inner: NormalSource

    def add_normal(self, flat: Tensor, std: float) -> None:
        self.inner.add_normal(flat, std / 1000)


def plan_of(noise: Gaussian) -> Plan:
    return Plan(
        sampling=Poisson(rate=0.5, steps=20, expected_batch_size=200.0),
        clipping=Threshold(norm=1.0),
        noise=noise,
        delta=1e-5,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )


def drawn(num: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num, WIDTH, generator=generator), torch.randint(0, CLASSES, (num,), generator=generator)


def losses_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda inputs, labels: functional.cross_entropy(model(inputs), labels, reduction="none")


def audited(plan: Plan, *, rows: int = CANARIES, seed: int = 0) -> tuple[AuditFinding, ...]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(WIDTH, CLASSES)
    return OneRunAudit(confidence=0.99, seed=seed).run(
        model,
        SGD(model.parameters(), lr=0.5),
        plan,
        losses=losses_of(model),
        records=drawn(100, 1),
        canaries=drawn(rows, 2),
        attacks=[LossAttack(), GradientAttack(every=2)],
    )


def test_a_correct_training_passes_both_attackers() -> None:
    plan = plan_of(Gaussian(noise_multiplier=4.0))
    for found in audited(plan):
        assert not found.is_broken
        assert found.epsilon_bound < found.epsilon_claim == pytest.approx(plan.guarantee().epsilon)
        assert (found.num_canaries, found.num_rounds) == (CANARIES, 20)


def test_a_training_without_its_noise_is_found_by_both_attackers() -> None:
    for found in audited(plan_of(AlmostNoNoise(noise_multiplier=4.0))):
        assert found.is_broken
        assert found.epsilon_bound > 1.5 * found.epsilon_claim


def test_more_leaks_show_as_a_larger_bound() -> None:
    loose, tight = (audited(plan_of(Gaussian(noise_multiplier=size)))[1] for size in (0.5, 8.0))
    assert loose.epsilon_bound > 1 > tight.epsilon_bound
    assert not loose.is_broken


def test_the_gradient_attack_scores_by_every_canarys_own_inner_product() -> None:
    model = nn.Linear(WIDTH, CLASSES)
    features, labels = drawn(5, 3)
    run = GradientAttack().start(model, losses_of(model), (features, labels))
    for value in model.parameters():
        value.grad = torch.randn(value.shape, generator=torch.Generator().manual_seed(4))
    released = [value.grad for value in model.parameters()]
    run.after_step(0)
    for place in range(5):
        own = torch.autograd.grad(
            losses_of(model)(features[place : place + 1], labels[place : place + 1]).sum(), list(model.parameters())
        )
        expected = sum(float((a * b).sum()) for a, b in zip(own, released, strict=True) if b is not None)
        assert run.scores()[place] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_replaced_record_has_a_stand_in_and_the_number_of_records_stays() -> None:
    plan = replace(
        plan_of(Gaussian(noise_multiplier=4.0)),
        sampling=FixedSize(dataset_size=150, batch_size=75, steps=3),
        adjacency=Adjacency.REPLACE_ONE,
    )
    found = audited(plan, rows=200)
    assert [each.num_canaries for each in found] == [100, 100]
    assert not any(each.is_broken for each in found)


def test_what_cannot_be_audited_in_one_run_is_refused() -> None:
    plan = plan_of(Gaussian(noise_multiplier=4.0))
    with pytest.raises(PlanError, match="blank"):
        audited(replace(plan, adjacency=Adjacency.ZERO_OUT))
    with pytest.raises(DataError, match="per canary"):
        audited(plan, rows=0)
    small = FixedSize(dataset_size=50, batch_size=25, steps=3)
    with pytest.raises(DataError, match="Use fewer"):
        audited(replace(plan, sampling=small, adjacency=Adjacency.REPLACE_ONE))


@pytest.mark.slow
def test_a_hundred_correct_trainings_give_no_more_alarms_than_allowed() -> None:
    plan = plan_of(Gaussian(noise_multiplier=1.0))
    alarms = sum(any(found.is_broken for found in audited(plan, seed=seed)) for seed in range(100))
    # two attackers at 1 percent each: more than 8 alarms in 100 have a probability below 1e-3
    assert alarms <= 8
