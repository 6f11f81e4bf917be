"""The verifier knows of changed weights: public ones must be named, unexplained ones end the promise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from privet.accounting.ledger import Ledger
from privet.reports.certificate import certify
from privet.reports.certificate_page import write_certificate
from tests.accounting.ledgers import done
from tests.scripts.test_verify_certificate import HOLDS, WRONG, plan_of, resigned, verdict


def certified(folder: Path, note: Callable[[Ledger], None]) -> Path:
    plan = plan_of(steps=5)
    with Ledger.create(folder / "ledger.jsonl", plan=plan.to_dict(), plan_hash=plan.hash) as ledger:
        ledger.reserve(plan.round_event, 5)
        for _ in range(5):
            ledger.check(done(plan.round_event))
        note(ledger)
    write_certificate(certify(folder), folder)
    return folder


def test_a_certificate_that_names_public_changes_holds_and_one_that_hides_them_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = certified(tmp_path, lambda ledger: ledger.note_public_change("clamps the weights", step=5))
    assert verdict(run) == HOLDS
    resigned(
        run,
        lambda values: values["guarantee"].update(
            assumptions=[words for words in values["guarantee"]["assumptions"] if "clamps" not in words]
        ),
    )
    capsys.readouterr()
    assert verdict(run) == WRONG
    assert "public changes" in capsys.readouterr().out


def test_a_certificate_that_promises_privacy_after_an_unexplained_change_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = certified(tmp_path, lambda ledger: ledger.note_unexplained_change(step=5))
    assert certify(run).check.spent.not_private_because
    resigned(run, lambda values: values["guarantee"].update(not_private_because=[]))
    capsys.readouterr()
    assert verdict(run) == WRONG
    assert "that was no private step changed the weights" in capsys.readouterr().out
