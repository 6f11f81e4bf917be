"""The verifier knows of changed weights: public ones must be named, unexplained ones end the promise."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from privet.accounting.ledger import Ledger
from privet.errors import LedgerError
from privet.reports.certificate import certify
from privet.reports.certificate_page import write_certificate
from privet.vocabulary import Release
from tests.accounting.ledgers import done
from tests.scripts.test_verify_certificate import HOLDS, VERIFIER, WRONG, last_iterate_plan, plan_of, resigned, verdict


def certified(folder: Path, note: Callable[[Ledger], None]) -> Path:
    plan = plan_of(steps=5)
    with Ledger.create(folder / "ledger.jsonl", plan=plan.to_dict(), plan_hash=plan.hash) as ledger:
        ledger.reserve(plan.round_event, 5)
        for _ in range(5):
            ledger.check(done(plan.round_event))
        note(ledger)
    write_certificate(certify(folder), folder)
    return folder


def test_a_certificate_that_names_public_changes_holds_and_one_that_hides_them_is_wrong(tmp_path: Path) -> None:
    def changes(ledger: Ledger) -> None:
        for words in ("clamps the weights", "loads public weights", "clamps the weights"):
            ledger.note_public_change(words, step=5)

    run = certified(tmp_path, changes)
    assert verdict(run) == HOLDS
    for hidden in ("clamps", "loads"):
        honest = certify(run)
        told = tuple(words for words in honest.check.spent.assumptions if hidden not in words)
        forged = replace(honest.check, spent=replace(honest.check.spent, assumptions=told))
        write_certificate(replace(honest, check=forged), run)
        assert verdict(run) == WRONG


def test_a_certificate_that_promises_privacy_after_an_unexplained_change_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = certified(tmp_path, lambda ledger: ledger.note_unexplained_change(step=5))
    assert certify(run).check.spent.not_private_because
    resigned(run, lambda values: values["guarantee"].update(not_private_because=[]))
    capsys.readouterr()
    assert verdict(run) == WRONG
    assert "that was no private step changed the weights" in capsys.readouterr().out


@pytest.mark.parametrize(("is_early", "released"), [(True, Release.EVERY_ITERATE), (False, Release.LAST_ITERATE)])
def test_library_and_verifier_agree_which_changes_take_the_bound_on_the_last_iterate_away(
    is_early: bool, released: Release, tmp_path: Path
) -> None:
    plan = last_iterate_plan()
    with Ledger.create(tmp_path / "ledger.jsonl", plan=plan.to_dict(), plan_hash=plan.hash) as ledger:
        ledger.reserve(plan.round_event, plan.num_rounds)
        for number in range(plan.num_rounds):
            if is_early and number == 1:
                ledger.note_public_change("clamps the weights", step=number)
            ledger.check(done(plan.round_event))
        ledger.complete()
        if not is_early:
            ledger.note_public_change("clamps the weights", step=plan.num_steps)
    honest = certify(tmp_path)
    assert honest.check.spent.released is released
    assert any("clamps" in words for words in honest.check.spent.assumptions)
    write_certificate(honest, tmp_path)
    assert verdict(tmp_path) == HOLDS


@pytest.mark.parametrize(
    ("found", "other"),
    [('"run":"', '"run":"x'), ('"format":2', '"format":1'), ('"reason":"clamps the weights"', '"reason":"cl\\tamps"')],
)
def test_a_first_row_or_a_reason_in_no_form_of_a_ledger_is_wrong(found: str, other: str, tmp_path: Path) -> None:
    run = certified(tmp_path, lambda ledger: ledger.note_public_change("clamps the weights", step=5))
    rewritten(run / "ledger.jsonl", found, other)
    with pytest.raises(VERIFIER.Wrong):
        VERIFIER.Account.read((run / "ledger.jsonl").read_bytes())
    with pytest.raises(LedgerError):
        Ledger.read(run / "ledger.jsonl")


def rewritten(path: Path, found: str, other: str) -> None:
    """Change words of a ledger and make its whole chain fit them."""
    prev, lines = "0" * 64, []
    assert found in path.read_text()
    for line in path.read_text().splitlines():
        row = json.loads(line.replace(found, other)) | {"prev": prev}
        del row["crc"]
        row["crc"] = f"{zlib.crc32(json.dumps(row, sort_keys=True, separators=(',', ':')).encode()):08x}"
        written = json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n"
        prev = hashlib.sha256(written.encode()).hexdigest()
        lines.append(written)
    path.write_text("".join(lines))
