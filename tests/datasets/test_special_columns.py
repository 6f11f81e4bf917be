"""Dates, ordered words and gaps are declared, and read alike in training, test and prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privet.datasets.own.new_records import read_new_records
from privet.datasets.own.own_table import load_declared_table
from privet.errors import RecipeError
from privet.runs.recipes.table_settings import ColumnSettings, TableSettings, TargetSettings

DATES = {"name": "admitted", "dates": "%d.%m.%Y", "earliest": "01.01.2020", "latest": "31.12.2020"}


def column(**values: object) -> ColumnSettings:
    return ColumnSettings.model_validate({"name": "x", **values})


def test_a_date_is_days_since_the_earliest_and_clamped_to_the_range() -> None:
    read = column(**DATES).column().value
    cells = ("01.01.2020", "11.01.2020", "31.12.2020", "01.01.1900", "01.01.2999", "2020-01-01", "", None, "31.02.2020")
    assert [read(cell) for cell in cells] == [0, 10, 365, 0, 365, 0, 0, 0, 0]
    assert column(**DATES, default="03.01.2020").column().value("") == 2


def test_ordered_words_are_their_places() -> None:
    read = column(ordered=["mild", "moderate", "severe"], default="moderate").column().value
    assert [read(cell) for cell in ("mild", "severe", "awful", None)] == [0, 2, 1, 1]


def test_declared_gaps_of_numbers_have_a_column_of_their_own_and_those_of_words_a_category() -> None:
    number, shows = column(low=0, high=10, default=4, gaps=True).columns()
    assert [(number.value(cell), shows.value(cell)) for cell in ("3", "", "nan", "word", None)] == [
        (3, 0), (4, 1), (4, 1), (4, 1), (4, 1),
    ]  # fmt: skip
    assert (shows.name, shows.header) == ("x is missing", "x")
    (words,) = column(categories=["a", "b"], gaps=True).columns()
    assert [words.value(cell) for cell in ("b", "", None)] == [1, 2, 2]


def test_declared_gaps_are_read_alike_in_training_test_and_prediction(tmp_path: Path) -> None:
    table = TableSettings(
        train="t.csv", train_size=100,
        target=TargetSettings(name="y", low=0, high=1),
        columns=[
            column(low=0.0, high=10.0, default=4.0, gaps=True),
            ColumnSettings(name="z", low=0.0, high=2.0, default=1.0),
        ],
    )  # fmt: skip
    declared = table.declared()
    path = tmp_path / "t.csv"
    path.write_text("x,z,y\n3,,1\n,2,0\n")
    info = declared.info("t", train_size=100, test_size=0)
    split = load_declared_table(declared, info, train=path, test=path)
    new, gaps = read_new_records(path, declared, split.normalisation)
    expected = np.array([[0.3, 0.0, 0.5], [0.4, 1.0, 1.0]])
    for found in (split.train.features, split.test.features, new):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert [(gap.column, gap.count) for gap in gaps] == [("x", 1), ("z", 1)]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dates": "%Y-%m-%d", "earliest": "2020-01-01"}, "earliest and latest"),
        ({"dates": "%Y-%m-%d", "earliest": "1.1.2020", "latest": "2020-05-01"}, "declares dates as"),
        ({"dates": "%Y-%m-%d", "earliest": "2020-01-01", "latest": "2020-01-01"}, "before the latest"),
        ({"ordered": ["a"]}, "two different ordered words"),
        ({"ordered": ["a", "b"], "default": "c"}, "one of them"),
        ({"ordered": ["a", "b"], "low": 0.0, "high": 1.0}, "needs either"),
        ({"high": 1.0}, "needs either"),
    ],
)
def test_a_column_that_contradicts_itself_is_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        column(**values).column()
