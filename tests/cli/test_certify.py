from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Ask
from tests.reports.certificates import plan_of, spend


def test_a_run_is_certified_beside_its_ledger_or_elsewhere(ask: Ask, finished_run: Path, tmp_path: Path) -> None:
    answer = ask("certify", finished_run, "-o", tmp_path)
    assert answer.code == 0, answer.err
    assert "complete" in answer.out
    assert {path.name for path in tmp_path.iterdir()} == {"certificate.json", "certificate.html"}


def test_the_certificate_is_printed_as_json(ask: Ask, finished_run: Path, tmp_path: Path) -> None:
    answer = ask("certify", finished_run, "-o", tmp_path, "--json")
    assert answer.code == 0
    assert json.loads(answer.out) == json.loads((tmp_path / "certificate.json").read_text())


def test_a_run_that_differs_from_its_plan_is_certified_with_exit_code_3(ask: Ask, tmp_path: Path) -> None:
    folder = spend(tmp_path / "run", plan_of(steps=5), rounds=6)
    answer = ask("certify", folder)
    assert answer.code == 3
    assert json.loads((folder / "certificate.json").read_text())["standing"] == "differs_from_plan"


def test_a_broken_ledger_gets_no_certificate_and_exit_code_3(ask: Ask, tmp_path: Path) -> None:
    folder = spend(tmp_path / "run", plan_of(steps=5))
    (folder / "ledger.jsonl").write_bytes(b"{}\n")
    answer = ask("certify", folder)
    assert answer.code == 3
    assert not (folder / "certificate.json").exists()
