"""``privet predict``: a run's model decides on new records, labelled or not, and says no to what it cannot read."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
import torch

from privet.datasets.encoding import declared_ranges
from privet.datasets.own.declared_table import DeclaredTable, Target
from privet.datasets.own.new_records import read_new_records
from privet.datasets.tables import CategoryColumn, CsvSchema, read_csv
from privet.runs.prediction import model_of, predict_new
from privet.runs.resuming import stored_recipe
from privet.runs.run_files import RunFiles
from tests.cli.conftest import FEW_STEPS, SCHEMA, Ask


def table(count: int, *, labelled: bool) -> str:
    lines = [
        f"{20 + n % 60},{('north', 'south')[n % 2]}" + f",{('low', 'high')[n % 60 > 30]}" * labelled
        for n in range(count)
    ]
    return "\n".join(["age,town" + ",income" * labelled, *lines]) + "\n"


@pytest.fixture
def run(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.csv").write_text(table(200, labelled=True))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    words = ("--target", "income", "--epsilon", "3", "--schema", "schema.toml", "-o", "runs/my", *FEW_STEPS)
    assert ask("train", "my.csv", *words).code == 0
    return tmp_path / "runs" / "my"


def test_decisions_are_the_models_own_and_do_not_need_labels(ask: Ask, run: Path, tmp_path: Path) -> None:
    for labelled in (True, False):
        (tmp_path / "new.csv").write_text(table(30, labelled=labelled))
        found = ask("predict", run, "new.csv", "--device", "cpu")
        assert found.code == 0, found.err
        rows = list(csv.DictReader(io.StringIO(found.out)))
        assert [row["record"] for row in rows] == [str(number) for number in range(1, 31)]
        decisions = predict_new(run, "new.csv", device="cpu")
        assert [row["class"] for row in rows] == list(decisions.classes)
        for row, values in zip(rows, decisions.probabilities, strict=True):
            chances = [float(row[f"probability of {name}"]) for name in ("low", "high")]
            assert chances == pytest.approx(values, abs=1e-6)
            assert sum(chances) == pytest.approx(1.0, abs=1e-5)
    model = model_of(run, device="cpu")
    assert not model.training
    # age over its range, then one column per town
    scores = model(torch.tensor([[0.2, 1.0, 0.0]])).softmax(1).detach().double().numpy()
    assert scores[0] == pytest.approx(decisions.probabilities[0], abs=1e-5)


def test_decisions_are_written_where_the_user_says(ask: Ask, run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(table(5, labelled=False))
    found = ask("predict", run, "new.csv", "-o", "out.csv", "--device", "cpu")
    assert (found.code, found.out) == (0, "")
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 6


def test_records_that_do_not_fit_are_refused_with_column_and_number(ask: Ask, run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("age,town\n30,north\n31,east\n")
    found = ask("predict", run, "new.csv")
    assert found.code == 1
    assert "'town'" in found.err
    assert "record 2" in found.err
    (tmp_path / "new.csv").write_text("age,town\n,north\nforty,north\n")
    found = ask("predict", run, "new.csv")
    assert found.code == 1
    assert "1 cell(s) of the column 'age'" in " ".join(found.err.split())
    assert "record 2" in found.err
    assert "forty" not in found.err
    (tmp_path / "new.csv").write_text("age\n30\n")
    assert "town" in ask("predict", run, "new.csv").err
    (tmp_path / "new.csv").write_text("age,town\n")
    assert "no records" in ask("predict", run, "new.csv").err


def test_an_empty_cell_is_taken_as_what_it_became_in_training_and_told(ask: Ask, tmp_path: Path) -> None:
    """The values that stand for gaps are those that the reader of training records puts there."""
    (tmp_path / "my.csv").write_text(table(200, labelled=True))
    (tmp_path / "schema.toml").write_text(
        SCHEMA.replace("high = 100", "high = 100, default = 40").replace('"south"]', '"south"], default = "south"')
    )
    words = ("--target", "income", "--epsilon", "3", "--schema", tmp_path / "schema.toml", *FEW_STEPS)
    run = tmp_path / "run"
    assert ask("train", tmp_path / "my.csv", *words, "-o", run).code == 0
    gaps, filled = tmp_path / "gaps.csv", tmp_path / "filled.csv"
    gaps.write_text("age,town\n,north\n NaN ,north\n30,\n31\n32,south\n")
    filled.write_text("age,town\n40,north\n40,north\n30,south\n31,south\n32,south\n")
    found, expected = (predict_new(run, path, device="cpu") for path in (gaps, filled))
    assert (found.probabilities == expected.probabilities).all()
    recipe = stored_recipe(RunFiles(folder=run))
    assert recipe.table is not None
    declared = recipe.table.declared()
    as_in_training = [read_csv(path, CsvSchema(columns=declared.features)) for path in (gaps, filled)]
    for name in ("age", "town"):
        assert as_in_training[0][name].tolist() == as_in_training[1][name].tolist()
    assert [(gap.column, gap.count, gap.taken_as) for gap in found.gaps] == [("age", 2, 40.0), ("town", 2, "south")]
    assert expected.gaps == ()
    told = ask("predict", run, gaps, "--device", "cpu")
    assert told.code == 0, told.err
    said = " ".join(told.err.split())
    assert "2 of 5 records have an empty cell in the column 'age': replaced by 40.0, as in training" in said
    assert "'town': replaced by 'south'" in said
    assert "as in training" not in ask("predict", run, filled, "--device", "cpu").err


def test_an_empty_cell_that_is_a_declared_category_is_no_gap(tmp_path: Path) -> None:
    column = CategoryColumn(name="town", categories=("north", ""), default="north")
    label = CategoryColumn(name="income", categories=("low", "high"), default="low")
    declared = DeclaredTable(features=(column,), targets=(Target.classes(label),))
    (tmp_path / "new.csv").write_text("town,any\n,1\nnorth,1\n")
    features, gaps = read_new_records(tmp_path / "new.csv", declared, declared_ranges((column,)))
    assert features.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert gaps == ()


def test_a_run_on_other_data_says_how_to_ask_its_model(ask: Ask, finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("a\n1\n")
    assert "model_of" in ask("predict", finished_run, tmp_path / "new.csv").err


def test_images_are_named_by_their_files_wherever_they_lie(ask: Ask, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name, level in (("pets/cat/1.png", 10), ("pets/dog/2.png", 200), ("new/3.png", 90), ("new/deep/4.png", 99)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (8, 8), (level, 0, 0)).save(tmp_path / name)
    words = ("--epsilon", "3", "--size", "200", "--image-size", "16x12", "-o", tmp_path / "run", *FEW_STEPS)
    assert ask("train", tmp_path / "pets", *words).code == 0
    found = ask("predict", tmp_path / "run", tmp_path / "new", "--device", "cpu")
    assert found.code == 0, found.err
    rows = list(csv.DictReader(io.StringIO(found.out)))
    assert [Path(row["record"]).name for row in rows] == ["3.png", "4.png"]
    assert {row["class"] for row in rows} <= {"cat", "dog"}
    (tmp_path / "new" / "5.png").write_bytes(b"no image")
    assert "5.png" in ask("predict", tmp_path / "run", tmp_path / "new").err
    (tmp_path / "empty").mkdir()
    assert "no images" in ask("predict", tmp_path / "run", tmp_path / "empty").err
