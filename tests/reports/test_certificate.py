"""Laws of certificates: they say what the ledger says, what they cannot support, and nothing private."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from privet.accounting.ledger import Ledger
from privet.accounting.ledger.rows import canonical
from privet.errors import AccountingError, CheckpointError, LedgerCorrupt, LedgerError
from privet.mechanism.events import decode_event, same_event
from privet.reports.certificate import Certificate, Standing, certify
from privet.reports.certificate_page import JSON_NAME, PAGE_NAME, render_page, write_certificate
from privet.vocabulary import Adjacency
from tests.reports.certificates import plan_of, spend
from tests.reports.conftest import MakeRun
from tests.reports.test_run_report import HOSTILE, Page, assert_loads_and_runs_nothing
from tests.scripts.test_verify_certificate import HOLDS, VERIFIER


@pytest.fixture(scope="module")
def trained(make_run: MakeRun) -> Certificate:
    return certify(make_run())


def test_a_finished_run_is_certified_with_what_its_plan_promised(make_run: MakeRun, trained: Certificate) -> None:
    assert trained.standing is Standing.COMPLETE
    promised = trained.check.plan.guarantee()
    assert (trained.guarantee.epsilon, trained.guarantee.delta) == (promised.epsilon, promised.delta)
    ((form, count),) = trained.events
    assert count == trained.check.plan.num_rounds
    assert same_event(decode_event(form), trained.check.plan.round_event)
    assert trained.head == Ledger.read(make_run() / "ledger.jsonl").head


def test_the_model_is_named_by_the_hash_of_its_bytes(make_run: MakeRun, trained: Certificate) -> None:
    assert trained.model is not None
    assert trained.model.sha256 == hashlib.sha256((make_run() / "model.safetensors").read_bytes()).hexdigest()
    assert trained.model.num_coordinates == 28 * 28 * 10 + 10


def test_the_end_of_the_noise_costs_less_than_a_thousandth_of_delta_and_is_printed(trained: Certificate) -> None:
    noise = trained.to_dict()["noise"]
    assert 0 < noise["tail_delta"] <= trained.guarantee.delta / 1000
    assert noise["reach_in_standard_deviations"] == pytest.approx(8.4904, abs=1e-4)
    assert "AES-256" in noise["generator"]
    assert "standard deviations" in Page(render_page(trained)).words


def test_the_digest_covers_every_other_entry(trained: Certificate) -> None:
    values = trained.to_dict()
    digest = values.pop("digest")
    assert digest == hashlib.sha256(canonical(values)).hexdigest()
    for name in values:
        changed = {**values, name: "something else"}
        assert hashlib.sha256(canonical(changed)).hexdigest() != digest


def test_nothing_measured_on_data_is_in_a_certificate(make_run: MakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(make_run(), folder)
    before = certify(folder).to_dict()
    # Whatever is measured may change as it likes: not one byte of the certificate follows.
    (folder / "metrics.json").write_text(json.dumps({"split": "test", "measures": [], "curve": []}))
    (folder / "unprotected.jsonl").write_text('{"step": 0, "mean_loss": 1.25, "clipped_share": 0.5}\n')
    assert certify(folder).to_dict() == before
    measures = json.loads((make_run() / "metrics.json").read_text())["measures"]
    text = json.dumps(before) + render_page(certify(folder))
    assert measures
    assert not [row for row in measures if str(row["value"]) in text]
    for word in ("loss", "accuracy", "batch_size_drawn", "norms"):
        assert word not in text.replace("privacy loss", "")


def test_an_unfinished_run_is_certified_for_what_it_used(tmp_path: Path) -> None:
    plan = plan_of(steps=50)
    found = certify(spend(tmp_path / "run", plan, rounds=20))
    assert found.standing is Standing.UNFINISHED
    assert 0 < found.guarantee.epsilon < plan.guarantee().epsilon
    assert any("20 of 50 planned rounds" in line for line in found.limits)


def test_a_run_beyond_its_plan_is_certified_as_different_and_at_its_true_cost(tmp_path: Path) -> None:
    plan = plan_of(steps=50)
    found = certify(spend(tmp_path / "run", plan, rounds=80))
    assert found.standing is Standing.DIFFERS_FROM_PLAN
    assert found.guarantee.epsilon == plan_of(steps=80).guarantee().epsilon
    assert found.to_dict()["ledger"]["agrees_with_plan"] is False


def test_a_seeded_run_is_certified_as_not_private(make_run: MakeRun) -> None:
    found = certify(make_run("training.seed=3"))
    assert found.standing is Standing.NOT_PRIVATE
    assert any("seed" in line for line in found.limits)
    assert "Not private" in Page(render_page(found)).words


def test_a_folder_without_model_environment_and_checkpoint_says_what_is_missing(tmp_path: Path) -> None:
    found = certify(spend(tmp_path / "run", plan_of()))
    assert found.model is None
    assert found.noise.delta is None
    assert not found.noise.is_within_limit
    text = " ".join(found.limits)
    assert "no final model" in text
    assert "put back to an earlier state" in text
    assert "tail" in text


def test_noise_of_a_device_is_not_certified_by_the_reach_of_the_keystream(make_run: MakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(make_run(), folder)
    (folder / "env.json").write_text(json.dumps({"processes": [{"device": "NVIDIA H200"}, {"device": "cpu"}]}))
    noise = certify(folder).noise
    assert noise.delta is None
    assert noise.unknown_because is not None
    assert "H200" in noise.generator


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (
            "Without a finite epsilon nothing can be spoiled.",
            "not known: without a finite epsilon nothing can be spoiled.",
        ),
        ("RDP has no answer.", "not known: RDP has no answer."),
    ],
)
def test_why_the_tail_is_not_known_goes_on_in_the_same_sentence(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, reason: str, told: str
) -> None:
    def refuse(*_: object, **__: object) -> float:
        raise AccountingError(reason)

    monkeypatch.setattr("privet.reports.certificate.tail_delta", refuse)
    assert any(line.endswith(told) for line in certify(make_run()).limits)


def test_too_little_noise_is_told_when_its_tail_costs_more_than_a_thousandth(make_run: MakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(make_run(), folder)
    (folder / "ledger.jsonl").unlink()
    (folder / "checkpoint.safetensors").unlink()
    spend(folder, plan_of(rate=1, steps=5, noise_multiplier=0.4))
    found = certify(folder)
    assert found.noise.delta is not None
    assert found.noise.delta > found.noise.limit
    assert any("more than a thousandth" in line for line in found.limits)


def test_a_broken_chain_gets_no_certificate(tmp_path: Path) -> None:
    folder = spend(tmp_path / "run", plan_of())
    ledger = folder / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"count":50', b'"count":10'))
    with pytest.raises(LedgerCorrupt):
        certify(folder)


def test_a_rolled_back_ledger_gets_no_certificate(make_run: MakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(make_run(), folder)
    ledger = folder / "ledger.jsonl"
    rows = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(rows[0])
    with pytest.raises(LedgerCorrupt, match="rolled back"):
        certify(folder)


def test_a_damaged_model_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(make_run(), folder)
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(CheckpointError, match="weights"):
        certify(folder)


def test_a_link_in_the_place_of_the_model_is_refused(tmp_path: Path) -> None:
    folder = spend(tmp_path / "run", plan_of())
    (folder / "model.safetensors").symlink_to("/etc/passwd")
    with pytest.raises(CheckpointError, match="link"):
        certify(folder)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a run"):
        certify(tmp_path)
    (tmp_path / "recipe.toml").write_text("")
    with pytest.raises(LedgerError):
        certify(tmp_path)


def test_the_page_loads_nothing_runs_nothing_and_escapes_what_files_say(make_run: MakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(make_run(), folder)
    entry = {"privet": HOSTILE[0], "packages": dict(enumerate(HOSTILE)), "device": "cpu"}
    (folder / "env.json").write_text(json.dumps({"processes": [entry]}))
    text = render_page(certify(folder))
    assert_loads_and_runs_nothing(text)
    assert "default-src 'none'" in text
    assert "<script" not in text
    assert "https://" not in text


def test_the_independent_program_passes_a_run_that_was_trained(
    make_run: MakeRun, trained: Certificate, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(make_run(), folder)
    write_certificate(trained, folder)
    assert VERIFIER.main([str(folder)]) == HOLDS


def test_both_files_are_written_and_read_back(make_run: MakeRun, tmp_path: Path) -> None:
    certificate = certify(make_run())
    json_path, page_path = write_certificate(certificate, tmp_path)
    assert (json_path.name, page_path.name) == (JSON_NAME, PAGE_NAME)
    assert json.loads(json_path.read_text()) == certificate.to_dict()
    assert page_path.read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(CheckpointError, match="no such folder"):
        write_certificate(certificate, tmp_path / "nowhere")


@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda member: member.value)
def test_relation_and_unit_stand_in_words(tmp_path: Path, adjacency: Adjacency) -> None:
    values = certify(spend(tmp_path / "run", plan_of(adjacency=adjacency))).to_dict()
    assert values["guarantee"]["adjacency"] == adjacency.value
    assert "record" in values["relation"]
    assert values["unit"] == "record"
