"""A table with numbers, counts or several targets, from the file to predictions."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.cli.conftest import Ask
from tests.cli.test_predict import FEW_STEPS

SCHEMA = """
train_size = 200
columns = [
  { name = "age", low = 0, high = 100 },
  { name = "days", low = 0, high = 60 },
  { name = "visits", low = 0, high = 20, counts = true },
  { name = "ill", categories = ["no", "yes"], weights = [0.5, 1.0], threshold = 0.3 },
]
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [f"{20 + n % 60},{n % 60},{n % 7},{('no', 'yes')[n % 2]}" for n in range(200)]
    (tmp_path / "my.csv").write_text("\n".join(["age,days,visits,ill", *rows]) + "\n")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def train(ask: Ask, *targets: str) -> None:
    wanted = [word for target in targets for word in ("--target", target)]
    found = ask(
        "train", "my.csv", *wanted, "--epsilon", "3", "--schema", "schema.toml", "--test", "my.csv",
        "--set", "data_is_public=true", "-o", "run", *FEW_STEPS,
    )  # fmt: skip
    assert found.code == 0, found.err


def predicted(ask: Ask) -> list[dict[str, str]]:
    found = ask("predict", "run", "my.csv", "--device", "cpu")
    assert found.code == 0, found.err
    return list(csv.DictReader(io.StringIO(found.out)))


@pytest.mark.parametrize(("target", "high"), [("days", 60.0), ("visits", 20.0)])
def test_numbers_are_trained_measured_and_predicted_within_their_bounds(
    ask: Ask, table: Path, target: str, high: float
) -> None:
    train(ask, target)
    rows = predicted(ask)
    assert list(rows[0]) == ["record", target]
    assert all(0 <= float(row[target]) <= high for row in rows)
    found = ask("evaluate", "run", "--device", "cpu")
    assert found.code == 0, found.err
    assert "absolute error" in found.out
    assert "squared error" in found.out
    assert ask("report", "run").code == 0


def test_several_targets_share_one_model_and_one_guarantee(ask: Ask, table: Path) -> None:
    train(ask, "ill", "days")
    row = predicted(ask)[0]
    assert list(row) == ["record", "ill: class", "ill: probability of no", "ill: probability of yes", "days"]
    found = ask("evaluate", "run", "--device", "cpu")
    assert "ill: accuracy" in found.out
    assert "days: absolute error" in found.out
