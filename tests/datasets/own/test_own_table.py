from __future__ import annotations

import csv
from pathlib import Path

import pytest

from privet.datasets.columns import ADULT, ADULT_FEATURES
from privet.datasets.encoding import categories_of, category_columns, encoded_names
from privet.datasets.known import describe
from privet.datasets.own.own_table import load_own_csv
from privet.datasets.tables import CategoryColumn
from privet.errors import DataError

Record = dict[str, str]


def record(**changes: str) -> Record:
    plain = {
        column.name: column.default if isinstance(column, CategoryColumn) else f"{column.low + 1:g}"
        for column in ADULT_FEATURES
    }
    return {**plain, "sex": "Female", "race": "White", "income": "<=50K", **changes}


def write(path: Path, records: list[Record], *, without: str | None = None) -> Path:
    names = [name for name in reversed(record()) if name != without]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["remark", *names], extrasaction="ignore", restval="any")
        writer.writeheader()
        writer.writerows(records)
    return path


def test_columns_are_found_by_name_in_any_order_among_others(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", [record(age="50"), record(sex="Male", income=">50K", age="1000")])
    found = load_own_csv(path, ADULT, ADULT.normalisation())
    assert found.labels.tolist() == [0, 1]
    assert found.features.shape == (2, 108)
    sexes = categories_of(ADULT.feature_names, "sex")
    assert [found.features[row, sexes[name]].item() for row, name in enumerate(("Female", "Male"))] == [1, 1]
    assert found.features[:, ADULT.feature_names.index("age")].tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"age": "NaN"}, "'age'.*record 2.*NaN or no number"),
        ({"age": ""}, "'age'.*empty.*Training takes such cells as .*default can be declared"),
        ({"age": "forty"}, "no number"),
        ({"age": "1_000"}, "no number"),
        ({"race": "Martian"}, "'race'.*none of the declared.*'White'"),
        ({"income": "lots"}, "'income'.*none of the declared.*'<=50K'"),
    ],
    ids=["nan", "empty", "word", "underscore", "category", "label"],
)
def test_cells_that_do_not_fit_are_refused_with_their_column_and_never_shown(
    changes: Record, said: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "own.csv", [record(), record(**changes)])
    with pytest.raises(DataError, match=said) as caught:
        load_own_csv(path, ADULT, ADULT.normalisation())
    assert not any(value and value != "NaN" and value in str(caught.value) for value in changes.values())


def test_a_missing_column_an_empty_file_and_a_model_of_images_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", [record()], without="race")
    with pytest.raises(DataError, match="'race' once and names it 0 times"):
        load_own_csv(path, ADULT, ADULT.normalisation())
    with pytest.raises(DataError, match="no records"):
        load_own_csv(write(tmp_path / "none.csv", []), ADULT, ADULT.normalisation())
    mnist = describe("mnist")
    with pytest.raises(DataError, match="trained on 'mnist'"):
        load_own_csv(path, mnist, mnist.normalisation())


def test_encoded_names_lead_back_to_their_columns() -> None:
    names = encoded_names(ADULT_FEATURES)
    assert names == ADULT.feature_names
    assert "sex" in category_columns(names)
    assert "age" not in category_columns(names)
    assert list(categories_of(names, "sex")) == ["Female", "Male"]
    assert categories_of(names, "age") == {}
