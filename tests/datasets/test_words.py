"""A cell is the declared word that it equals as text, as letters or as a number."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from privet.datasets.own.own_table import _strictly
from privet.datasets.special_columns import OrdinalColumn
from privet.datasets.tables import CategoryColumn, CsvSchema, NumberColumn, read_csv, read_header
from privet.datasets.words import place_of
from privet.runs.serving import served_predict

CLASSES = ("0", "1", "2.50", "Zürich", "9007199254740993")
CELLS = {
    "1": 1, "1.0": 1, " 1.00 ": 1, "1e0": 1, "+1": 1, "0.0": 0, "-0": 0, "2.5": 2, "Zu\u0308rich": 3,
    "9007199254740992": None, "1_0": None, "nan": None, "inf": None, "1,0": None, "one": None, "": None,
}  # fmt: skip


@pytest.mark.parametrize(("cell", "place"), CELLS.items())
def test_equal_numbers_match_in_training_test_and_exported_models_alike(cell: str, place: int | None) -> None:
    column = CategoryColumn(name="y", categories=CLASSES, default="0")
    assert place_of(cell, CLASSES) == place
    assert served_predict.place_of(cell, CLASSES, ".") == place
    assert column.value(cell) == (0 if place is None else place)
    read = _strictly(column, cell.strip())
    assert read == place if place is not None else read != read


def test_a_decimal_comma_is_that_of_the_declaration_and_exact_text_comes_first() -> None:
    assert place_of("1,0", ("0", "1"), decimal=",") == 1
    assert place_of("1.0", ("0", "1"), decimal=",") is None
    assert place_of("1.0", ("1", "1.0")) == 1
    assert place_of("1.00", ("1", "1.0")) == 0
    assert place_of("1e999999999", ("0", "1")) is None
    ordered = OrdinalColumn(name="stage", low=0, high=1, default=0, ordered=("1", "2"))
    assert ordered.value("2.0") == 1


def test_a_header_in_decomposed_letters_names_the_declared_column(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    path.write_text(unicodedata.normalize("NFD", "größe,y") + "\n3,1\n", encoding="utf-8")
    size = NumberColumn(name="größe", low=0, high=9, default=0)
    assert read_csv(path, CsvSchema(columns=(size,)))["größe"].tolist() == [3.0]
    assert read_header(path, targets=[unicodedata.normalize("NFD", "größe")]) == ["größe", "y"]
