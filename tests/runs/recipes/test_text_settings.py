"""The tables of a recipe for texts: they go together, and a run belongs to one encoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privet.errors import RecipeError, UnsupportedModel
from privet.runs.recipes.own_data_defaults import Persons, Promise, table_recipe, text_recipe
from privet.runs.recipes.recipe_files import load_recipe, recipe_from_values
from privet.runs.recipes.table_schema import TableSchema
from privet.runs.recipes.table_settings import ColumnSettings, TargetSettings
from privet.runs.text_models import fingerprint, tokens_of
from privet.vocabulary import Unit

OF_RECORDS = Promise(epsilon=3.0, train_size=2_000)
WRITERS = Persons(column="writer", num_persons=400, max_records=3)
SCHEMA = TableSchema(
    targets=(TargetSettings(name="ward", categories=["a", "b"]),),
    columns=(ColumnSettings(name="age", low=0.0, high=100.0),),
    train_size=2_000,
)


def values(folder: Path, promise: Promise = OF_RECORDS) -> dict[str, Any]:
    (folder / "encoder").mkdir(exist_ok=True)
    (folder / "encoder" / "config.json").write_text("{}")
    return text_recipe(
        promise,
        name="own_notes",
        train=folder / "notes.csv",
        test=None,
        columns=("note", "ward"),
        classes=("a", "b"),
        length=16,
        delimiter=",",
        encoder="encoder",
        sha256=fingerprint(folder / "encoder"),
    )


def test_a_recipe_for_texts_is_written_and_read_back(tmp_path: Path) -> None:
    recipe = recipe_from_values(values(tmp_path), folder=tmp_path)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    assert load_recipe(tmp_path / "recipe.toml") == recipe
    assert recipe.encoder is not None
    assert recipe.encoder.folder == str(tmp_path / "encoder")
    assert recipe.model_title == "encoder"
    assert recipe.title == "Prediction of ward from notes"
    assert recipe.own_data is recipe.texts
    assert not recipe.is_public
    assert recipe.plan().guarantee().epsilon <= 3.0
    assert any("encoder and its tokenizer" in line for line in recipe.assumptions)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"encoder": None}, "go together"),
        ({"texts": None}, "names neither|declares the files|\\[table\\]"),
        ({"model": "logistic_regression"}, "own_encoder"),
        ({"images": {"train": "x", "train_size": 2000, "classes": ["a", "b"], "height": 8, "width": 8, "channels": 1}},
         "both"),
        ({"network": {"file": "net.py", "function": "build", "sha256": "0" * 64}}, "one of them"),
    ],
)  # fmt: skip
def test_tables_that_do_not_go_together_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    changed = {name: value for name, value in (values(tmp_path) | change).items() if value is not None}
    with pytest.raises(RecipeError, match=words):
        recipe_from_values(changed, folder=tmp_path)


@pytest.mark.parametrize(
    "promise",
    [
        replace(OF_RECORDS, persons=WRITERS),
        replace(OF_RECORDS, persons=replace(WRITERS, draws_records=True)),
        replace(OF_RECORDS, one_record_per_person=True),
    ],
    ids=["draw persons", "draw records", "one record each"],
)
def test_texts_of_persons_have_the_keys_and_the_plan_of_a_table_of_persons(tmp_path: Path, promise: Promise) -> None:
    texts = values(tmp_path, promise)
    table = table_recipe(promise, SCHEMA, name="own_x", train="x.csv", test=None, delimiter=",")
    keys = ("person", "num_persons", "one_record_per_person")
    assert {key: texts["texts"].get(key) for key in keys} == {key: table["table"].get(key) for key in keys}
    assert any(key in texts["texts"] for key in keys)
    read = recipe_from_values(texts, folder=tmp_path)
    (tmp_path / "recipe.toml").write_text(read.to_toml())
    assert load_recipe(tmp_path / "recipe.toml") == read
    # A table's own recipe has other steps and bounds: with those of the texts it is the same plan.
    other = recipe_from_values({**table, "privacy": texts["privacy"]}, folder=tmp_path)
    assert other.plan() == read.plan()
    assert read.plan().unit is Unit.PERSON
    assert "one person" in read.plan().guarantee().statement()
    assert read.file is not None
    assert other.file is not None
    assert read.file.ownership == other.file.ownership


def test_persons_are_promised_nothing_by_texts_that_do_not_know_them(tmp_path: Path) -> None:
    recipe = values(tmp_path)
    recipe["privacy"]["unit"] = "person"
    with pytest.raises(RecipeError, match="nothing says that a record of 'own_notes' is one person"):
        recipe_from_values(recipe, folder=tmp_path)


def test_a_physical_batch_of_texts_holds_all_of_a_person(tmp_path: Path) -> None:
    for cap, held in ((3, 32), (40, 40)):
        promise = replace(OF_RECORDS, persons=replace(WRITERS, max_records=cap))
        assert values(tmp_path, promise)["training"]["physical_batch_size"] == held


def test_another_encoder_in_the_folder_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    recipe = recipe_from_values(values(tmp_path), folder=tmp_path)
    (tmp_path / "encoder" / "notes.md").write_text("no part of a model")
    assert recipe.encoder is not None
    assert fingerprint(tmp_path / "encoder") == recipe.encoder.sha256
    (tmp_path / "encoder" / "tokenizer.json").write_text("{}")
    with pytest.raises(RecipeError, match="A run belongs to one encoder"):
        tokens_of(recipe.encoder, recipe.info)


def test_a_folder_without_a_model_has_no_fingerprint(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UnsupportedModel):
            fingerprint(folder)
