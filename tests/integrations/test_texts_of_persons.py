"""Texts of persons who wrote several: the command line asks whose they are, and every verb says who is protected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from privet.cli.console import run
from privet.cli.main import privet
from privet.runs.recipes.recipe_files import load_recipe
from scripts import verify_certificate
from tests.integrations.tiny import encoder
from tests.integrations.words import saved, sentences

FEW = ("--set", "privacy.sampling.sampling={kind='poisson', dataset_size=100, batch_size=20, steps=3}")
OF_WRITERS = ("--person", "writer_id", "--persons", "100", "--records-per-person", "2")


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with texts, of which one writer wrote fifty, their encoder, and a finished run."""
    folder = tmp_path_factory.mktemp("reviews")
    saved(encoder(dtype=torch.float32), folder / "encoder")
    rows = [
        f'"{text}",{"good" if place % 2 else "bad"},Writer{max(0, place - 50) // 2}'
        for place, text in enumerate(sentences(250, seed=1))
    ]
    (folder / "reviews.csv").write_text("\n".join(["review,label,writer_id", *rows]) + "\n", encoding="utf-8")
    (folder / "new.csv").write_text("review\nthe cat\n", encoding="utf-8")
    assert run(privet, [*trained(folder, "run"), *OF_WRITERS, *FEW]) == 0
    return folder


def trained(folder: Path, name: str) -> list[str]:
    words = f"train {folder}/reviews.csv --text review --target label --classes bad,good --model {folder}/encoder"
    return f"{words} --epsilon 3 --size 250 --length 8 -o {folder}/{name} -q".split()


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    capsys.readouterr()
    assert run(privet, list(map(str, words))) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_every_verb_says_that_a_person_with_several_texts_is_protected(
    reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = reviews / "run"
    told = said(capsys, "account", folder, "--json")
    assert '"unit": "person"' in told
    assert "at most 2 records of a sampled person" in told
    assert "nobody has two names" in told
    for verb in ("certify", "report", "card"):
        said(capsys, verb, folder)
    assert verify_certificate.main([str(folder)]) == 0
    for name in ("report.html", "README.md", "certificate.json"):
        page = (folder / name).read_text(encoding="utf-8")
        assert "one person" in page
        assert "removing one record" not in page
        assert "Writer0" not in page
    ways = json.loads(said(capsys, "plan", folder / "recipe.toml", "--compare-persons", "--json"))["person_comparison"]
    assert {way["way"] for way in ways} == {"draw persons", "draw records"}
    assert "one person" in said(
        capsys, "evaluate", folder, "--data", reviews / "reviews.csv", "--evaluate-epsilon", "1"
    )
    # Whoever asks for a decision about a text need not say whose it is.
    assert said(capsys, "predict", folder, reviews / "new.csv").count("\n") == 2
    said(capsys, "export", folder, "-o", tmp_path / "served")
    assert verify_certificate.main([str(tmp_path / "served")]) == 0
    assert not any("writer_id" in path.read_text(encoding="utf-8") for path in (tmp_path / "served").glob("*.json"))


def test_texts_with_a_column_that_seems_to_name_persons_ask_what_a_record_is(
    reviews: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (reviews / "other").mkdir()
    asked = trained(reviews, "other/run")
    file = reviews / "patients.csv"
    file.write_text((reviews / "reviews.csv").read_text().replace("writer_id", "patient_id"))
    asked[1] = str(file)
    assert run(privet, asked) == 2
    found = " ".join(capsys.readouterr().err.split())
    assert "--person patient_id" in found
    assert "--one-record-per-person" in found
    assert "--set texts.one_record_per_person=false" in found
    assert "Writer" not in found
    assert run(privet, [*asked, "--one-record-per-person", "--person", "patient_id", "--persons", "100"]) == 2
    assert "Give one" in capsys.readouterr().err
    for column in ("review", "label"):
        assert run(privet, [*asked, "--person", column, "--persons", "100"]) == 2
        assert "Names are never learned" in " ".join(capsys.readouterr().err.split())
    assert not (reviews / "other" / "run").exists()
    few = ("--set", "privacy.sampling={kind='poisson', dataset_size=250, batch_size=20, steps=2}")
    assert run(privet, [*asked, "--set", "texts.one_record_per_person=false", *few]) == 0
    assert "one record" in capsys.readouterr().out
    assert load_recipe(reviews / "other" / "run" / "recipe.toml").plan().unit.value == "record"


def test_several_texts_of_a_person_are_refused_where_one_was_declared_with_names(
    reviews: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = ("--set", "texts.person=writer_id", "--set", "privacy.unit=person")
    assert run(privet, [*trained(reviews, "one"), *one]) == 1
    found = capsys.readouterr().err
    assert "a person has several records" in found
    assert "Writer" not in found
    assert not (reviews / "one" / "ledger.jsonl").exists()
