"""Releases besides the rounds of a plan: charged in full, never given back, and no rounds of the plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from privet.accounting.charges import HypotheticalCharges, without_besides
from privet.accounting.ledger import Ledger, Purpose, VoidReason
from privet.errors import LedgerCorrupt, LedgerMismatch
from privet.mechanism.clipping import Threshold
from privet.mechanism.epoch_sampling import Cyclic
from privet.mechanism.events import compose, gaussian_event, same_event
from privet.mechanism.noise import Gaussian
from privet.mechanism.strong_convexity import StronglyConvexDescent
from privet.plan import Plan
from privet.vocabulary import Adjacency, Release, Unit
from tests.accounting.ledgers import create, done, reopen, step

FURTHER = gaussian_event(bounds=(1.0,), stds=(7.0,))


def reserve_further(ledger: Ledger) -> None:
    ledger.reserve_further(FURTHER, purpose=Purpose.EVALUATION, coordinates=5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def test_a_further_release_is_charged_durably_and_is_no_round_of_the_plan(path: Path) -> None:
    with create(path) as ledger:
        ledger.reserve(step(), 3)
        for _ in range(3):
            ledger.check(done(step()))
        reserve_further(ledger)
        seen = Ledger.read(path)
        assert seen.charged_rounds == 3
        assert same_event(seen.event, compose([(step(), 3), (FURTHER, 1)]))
        assert [(event, rounds) for event, rounds in seen.planned] == [(seen.planned[0][0], 3)]
        assert same_event(seen.besides[0][0], FURTHER)
        ledger.check(done(FURTHER))
        ledger.verify([(step(), 3)])
    assert Ledger.read(path).further[0].coordinates == 5


def test_a_further_release_of_the_same_event_as_a_round_is_told_from_it(path: Path) -> None:
    with create(path) as ledger:
        ledger.reserve(FURTHER, 2)
        ledger.check(done(FURTHER))
        ledger.check(done(FURTHER))
        reserve_further(ledger)
        ledger.check(done(FURTHER))
        ledger.verify([(FURTHER, 2)])
        with pytest.raises(LedgerMismatch):
            ledger.verify([(FURTHER, 1)])
    assert Ledger.read(path).charged_rounds == 2


def test_a_further_release_that_was_never_made_is_not_given_back(path: Path) -> None:
    with create(path) as ledger:
        reserve_further(ledger)
    view = Ledger.read(path)
    assert same_event(view.event, FURTHER)
    assert json.loads(path.read_bytes().splitlines()[-1])["body"] == {"returned": []}


def test_a_row_that_gives_one_back_breaks_the_chain(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = create(path)
    reserve_further(ledger)
    ledger._gives_back = True
    with pytest.raises(LedgerCorrupt, match="gives back a release besides the plan"):
        ledger.close()


def test_a_voided_one_stays_charged_and_another_process_cannot_use_it(path: Path) -> None:
    with create(path) as ledger:
        reserve_further(ledger)
        ledger.void(VoidReason.STEP_FAILED)
    with reopen(path) as again:
        assert again.available == 0
        assert same_event(again.event, FURTHER)


def test_what_ran_otherwise_is_charged_on_top(path: Path) -> None:
    stronger = gaussian_event(bounds=(1.0,), stds=(1.0,))
    with create(path) as ledger:
        reserve_further(ledger)
        with pytest.raises(LedgerMismatch):
            ledger.check(done(stronger))
    assert same_event(Ledger.read(path).event, compose([(FURTHER, 1), (stronger, 1)]))


def test_every_guarantee_says_what_a_further_release_rests_on(path: Path) -> None:
    with create(path) as ledger:
        reserve_further(ledger)
        assert Purpose.EVALUATION.assumption in ledger.assumptions


def last_iterate() -> Plan:
    descent = StronglyConvexDescent(learning_rate=0.5, ridge=0.1, gradient_bound=1.0, smoothness=1.0)
    return Plan(
        sampling=Cyclic(epochs=20, batches=5, expected_batch_size=100.0),
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=8.0),
        delta=1e-5,
        adjacency=Adjacency.REPLACE_ONE,
        unit=Unit.RECORD,
        release=Release.LAST_ITERATE,
        descent=descent,
    )


def test_the_bound_on_the_last_model_stands_beside_a_further_release_and_both_are_charged(path: Path) -> None:
    plan = last_iterate()
    with create(path) as ledger:
        ledger.reserve(plan.round_event, plan.num_rounds)
        for _ in range(plan.num_rounds):
            ledger.check(done(plan.round_event))
        ledger.complete()
        alone = plan.account(ledger)
        reserve_further(ledger)
        ledger.check(done(FURTHER))
        both = plan.account(ledger)
        assert both.released is alone.released is Release.LAST_ITERATE
        assert both.mu is not None
        assert alone.mu is not None
        # two Gaussian releases; to replace a record moves counts twice as far
        assert both.mu == pytest.approx((alone.mu**2 + (2 / 7) ** 2) ** 0.5, rel=1e-9)
        assert plan.account(without_besides(ledger)).epsilon == alone.epsilon
        promised = HypotheticalCharges(planned=plan.segments, besides=((FURTHER, 1),), is_complete=True)
        assert plan.account(promised).epsilon == both.epsilon
        assert plan.is_finished(ledger)


def test_charges_without_releases_besides_keep_every_other_fact() -> None:
    facts = HypotheticalCharges(
        planned=((FURTHER, 3),),
        besides=((FURTHER, 1),),
        is_complete=True,
        is_seeded=True,
        assumptions=("one",),
        why_not_private=("two",),
        tried=("three",),
    )
    assert without_besides(facts) == replace(facts, besides=())
