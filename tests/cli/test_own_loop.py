"""The folder of a training loop of one's own: what reads it, and what refuses it with the way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import privet as pv
from tests.cli.conftest import Ask


def run_loop(folder: Path, *, num_steps: int = 3, stop_after: int | None = None, seed: int | None = None) -> pv.Plan:
    inputs = torch.randn(40, 3)
    data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long())
    model = torch.nn.Linear(3, 2)
    plan = pv.Plan(
        sampling=pv.Poisson(rate=0.25, steps=num_steps, expected_batch_size=10.0),
        clipping=pv.Threshold(norm=1.0),
        noise=pv.Gaussian(noise_multiplier=2.0),
        delta=1e-5,
        adjacency=pv.Adjacency.ADD_REMOVE,
        unit=pv.Unit.RECORD,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pv.privatize(model, optimizer, data, plan, folder=folder, seed=seed) as private:
        for step in private.steps():
            step.accumulate(lambda x, y: F.cross_entropy(model(x), y, reduction="none"))
            step.update()
            if step.index + 1 == stop_after:
                break
    return plan


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loops") / "mine"
    run_loop(folder)
    return folder


def test_a_loop_has_a_report_of_its_plan_and_ledger(ask: Ask, own: Path, tmp_path: Path) -> None:
    answer = ask("report", own, "-o", tmp_path / "report.html", "--json")
    assert answer.code == 0, answer.err
    facts = json.loads(answer.out)
    assert (facts["agrees_with_plan"], facts["is_finished"]) == (True, True)
    page = (tmp_path / "report.html").read_text()
    assert "<h1>mine</h1>" in page
    assert "A training loop of your own" in page
    assert "The ledger agrees with the plan" in page
    assert "<h3>Recipe</h3>" not in page


def test_an_unfinished_loop_says_so_in_its_report(ask: Ask, tmp_path: Path) -> None:
    run_loop(tmp_path / "mine", num_steps=30, stop_after=2)
    answer = ask("report", tmp_path / "mine")
    assert answer.code == 0, answer.err
    assert "unfinished run" in (tmp_path / "mine" / "report.html").read_text()


def test_loops_stand_beside_recipes_and_are_not_compared(
    ask: Ask, own: Path, finished_run: Path, tmp_path: Path
) -> None:
    answer = ask("report", own, finished_run, own, "-o", tmp_path / "both.html")
    assert answer.code == 0, answer.err
    page = (tmp_path / "both.html").read_text()
    assert "not recorded" in page
    assert "no difference between them is stated" in page
    answer = ask("report", finished_run, "--baseline", own, "-o", tmp_path / "beside.html")
    assert answer.code == 0, answer.err
    assert "have no measure on the same data in common" in (tmp_path / "beside.html").read_text()


def test_a_loop_is_certified_with_what_its_folder_does_not_know(ask: Ask, own: Path, tmp_path: Path) -> None:
    answer = ask("certify", own, "-o", tmp_path)
    assert answer.code == 0, answer.err
    assert "not recorded" in answer.out
    found = json.loads((tmp_path / "certificate.json").read_text())
    assert found["devices"] == []
    assert found["standing"] == "complete"


def test_a_loop_that_was_given_a_seed_is_not_private_for_whoever_reads_its_folder(ask: Ask, tmp_path: Path) -> None:
    run_loop(tmp_path / "mine", seed=5)
    assert json.loads((tmp_path / "mine" / "ledger.jsonl").read_text().splitlines()[0])["body"]["seeded"] is True
    assert "NOT PRIVATE" in ask("account", tmp_path / "mine").out
    assert ask("report", tmp_path / "mine").code == 0
    assert "NOT PRIVATE" in (tmp_path / "mine" / "report.html").read_text()
    ask("certify", tmp_path / "mine", "-o", tmp_path)
    found = json.loads((tmp_path / "certificate.json").read_text())
    assert found["standing"] == "not_private"
    assert "seeded by the user" in found["guarantee"]["not_private_because"][0]


@pytest.mark.parametrize("words", [("evaluate",), ("audit",), ("train", "demo", "-o")], ids=lambda words: words[0])
def test_what_needs_data_or_network_says_what_works_instead(ask: Ask, own: Path, words: tuple[str, ...]) -> None:
    answer = ask(*words, own)
    assert answer.code == 1
    assert "a training loop of your own" in answer.err
    for verb in ("finetune", "account", "report", "certify", "card"):
        assert f"privet {verb}" in answer.err


def test_a_run_that_lost_its_recipe_is_not_taken_for_a_loop(ask: Ask, finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("ledger.jsonl", "plan.json"):
        (tmp_path / "run" / name).write_bytes((finished_run / name).read_bytes())
    answer = ask("report", tmp_path / "run")
    assert answer.code == 1
    assert "recipe.toml is missing" in answer.err


@pytest.mark.parametrize(("word", "verb"), [("verify", "account"), ("resume", "train"), ("test", "evaluate")])
def test_words_that_people_try_lead_to_the_verb_they_look_for(ask: Ask, word: str, verb: str) -> None:
    answer = ask(word, "runs/mine")
    assert answer.code == 2
    assert f"privet {verb}" in answer.err
