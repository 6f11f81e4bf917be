"""Sweeps: stand-ins cost nothing and read nothing private; a charged sweep says the total of everything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privet.runs.project import total_of_runs
from privet.runs.recipes.recipe_files import recipe_from_values
from privet.runs.stand_ins import made_up_files
from tests.cli.conftest import FEW_STEPS, SCHEMA, Ask


@pytest.fixture
def table(tmp_path: Path) -> list[str]:
    """A schema, and the arguments of a sweep of a table that does not exist."""
    (tmp_path / "schema.toml").write_text(SCHEMA)
    schema = ["--target", "income", "--schema", str(tmp_path / "schema.toml"), *FEW_STEPS]
    return [str(tmp_path / "people.csv"), *schema]


def people(path: Path, count: int) -> Path:
    rows = [
        f"{number * 7 % 100},{('north', 'south')[number % 2]},{('low', 'high')[number * 7 % 100 > 50]}"
        for number in range(count)
    ]
    path.write_text("\n".join(["age,town,income", *rows]) + "\n")
    return path


def test_a_sweep_on_made_up_records_reads_no_private_file_and_keeps_figures_only(
    ask: Ask, table: list[str], tmp_path: Path
) -> None:
    found = ask("sweep", *table, "--epsilons", "4,1", "-o", tmp_path / "sweep", "--json")
    assert found.code == 0, found.err
    told = json.loads(found.out)
    assert [round(point["epsilon"]) for point in told["points"]] == [1, 4]
    assert told["points"][0]["found"] < told["points"][1]["found"] < 1
    assert told["total"] is None
    assert "2 models: about" in found.err
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == ["sweep.html", "sweep.json"]
    page = (tmp_path / "sweep" / "sweep.html").read_text()
    assert "No private record was read" in page
    assert "19.61" in page


def test_time_and_memory_can_be_asked_alone(ask: Ask, table: list[str], tmp_path: Path) -> None:
    found = ask("sweep", *table, "--epsilons", "1", "--estimate", "-o", tmp_path / "sweep")
    assert found.code == 0, found.err
    assert "GB of memory" in found.err
    assert not (tmp_path / "sweep" / "sweep.json").exists()


def test_public_records_of_the_same_columns_stand_in(ask: Ask, table: list[str], tmp_path: Path) -> None:
    public = people(tmp_path / "public.csv", 400)
    few = "privacy.sampling={kind='poisson', dataset_size=280, batch_size=50, steps=3}"
    found = ask("sweep", *table, "--set", few, "--epsilons", "2", "--on", public, "-o", tmp_path / "sweep", "--json")
    assert found.code == 0, found.err
    assert json.loads(found.out)["measured_on"] == "280 public records of the same columns"


def test_a_charged_sweep_says_the_total_of_all_models_and_figures(ask: Ask, table: list[str], tmp_path: Path) -> None:
    people(tmp_path / "people.csv", 200)
    held_out = people(tmp_path / "held_out.csv", 150)
    arguments = [*table, "--epsilons", "1,2", "--charged", "--evaluate-epsilon", "0.5", "--test", str(held_out)]
    refused = ask("sweep", *arguments, "--max-epsilon", "2", "-o", tmp_path / "sweep")
    assert refused.code == 3
    assert not (tmp_path / "sweep").exists()
    found = ask("sweep", *arguments, "-o", tmp_path / "sweep", "--json")
    assert found.code == 0, found.err
    total = total_of_runs(sorted((tmp_path / "sweep").glob("epsilon-*"))).guarantee.epsilon
    assert json.loads(found.out)["total"] == total > 2


@pytest.mark.parametrize(
    "wrong",
    [
        ["--epsilons", "0,1"],
        ["--epsilons", "one"],
        ["--epsilons", "1", "--charged"],
        ["--epsilons", "1", "--max-epsilon", "3"],
    ],
)
def test_wrong_words_are_refused(ask: Ask, table: list[str], tmp_path: Path, wrong: list[str]) -> None:
    assert ask("sweep", *table, *wrong, "-o", tmp_path / "sweep").code == 2


def test_made_up_records_fit_every_kind_of_column(tmp_path: Path) -> None:
    from privet.datasets.own.own_table import read_test_csv

    columns = [
        {"name": "age", "low": 0.0, "high": 9.5},
        {"name": "grade", "ordered": ["mild", "severe"]},
        {"name": "seen", "dates": "%d.%m.%Y", "earliest": "01.02.2020", "latest": "01.03.2024"},
        {"name": "ward", "categories": ["a", "b", "c"]},
    ]
    values = {
        "dataset": "own",
        "model": "table_linear",
        "table": {
            "train": "none.csv",
            "train_size": 300,
            "delimiter": ";",
            "decimal": ",",
            "target": {"name": "cost", "low": 0.0, "high": 50.0},
            "columns": columns,
        },
        "privacy": {
            "epsilon": 1.0,
            "delta": 1e-4,
            "adjacency": "add_or_remove",
            "unit": "record",
            "sampling": {"kind": "poisson", "dataset_size": 300, "batch_size": 30, "steps": 2},
            "clipping": {"kind": "threshold", "norm": 1.0},
            "noise": {"kind": "gaussian"},
        },
        "training": {"optimizer": {"kind": "sgd", "learning_rate": 0.1}},
    }
    recipe = recipe_from_values(values, folder=None)
    assert recipe.table is not None
    train, test = made_up_files(recipe, tmp_path)
    found = read_test_csv(train, recipe.table.declared(), recipe.info.normalisation())
    assert len(found) == 300
    assert 0 <= float(found.features.min()) <= float(found.features.max()) <= 1
    assert len(read_test_csv(test, recipe.table.declared(), recipe.info.normalisation())) == 500
