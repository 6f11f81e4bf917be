"""``privet schema --epsilon``: a schema from private records, and its cost in whatever is trained with it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from privet.accounting.guarantee import rounded_up
from privet.accounting.ledger import Ledger
from privet.errors import RecipeError
from privet.reports.certificate import certify
from privet.reports.content import gather
from privet.reports.first_page import first_page
from privet.reports.model_card import card
from privet.reports.run_report import render
from privet.reports.statement import attack_bounds
from privet.runs.recipes.recipe import Recipe
from tests.cli.conftest import FEW_STEPS, Ask

WORDS = ("--categories", "town=north,south", "--categories", "income=low,high")
RELEASE = ("schema", "my.csv", "--target", "income", *WORDS, "--epsilon", "2", "--size", "200", "-o", "made.toml")
TO_TRAIN = ("train", "my.csv", "--target", "income", "--epsilon", "3", "--schema", "made.toml")
TRAIN = (*TO_TRAIN, *FEW_STEPS, "--set", "table.one_record_per_person=false")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lines = [f"{n},{20 + n % 60},{('north', 'south')[n % 2]},{('low', 'high')[n % 60 > 30]}\n" for n in range(200)]
    (tmp_path / "my.csv").write_text("patient,age,town,income\n" + "".join(lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_a_schema_cost_is_in_the_guarantee_of_its_training_and_in_the_total(ask: Ask, own: Path) -> None:
    made = ask(*RELEASE, "--bounds", "age")
    assert made.code == 0, made.err
    assert "(ε=2, δ=1e-05)-DP" in made.err
    declared = tomllib.loads((own / "made.toml").read_text())
    assert declared["release"]["head"] == Ledger.read(own / "made.release" / "ledger.jsonl").head.sha256
    assert [column["name"] for column in declared["columns"]] == ["age", "town", "income"]
    found = ask(*TRAIN, "-o", "runs/mine")
    assert found.code == 0, found.err
    assert "in all" in found.out
    assert "released from private records" in found.err
    run = json.loads(ask("account", "runs/mine", "--json").out)["guarantee"]
    assert any("released from private records" in word for word in run["assumptions"])
    total = json.loads(ask("account", "total", "runs/mine", "made.release", "--json").out)["guarantee"]
    assert run["epsilon"] <= 3 < total["epsilon"]
    in_all = next(line for line in found.out.splitlines() if line.startswith("in all"))
    assert f"ε={total['epsilon']:.3g}"[:5] in in_all


def test_what_people_read_and_sign_counts_the_schema_with_every_evaluation(ask: Ask, own: Path) -> None:
    assert ask(*RELEASE, "--bounds", "age").code == 0
    found = ask(*TRAIN, "-o", "runs/mine", "--test", "my.csv", "--evaluate-epsilon", "1")
    assert found.code == 0, found.err
    total = json.loads(ask("account", "total", "runs/mine", "made.release", "--json").out)["guarantee"]["epsilon"]
    assert f"(ε={rounded_up(total)}," in found.out.split("With the schema")[1]
    content = gather("runs/mine")
    assert content.in_all is not None
    assert content.in_all.guarantee.epsilon == pytest.approx(total)
    page = first_page(content)
    assert page.epsilon == rounded_up(total) != rounded_up(content.ledger.spent.epsilon)
    assert rounded_up(content.ledger.spent.epsilon) in page.scale_text
    assert f"epsilon in all</span><b>{page.epsilon}" in render(content).replace("\n", "")
    assert f"(ε={page.epsilon}," in card(content, certify("runs/mine")).split("## With its schema")[1]
    alone, together = attack_bounds(content), attack_bounds(content, with_schema=True)
    assert all(schema > run for (_, run), (_, schema) in zip(alone, together, strict=True))
    assert ask(*TRAIN, "-o", "runs/open", "--set", "training.seed=1").code == 0
    assert gather("runs/open").in_all is None


def test_a_limit_on_epsilon_counts_the_schema(ask: Ask, own: Path) -> None:
    assert ask(*RELEASE, "--bounds", "age").code == 0
    found = ask(*TRAIN, "-o", "runs/mine", "--max-epsilon", "3.1")
    assert found.code == 3
    assert "Schema and training together" in " ".join(found.err.split())
    assert not (own / "runs").exists()


def test_a_schema_for_records_is_not_used_to_protect_persons(ask: Ask, own: Path) -> None:
    assert ask(*RELEASE, "--bounds", "age").code == 0
    found = ask(*TO_TRAIN, "--person", "patient", "--persons", "200")
    assert found.code != 0
    assert "no common guarantee" in " ".join(found.err.split())
    assert (
        ask(*RELEASE, "--bounds", "age", "--person", "patient", "--persons", "200", "-o", "of_persons.toml").code == 0
    )
    found = ask(*TO_TRAIN[:-1], "of_persons.toml")
    assert "--person COLUMN --persons NUMBER" in " ".join(found.err.split())


def test_a_federation_that_would_not_count_a_schema_refuses_it(ask: Ask, own: Path) -> None:
    assert ask(*RELEASE, "--bounds", "age").code == 0
    assert ask(*TRAIN, "-o", "runs/mine").code == 0
    values = tomllib.loads((own / "runs" / "mine" / "recipe.toml").read_text())
    assert Recipe.from_dict(values).released is not None
    with pytest.raises(RecipeError, match="does not count"):
        Recipe.from_dict(values, in_federation=True)


def test_a_schema_without_its_ledger_is_refused(ask: Ask, own: Path) -> None:
    assert ask(*RELEASE, "--bounds", "age").code == 0
    (own / "made.release").rename(own / "elsewhere")
    found = ask(*TRAIN)
    assert found.code != 0
    assert "is missing" in found.err


def test_a_second_release_to_the_same_file_is_refused(ask: Ask, own: Path) -> None:
    assert ask(*RELEASE).code == 0
    before = (own / "made.toml").read_text()
    assert "is spent" in " ".join(ask(*RELEASE).err.split())
    assert (own / "made.toml").read_text() == before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--epsilon", "1", "--size", "200"), "-o schema.toml"),
        (("--epsilon", "1", "-o", "x.toml"), "--size"),
        (("--epsilon", "1", "--size", "200", "-o", "x.release"), ".release"),
        (("--epsilon", "1", "--size", "200", "-o", "nowhere/x.toml"), "must exist"),
        (("--size", "200"), "goes with --epsilon"),
        (("--epsilon", "1", "--size", "200", "-o", "x.toml", "--categories", "town"), "does not discover"),
        (("--epsilon", "1", "--size", "200", "-o", "x.toml", "--bounds", "agee"), "agee"),
        (("--epsilon", "1", "--size", "200", "-o", "x.toml", "--bounds", "age=9"), "age=0:120"),
        (("--epsilon", "1", "--size", "200", "-o", "x.toml", "--person", "patient"), "--persons"),
        (("--epsilon", "1", "--size", "200", "-o", "x.toml", "--tail", "0.5"), "--tail"),
        (("--epsilon", "1", "--size", "200", "-o", "x.toml", "--public-sample", "my.csv"), "Give one"),
    ],
)
def test_a_release_that_cannot_be_made_is_refused_before_anything_is_charged(
    ask: Ask, own: Path, options: tuple[str, ...], told: str
) -> None:
    found = ask("schema", "my.csv", "--target", "income", *options)
    assert found.code != 0
    assert told in " ".join(found.err.split())
    assert not list(own.glob("*.release"))
