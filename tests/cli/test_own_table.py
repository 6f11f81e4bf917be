"""A user's own CSV files, from the recipe to the evaluation, through the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ask

HEADER = "id;age;sex;town;income"
RECIPE = """
dataset = "my_people"
model = "mlp_64_64"

[table]
train = "train.csv"
test = "test.csv"
train_size = 200
test_size = 80
delimiter = ";"
label = { name = "income", categories = ["low", "high"] }
columns = [
  { name = "age", low = 0, high = 100 },
  { name = "sex", categories = ["f", "m"] },
  { name = "town", categories = ["north", "south", "east"], default = "east" },
]

[privacy]
epsilon = 8.0
delta = 1e-3
adjacency = "add_or_remove"
unit = "record"
sampling = { kind = "poisson", dataset_size = 200, batch_size = 50, steps = 12 }
clipping = { kind = "threshold", norm = 1.0 }
noise = { kind = "gaussian" }

[training]
optimizer = { kind = "sgd", learning_rate = 1.0 }
device = "cpu"
physical_batch_size = 100
"""


def _records(count: int, change: Callable[[int, list[str]], list[str]] = lambda number, cells: cells) -> str:
    lines = [HEADER]
    for number in range(count):
        old = number % 3 == 0
        cells = [
            str(number),
            str(80 - number % 5 if old else 20 + number % 5),
            "fm"[number % 2],
            ("north", "south", "east")[number % 7 % 3],
            "high" if old else "low",
        ]
        lines.append(";".join(change(number, cells)))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe, its files and its finished run, which tests read and must not change."""
    from privet.runs.recipes.recipe_files import load_recipe
    from privet.runs.runner import train

    folder = tmp_path_factory.mktemp("own")
    (folder / "recipe.toml").write_text(RECIPE)
    # One record nobody can read: it must become a record of the schema and never an error.
    broken = "".join(_records(200, lambda number, cells: ["??"] if number == 7 else cells))
    (folder / "train.csv").write_text(broken)
    (folder / "test.csv").write_text(_records(80))
    assert train(load_recipe(folder / "recipe.toml"), folder / "run").is_finished
    return folder


def test_a_recipe_with_an_own_table_is_planned_without_its_files(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    found = ask("plan", tmp_path / "recipe.toml")
    assert found.code == 0, found.err
    assert "my_people" in found.out


def test_training_from_own_files_by_the_command_line_keeps_no_figures_of_private_data(
    ask: Ask, project: Path, tmp_path: Path
) -> None:
    found = ask("train", project / "recipe.toml", "--output", tmp_path / "run")
    assert found.code == 0, found.err
    assert not (tmp_path / "run" / "metrics.json").exists()
    assert str(project / "train.csv") in (tmp_path / "run" / "recipe.toml").read_text()


def test_groups_robustness_and_calibration_of_an_own_run_are_shown(ask: Ask, project: Path) -> None:
    pytest.importorskip("fairlearn")
    run = project / "run"
    found = ask("evaluate", run, "--groups", "sex,town", "--robustness", "--calibration", "--device", "cpu")
    assert found.code == 0, found.err
    for text in (
        "By class",
        "By sex",
        "By town",
        "south",
        "Gaps between groups",
        "Accuracy under attack",
        "Confidence",
    ):
        assert text in found.out
    # The records are not public, so nothing that is computed from them stays behind.
    kept = {path.name for path in run.iterdir()}
    assert not kept & {"fairness.json", "robustness.json", "calibration.json", "membership.json"}


def test_another_file_of_the_same_columns_can_be_measured(ask: Ask, project: Path, tmp_path: Path) -> None:
    pytest.importorskip("fairlearn")
    other = tmp_path / "other.csv"
    other.write_text(_records(40))
    found = ask("evaluate", project / "run", "--groups", "sex", "--data", other, "--device", "cpu", "--json")
    values = json.loads(found.out)
    assert values["fairness"]["num_examples"] == 40
    assert [one["attribute"] for one in values["fairness"]["attributes"]] == ["class", "sex"]


def _set(place: int, word: str) -> Callable[[int, list[str]], list[str]]:
    return lambda number, cells: [*cells[:place], word, *cells[place + 1 :]] if number == 4 else cells


REFUSED = {
    "missing column": (_records(40).replace(";sex;", ";gender;"), ("'sex'", "0 times")),
    "not a number": (_records(40, _set(1, "NaN")), ("'age'", "record 5", "NaN or no number")),
    "empty cell": (_records(40, _set(1, "")), ("'age'", "empty")),
    "unknown category": (_records(40, _set(3, "west")), ("'town'", "record 5", "'north', 'south', 'east'")),
    "unknown label": (_records(40, _set(4, "middling")), ("'income'", "'low', 'high'")),
    "no records": (HEADER + "\n", ("no records",)),
    "single-class group": (
        _records(40, lambda number, cells: [*cells[:4], "low"] if cells[2] == "f" else cells),
        ("'sex'", "'f'", "one class only"),
    ),
    "one group": (_records(40, lambda number, cells: [*cells[:2], "m", *cells[3:]]), ("one group of 'sex'",)),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_file_that_would_mislead_is_refused_in_words(ask: Ask, project: Path, tmp_path: Path, fault: str) -> None:
    content, words = REFUSED[fault]
    other = tmp_path / "other.csv"
    other.write_text(content)
    found = ask("evaluate", project / "run", "--groups", "sex", "--data", other, "--device", "cpu")
    assert found.code == 1
    for word in words:
        assert word in " ".join(found.err.split())
    assert "west" not in found.err
    assert "middling" not in found.err


def test_columns_that_form_no_groups_are_refused_with_those_that_do(ask: Ask, project: Path) -> None:
    found = ask("evaluate", project / "run", "--groups", "age", "--device", "cpu")
    assert found.code == 1
    assert "column of numbers" in found.err
    assert "sex, town" in found.err
    assert "'race' is not a column" in ask("evaluate", project / "run", "--groups", "race", "--device", "cpu").err


WRONG_RECIPES = {
    "no table": (("[table]", "[tables]"), "tables is not part of a recipe"),
    "known name": (('"my_people"', '"adult"'), "which privet knows"),
    "another size": (("train_size = 200", "train_size = 300"), "make them equal"),
    "no range": (("low = 0, high = 100", "low = 0"), "'age' needs either low and high"),
    "empty range": (("low = 0, high = 100", "low = 5, high = 5"), "'age' needs either low and high"),
    "twice": (('name = "sex"', 'name = "age"'), "'age' is declared twice"),
    "label as feature": (('name = "sex"', 'name = "income"'), "'income' is declared twice"),
    "one class": (('["low", "high"]', '["low"]'), "at least two classes"),
    "foreign default": (('default = "east"', 'default = "west"'), "one of its declared categories"),
    "label of numbers": (
        ('categories = ["low", "high"]', "low = 0, high = 1"),
        "a label holds classes. Write target in the place of label",
    ),
    "unknown key": (("delimiter", "separator"), "table.separator is not part of a recipe"),
}


@pytest.mark.parametrize("fault", WRONG_RECIPES)
def test_a_wrong_declaration_is_refused_before_anything_is_read(ask: Ask, tmp_path: Path, fault: str) -> None:
    (old, new), words = WRONG_RECIPES[fault]
    assert old in RECIPE
    (tmp_path / "recipe.toml").write_text(RECIPE.replace(old, new, 1))
    found = ask("plan", tmp_path / "recipe.toml")
    assert found.code == 2
    assert words in " ".join(found.err.split())


def test_a_missing_training_file_is_named(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "test.csv").write_text(_records(20))
    found = ask("train", tmp_path / "recipe.toml", "--output", tmp_path / "run")
    assert found.code == 1
    assert "train.csv" in found.err


def test_a_package_that_groups_need_is_missed_before_anything_is_shown(
    ask: Ask, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fairlearn", "fairlearn.metrics"):
        monkeypatch.setitem(sys.modules, name, None)
    found = ask("evaluate", project / "run", "--groups", "sex", "--data", project / "test.csv", "--device", "cpu")
    assert (found.code, found.out) == (1, "")
    words = " ".join(found.err.split())
    assert "need fairlearn" in words
    assert "privet[effects]" in words
