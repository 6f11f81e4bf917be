"""The total of a project: every ledger counts, once, and only what can be added is added."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from privet.accounting.ledger import Ledger
from privet.errors import ArgumentError
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch, Poisson
from privet.plan import Plan
from privet.runs.project import total_of_runs
from privet.vocabulary import Adjacency, Unit
from tests.accounting.ledgers import done

PLAN = Plan(
    sampling=Poisson(rate=0.02, steps=40, expected_batch_size=20),
    clipping=Threshold(norm=1.0),
    noise=Gaussian(noise_multiplier=1.5),
    delta=1e-5,
    adjacency=Adjacency.ADD_REMOVE,
    unit=Unit.RECORD,
)


def ledger_of(plan: Plan, path: Path, rounds: int | None = None) -> Path:
    with Ledger.create(path, plan=plan.to_dict(), plan_hash=plan.hash) as ledger:
        ledger.reserve(plan.round_event, plan.num_rounds if rounds is None else rounds)
        for _ in range(plan.num_rounds if rounds is None else rounds):
            ledger.check(done(plan.round_event))
    return path


def test_one_run_alone_has_its_own_guarantee(tmp_path: Path) -> None:
    found = total_of_runs([ledger_of(PLAN, tmp_path / "a.jsonl")])
    assert found.guarantee.epsilon == PLAN.guarantee().epsilon
    assert found.mismatch is None


def test_two_runs_cost_more_than_one_and_less_than_their_sum(tmp_path: Path) -> None:
    other = replace(PLAN, sampling=FullBatch(steps=2, expected_batch_size=1000), noise=Gaussian(noise_multiplier=5.0))
    found = total_of_runs([ledger_of(PLAN, tmp_path / "a.jsonl"), ledger_of(other, tmp_path / "b.jsonl")])
    alone = [PLAN.guarantee().epsilon, other.guarantee().epsilon]
    assert max(alone) < found.guarantee.epsilon < sum(alone)
    assert [check.spent.epsilon for check in found.runs.values()] == alone
    assert set(PLAN.assumptions) <= set(found.guarantee.assumptions)
    assert len(set(found.guarantee.assumptions)) == len(found.guarantee.assumptions)


def test_twice_the_same_plan_is_twice_the_steps(tmp_path: Path) -> None:
    found = total_of_runs([ledger_of(PLAN, tmp_path / "a.jsonl"), ledger_of(PLAN, tmp_path / "b.jsonl")])
    longer = replace(PLAN, sampling=Poisson(rate=0.02, steps=80, expected_batch_size=20))
    assert found.guarantee.epsilon == pytest.approx(longer.guarantee().epsilon, rel=1e-9)


def test_an_unfinished_run_counts_with_what_it_charged(tmp_path: Path) -> None:
    found = total_of_runs([ledger_of(PLAN, tmp_path / "a.jsonl", rounds=7)])
    assert found.guarantee.epsilon < PLAN.guarantee().epsilon


def test_another_delta_can_be_asked_for(tmp_path: Path) -> None:
    path = ledger_of(PLAN, tmp_path / "a.jsonl")
    assert total_of_runs([path], delta=1e-7).guarantee.epsilon > total_of_runs([path]).guarantee.epsilon


def test_the_same_ledger_twice_is_refused(tmp_path: Path) -> None:
    path = ledger_of(PLAN, tmp_path / "a.jsonl")
    with pytest.raises(ArgumentError, match="named twice"):
        total_of_runs([path, path])
    with pytest.raises(ArgumentError, match="named twice"):
        total_of_runs([path, path.parent / "." / ".." / path.parent.name / "a.jsonl"])
    shutil.copy(path, tmp_path / "copy.jsonl")
    with pytest.raises(ArgumentError, match="named twice"):
        total_of_runs([path, tmp_path / "copy.jsonl"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"adjacency": Adjacency.ZERO_OUT}, "different adjacency"),
        ({"unit": Unit.PERSON}, "different unit"),
        ({"delta": 1e-6}, "different deltas"),
    ],
    ids=["adjacency", "unit", "delta"],
)
def test_what_has_no_common_guarantee_is_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    other = replace(PLAN, **change)  # type: ignore[arg-type]
    paths = [ledger_of(PLAN, tmp_path / "a.jsonl"), ledger_of(other, tmp_path / "b.jsonl")]
    with pytest.raises(ArgumentError, match=words):
        total_of_runs(paths)


def test_a_project_without_runs_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at least one run"):
        total_of_runs([])
