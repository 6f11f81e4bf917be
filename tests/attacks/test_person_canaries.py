"""Canaries who are persons: audits hold where the person is clipped, and break where each record is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.attacks.audit_claim import AuditFinding
from privet.attacks.canary_audit import CanaryAudit, Coins, sharpened
from privet.attacks.one_run_audit import OneRunAudit
from privet.errors import PlanError
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.owners import PersonPool, RecordPool
from privet.mechanism.persons import BoundedPersons, SampledPersons
from privet.mechanism.sampling import FixedSize, FullBatch, Poisson, Sampling
from privet.plan import Plan
from privet.vocabulary import Adjacency, Unit

SIZE, MOST = 64, 3
FULL = FullBatch(steps=10, expected_batch_size=100.0)


def plan_of(sampling: Sampling, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Plan:
    return Plan(
        sampling=sampling,
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=1.0),
        delta=1e-5,
        adjacency=adjacency,
        unit=Unit.PERSON,
    )


def audited(plan: Plan, coins: Coins = Coins.EVERY_ROUND) -> AuditFinding:
    torch.manual_seed(0)
    model = nn.Linear(SIZE, 10)
    made_up = torch.randn(400, SIZE), torch.randint(0, 10, (400,))

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(model(x), y, reduction="none")

    audit = CanaryAudit(num_canaries=400, num_rounds=10, coins=coins, physical_batch_size=100)
    return audit.run(model, plan, losses=losses, record=made_up)


HOLDING: dict[str, Plan] = {
    "persons": plan_of(SampledPersons(sampling=FULL, max_records=MOST)),
    "persons, sampled": plan_of(
        SampledPersons(sampling=Poisson(rate=0.5, steps=10, expected_batch_size=50), max_records=MOST)
    ),
    "persons of an exact number, exchanged": plan_of(
        SampledPersons(sampling=FixedSize(dataset_size=500, batch_size=250, steps=10), max_records=MOST),
        Adjacency.REPLACE_ONE,
    ),
    "records": plan_of(BoundedPersons(sampling=FULL, max_records=MOST)),
    "records, sampled": plan_of(
        BoundedPersons(sampling=Poisson(rate=0.5, steps=10, expected_batch_size=50), max_records=MOST)
    ),
    "records, blanked": plan_of(
        BoundedPersons(sampling=Poisson(rate=0.5, steps=10, expected_batch_size=50), max_records=MOST),
        Adjacency.ZERO_OUT,
    ),
}


@pytest.mark.parametrize("name", HOLDING)
def test_person_canaries_do_not_break_the_claim_and_come_close_to_it(name: str) -> None:
    found = audited(HOLDING[name])
    assert not found.is_broken
    assert found.noise_bound is not None
    assert found.noise_bound < 2.5 * found.noise_claim, "the audit would see noise that is too small"


def test_the_whole_run_is_audited_with_one_coin_per_person() -> None:
    assert not audited(HOLDING["records, sampled"], Coins.ONCE).is_broken


def test_an_audit_with_little_noise_keeps_the_bound_on_records() -> None:
    for name in ("persons, sampled", "records, sampled"):
        sharp = sharpened(HOLDING[name], num_rounds=5)
        assert sharp.sampling.contribution is not None
        assert sharp.sampling.contribution.max_records == MOST
        assert not audited(sharp).is_broken


@pytest.mark.parametrize("name", ["persons", "persons, sampled"])
def test_clipping_each_record_of_a_person_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def each_by_itself(self: Any, items: Any, rng: np.random.Generator) -> Any:
        return self.owners.chosen(items, self.max_records, rng)[0]

    monkeypatch.setattr(PersonPool, "records", each_by_itself)
    monkeypatch.setattr(SampledPersons, "records_per_item", 1)
    assert audited(HOLDING[name]).is_broken


def test_keeping_more_records_than_are_charged_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        BoundedPersons, "pool", lambda self, owners, rng: RecordPool(kept=np.arange(len(owners.of_record)))
    )
    assert audited(HOLDING["records"]).is_broken


def test_the_one_run_audit_leaves_persons_to_the_canary_audit() -> None:
    model, rows = nn.Linear(3, 2), (torch.zeros(8, 3), torch.zeros(8, dtype=torch.long))
    with pytest.raises(PlanError, match="For persons use the canary audit"):
        OneRunAudit().run(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            HOLDING["persons"],
            losses=lambda x, y: functional.cross_entropy(model(x), y, reduction="none"),
            records=rows,
            canaries=rows,
            attacks=[],
        )
