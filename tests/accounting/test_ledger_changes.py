"""Rows about changed weights: public ones with their reason, unexplained ones that end every promise."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from privet.accounting.ledger import Ledger
from privet.errors import ArgumentError, LedgerCorrupt, LedgerMismatch
from tests.accounting.ledgers import PLAN, PLAN_HASH, create, done, reopen, step
from tests.accounting.test_ledger_faults import FaultyFiles


def test_a_public_change_is_durable_at_once_and_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with create(path) as ledger:
        ledger.reserve(step(), 2)
        ledger.check(done(step()))
        ledger.note_public_change("loads public weights, caf\N{LATIN SMALL LETTER E WITH ACUTE}", step=1)
        assert Ledger.read(path).assumptions == ledger.assumptions
        ledger.check(done(step()))
    view = Ledger.read(path)
    assert view.charged == [(step(), 2)]
    (said,) = view.assumptions
    assert "after step 1 by: loads public weights, caf\N{LATIN SMALL LETTER E WITH ACUTE};" in said
    view.verify([(step(), 2)])
    with reopen(path) as ledger:
        assert ledger.assumptions == (said,)


def test_the_same_change_is_said_once(tmp_path: Path) -> None:
    with create(tmp_path / "ledger.jsonl") as ledger:
        for _ in range(3):
            ledger.note_public_change("clamps the weights", step=4)
        assert len(ledger.assumptions) == 1


def test_after_an_unexplained_change_no_plan_agrees_and_the_reason_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with create(path) as ledger:
        ledger.reserve(step())
        ledger.check(done(step()))
        ledger.note_unexplained_change(step=1)
        with pytest.raises(LedgerMismatch, match="no private step"):
            ledger.verify([(step(), 1)])
    view = Ledger.read(path)
    assert view.why_not_private == ("its weights were changed after step 1 by something that was no private step",)
    with pytest.raises(LedgerMismatch, match="no private step"):
        view.verify([(step(), 1)])


@pytest.mark.parametrize(
    ("is_early", "is_late", "counts"), [(False, True, True), (True, False, False), (True, True, False)]
)
def test_a_public_change_takes_the_end_of_a_plan_away_unless_it_comes_after_it(
    is_early: bool, is_late: bool, counts: bool, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.jsonl"
    with create(path) as ledger:
        ledger.reserve(step())
        if is_early:
            ledger.note_public_change("clamps the weights", step=0)
        ledger.check(done(step()))
        ledger.complete()
        if is_late:
            ledger.note_public_change("clamps the weights again", step=1)
        assert ledger.is_complete == counts
    assert Ledger.read(path).is_complete == counts


def test_an_unexplained_change_takes_the_end_of_a_plan_away_for_good(tmp_path: Path) -> None:
    with create(tmp_path / "ledger.jsonl") as ledger:
        ledger.complete()
        ledger.note_unexplained_change(step=1)
        assert not ledger.is_complete
        ledger.complete()
        assert not ledger.is_complete


def test_what_the_disk_refuses_to_record_ends_the_promise_of_the_process_that_saw_it(tmp_path: Path) -> None:
    disk = FaultyFiles()
    ledger = Ledger.create(tmp_path / "ledger.jsonl", plan=PLAN, plan_hash=PLAN_HASH, files=disk)
    disk.failing["append"] = errno.ENOSPC
    with pytest.raises(LedgerMismatch, match="unrecorded"):
        ledger.note_unexplained_change(step=1)
    assert "the disk refused to record it" in ledger.why_not_private[0]
    ledger.close()


def test_first_row_and_changes_are_told_together(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger.create(path, plan=PLAN, plan_hash=PLAN_HASH, assumptions=("the coordinator is honest",)) as ledger:
        ledger.note_public_change("clamps the weights", step=0)
    first, second = Ledger.read(path).assumptions
    assert first == "the coordinator is honest"
    assert "clamps the weights" in second


@pytest.mark.parametrize("reason", ["", "ab", " padded ", "a\tb", "x" * 201, None, 7])
def test_reasons_that_are_no_words_are_refused_and_write_nothing(reason: object, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with create(path) as ledger:
        before = path.read_bytes()
        with pytest.raises(ArgumentError, match="printable"):
            ledger.note_public_change(reason, step=0)  # type: ignore[arg-type]
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new"), [(b'"step":1', b'"step":2'), (b"public", b"PUBLIC"), (b'"kind":"change"', b'"kind":"chance"')]
)
def test_an_edited_row_is_noticed(old: bytes, new: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with create(path) as ledger:
        ledger.note_public_change("loads public weights", step=1)
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(LedgerCorrupt):
        Ledger.read(path)
