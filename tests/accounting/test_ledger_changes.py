"""Rows about changed weights: public ones with their reason, unexplained ones that end every promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from privet.accounting.ledger import Ledger
from privet.errors import ArgumentError, LedgerCorrupt, LedgerMismatch
from tests.accounting.ledgers import create, done, reopen, step


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
