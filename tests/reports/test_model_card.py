"""A model card says what the certificate says, in the form that Hugging Face reads."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

from privet.cli.console import run
from privet.cli.main import privet
from privet.reports.certificate import certify
from privet.reports.content import gather
from privet.reports.model_card import card, write_card
from tests.reports.conftest import MakeRun


def front_matter(text: str) -> dict[str, str]:
    match = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    assert match is not None
    return dict(line.strip().split(": ", 1) for line in match[1].splitlines() if ": " in line)


def test_a_card_has_the_statement_its_assumptions_and_the_command_that_verifies_it(
    make_run: MakeRun, tmp_path: Path
) -> None:
    folder, certificate = make_run(), certify(make_run())
    text = write_card(folder, tmp_path / "README.md").read_text()
    facts = front_matter(text)
    assert float(facts["epsilon"]) == certificate.guarantee.epsilon
    assert float(facts["delta"]) == certificate.guarantee.delta
    assert json.loads(facts["ledger_head"]) == certificate.head.sha256
    assert facts["library_name"] == "privet"
    assert str(certificate.guarantee) in text
    for each in certificate.guarantee.assumptions:
        assert each.replace("_", "\\_") in text
    assert "python scripts/verify_certificate.py RUN" in text
    assert "## Side effects" in text
    assert "Not covered by the guarantee." in text


def test_a_card_of_a_private_run_shows_no_measures_and_a_seeded_one_promises_nothing(
    make_run: MakeRun, tmp_path: Path
) -> None:
    private = make_run("data_is_public=false", "training.evaluate_every=")
    assert "Measured on test data" not in write_card(private, tmp_path / "a.md").read_text()
    text = write_card(make_run("training.seed=1"), tmp_path / "b.md").read_text()
    assert "**NOT PRIVATE.**" in text


def test_the_verb_writes_a_card_beside_the_ledger(make_run: MakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(make_run(), folder)
    assert run(privet, ["card", str(folder)]) == 0
    assert (folder / "README.md").read_text().startswith("---\n")


def test_texts_of_a_recipe_cannot_become_markup(make_run: MakeRun, tmp_path: Path) -> None:
    content = replace(gather(make_run()), recipe=None, folder=tmp_path / "A <b>bold<b> [link](x) | title")
    text = card(content, certify(make_run()))
    assert "A \\<b\\>bold" in text
    assert "<b>" not in text
    assert "[link](x)" not in text
