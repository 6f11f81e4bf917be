"""Tables in other formats than CSV are read as the same records."""

from __future__ import annotations

import csv
import datetime
import sqlite3
from pathlib import Path

import pytest

from privet.datasets.tables import CategoryColumn, CsvSchema, NumberColumn, read_csv, read_header, words_of
from privet.datasets.typed_tables import table_text
from privet.errors import DataError

ROWS: list[tuple[object, ...]] = [
    (41, 1.25, "north, east", datetime.date(2020, 5, 1)),
    (None, None, 'say "hi"\nthere', None),
    (7, 3.0, None, datetime.date(2021, 1, 31)),
]
SCHEMA = CsvSchema(
    columns=(
        NumberColumn(name="age", low=0, high=100, default=50),
        NumberColumn(name="level", low=0, high=10, default=5),
        CategoryColumn(name="town", categories=("north, east", 'say "hi"\nthere'), default="north, east"),
    )
)


def as_csv(folder: Path) -> Path:
    path = folder / "t.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "level", "town", "seen"])
        writer.writerows([["" if value is None else value for value in row] for row in ROWS])
    return path


def as_sqlite(folder: Path) -> Path:
    path = folder / "t.sqlite"
    base = sqlite3.connect(path)
    base.execute('CREATE TABLE "my visits" (age INTEGER, level REAL, town TEXT, seen TEXT)')
    rows = [tuple(str(value) if isinstance(value, datetime.date) else value for value in row) for row in ROWS]
    base.executemany('INSERT INTO "my visits" VALUES (?, ?, ?, ?)', rows)
    base.commit()
    base.close()
    return path


def as_arrow(folder: Path, ending: str) -> Path:
    arrow, feather = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.feather")
    parquet = pytest.importorskip("pyarrow.parquet")
    names = ["age", "level", "town", "seen"]
    table = arrow.table({name: [row[place] for row in ROWS] for place, name in enumerate(names)})
    path = folder / f"t{ending}"
    if ending == ".parquet":
        parquet.write_table(table, path)
    else:
        feather.write_feather(table, path, compression="uncompressed")
    return path


@pytest.mark.parametrize("ending", [".sqlite", ".parquet", ".arrow", ".feather"])
def test_a_table_is_read_as_the_same_records_in_every_format(tmp_path: Path, ending: str) -> None:
    path = as_sqlite(tmp_path) if ending == ".sqlite" else as_arrow(tmp_path, ending)
    expected, found = read_csv(as_csv(tmp_path), SCHEMA), read_csv(path, SCHEMA)
    for name, values in expected.items():
        assert found[name].tolist() == values.tolist()
    assert words_of(table_text(path, delimiter=","), SCHEMA, "seen") == ["2020-05-01", "", "2021-01-31"]
    assert read_header(path, targets=["town"]) == ["age", "level", "town", "seen"]


def test_a_value_without_a_plain_form_becomes_an_empty_cell_and_no_error(tmp_path: Path) -> None:
    base = sqlite3.connect(tmp_path / "t.db")
    base.execute("CREATE TABLE t (age)")
    base.executemany("INSERT INTO t VALUES (?)", [(b"bytes",), (3,), ("words",)])
    base.commit()
    base.close()
    column = CsvSchema(columns=(NumberColumn(name="age", low=0, high=9, default=5),))
    assert read_csv(tmp_path / "t.db", column)["age"].tolist() == [5.0, 3.0, 5.0]


def test_a_file_with_several_tables_is_refused_with_their_names(tmp_path: Path) -> None:
    path = as_sqlite(tmp_path)
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE other (age INTEGER)")
    base.commit()
    base.close()
    with pytest.raises(DataError, match=r"one table or view, and holds: my visits, other.*sqlite:///.*--table NAME"):
        read_csv(path, SCHEMA)


@pytest.mark.parametrize("ending", [".sqlite", ".parquet", ".feather"])
def test_a_file_of_another_kind_is_refused_without_its_content(tmp_path: Path, ending: str) -> None:
    if ending != ".sqlite":
        pytest.importorskip("pyarrow")
    (tmp_path / f"t{ending}").write_bytes(b"secret patient\n" * 100)
    with pytest.raises(DataError) as caught:
        read_csv(tmp_path / f"t{ending}", SCHEMA)
    assert "secret" not in str(caught.value)
