"""Tables in databases are read as the records of a CSV file, in the order of their key, and show no password."""

from __future__ import annotations

import math
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from privet.datasets.own.declared_table import DeclaredTable, Target
from privet.datasets.own.own_table import load_declared_table
from privet.datasets.own.ownership import Ownership
from privet.datasets.sql_tables import SqlTable, is_address, same_table
from privet.datasets.tables import CategoryColumn, CsvSchema, NumberColumn, read_csv, read_header
from privet.datasets.typed_tables import table_text
from privet.errors import DataError, DependencyError

AGE = NumberColumn(name="age", low=0, high=100, default=50)
TABLE = DeclaredTable(
    features=(AGE,),
    targets=(Target.classes(CategoryColumn(name="ill", categories=("no", "yes"), default="no")),),
    ownership=Ownership(person="patient"),
)
ROWS = [
    (number, f"p{number // 2}", 20.0 + number if number % 5 else None, "yes" if number % 3 else "no")
    for number in range(12)
]


def base(folder: Path, rows: list[tuple[object, ...]] | None = None, key: str = "INTEGER PRIMARY KEY") -> str:
    """Return the URL of a database with one table and one view of it."""
    found = sqlite3.connect(folder / "stays.db")
    found.execute(f"CREATE TABLE stays (id {key}, patient TEXT, age REAL, ill TEXT)")
    found.executemany("INSERT INTO stays VALUES (?, ?, ?, ?)", ROWS if rows is None else rows)
    found.execute("CREATE VIEW seen AS SELECT * FROM stays ORDER BY age")
    found.commit()
    found.close()
    return f"sqlite:///{folder / 'stays.db'}"


def as_csv(folder: Path) -> Path:
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in ROWS]
    (folder / "stays.csv").write_text("\n".join(["id,patient,age,ill", *lines]) + "\n")
    return folder / "stays.csv"


@pytest.fixture
def url(tmp_path: Path) -> str:
    pytest.importorskip("sqlalchemy")
    return base(tmp_path)


@pytest.mark.parametrize(
    "what",
    [
        "table=stays",
        "key=id&table=seen",
        "key=id&query=SELECT * FROM stays ORDER BY random()",
        "key=id&query=SELECT * FROM stays WHERE patient LIKE 'p%' OR ':no' = '' ORDER BY age DESC",
    ],
)
def test_a_query_in_any_order_gives_the_records_of_the_csv_file_with_their_persons(
    tmp_path: Path, url: str, what: str
) -> None:
    info = TABLE.info("own_stays", train_size=12, test_size=12)
    expected = load_declared_table(TABLE, info, train=as_csv(tmp_path), test=None).train
    found = load_declared_table(TABLE, info, train=f"{url}#{what}", test=None).train
    assert found.features.equal(expected.features)
    assert found.labels.equal(expected.labels)
    assert found.persons == expected.persons == tuple(f"p{number // 2}" for number in range(12))


def test_training_records_and_their_persons_are_read_in_one_query(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    read = SqlTable.read
    monkeypatch.setattr(SqlTable, "read", lambda table: sent.append(str(table)) or read(table))
    info = TABLE.info("own_stays", train_size=12, test_size=12)
    load_declared_table(TABLE, info, train=f"{url}#table=stays", test=None)
    assert len(sent) == 1


def test_another_value_moves_no_record(tmp_path: Path, url: str) -> None:
    before = read_csv(f"{url}#table=stays", CsvSchema(columns=(AGE,)))["age"]
    with sqlite3.connect(tmp_path / "stays.db") as found:
        found.execute("UPDATE stays SET age = 99 WHERE id = 3")
    after = read_csv(f"{url}#table=stays", CsvSchema(columns=(AGE,)))["age"]
    assert [number for number in range(12) if before[number] != after[number]] == [3]


def test_records_without_a_key_or_with_a_key_that_names_two_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(DataError, match="--key COLUMN"):
        table_text(f"{url}#query=SELECT * FROM stays ORDER BY id", delimiter=",")
    with pytest.raises(DataError, match="does not name every record once") as caught:
        table_text(f"{url}#key=patient&table=stays", delimiter=",")
    assert "p1" not in str(caught.value)
    with pytest.raises(DataError, match="does not name every record once"):
        table_text(f"{url}#key=age&query=SELECT age FROM stays WHERE age IS NULL LIMIT 1", delimiter=",")
    with pytest.raises(DataError, match="Did you mean 'patient'"):
        table_text(f"{url}#key=patients&table=stays", delimiter=",")


def test_the_place_of_a_record_follows_from_its_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Result(list[tuple[int, int]]):
        def keys(self) -> list[str]:
            return ["id", "age"]

    @contextmanager
    def result(table: SqlTable) -> Iterator[tuple[Result, tuple[str, ...]]]:
        yield Result([(3, 40), (1, 90), (2, 10)]), ()

    monkeypatch.setattr(SqlTable, "_result", result)
    _, rows = SqlTable.at("env:CLINIC#key=id&table=stays").read()
    assert rows == [(1, 90), (2, 10), (3, 40)]


def test_keys_are_ordered_each_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    keys: list[object] = ["b", 10, "a", 9, 2.5]
    url = base(tmp_path, [(key, "p", 1, "no") for key in keys], key="PRIMARY KEY")
    _, rows = SqlTable.at(f"{url}#table=stays").read()
    assert [row[0] for row in rows] == [2.5, 9, 10, "a", "b"]


def test_a_name_that_is_nearly_right_is_told(url: str) -> None:
    with pytest.raises(DataError, match="Did you mean 'stays'"):
        read_header(f"{url}#table=stay", targets=["ill"])
    with pytest.raises(DataError, match="Did you mean 'ill' for 'il'"):
        read_header(f"{url}#table=stays", targets=["il"])


def test_a_query_that_fails_is_told_without_the_words_of_the_driver(url: str) -> None:
    with pytest.raises(DataError, match="OperationalError") as caught:
        table_text(f"{url}#key=id&query=SELECT secret FROM stays", delimiter=",")
    assert "no such column" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM stays",
        "DELETE FROM stays RETURNING id",
        "DROP TABLE stays",
        "CREATE TABLE other AS SELECT * FROM stays",
        "/* SELECT */ VACUUM INTO 'FOLDER/other.db'",
        "ATTACH DATABASE 'FOLDER/other.db' AS other",
        "SELECT 1; DROP TABLE stays",
        "-- SELECT\nPRAGMA user_version = 7",
        "selection",
    ],
)
def test_a_statement_that_may_write_is_refused_before_a_database_is_opened(tmp_path: Path, query: str) -> None:
    url = base(tmp_path)
    before = (tmp_path / "stays.db").read_bytes()
    with pytest.raises(DataError, match="one statement that reads"):
        table_text(f"{url}#key=id&query={query.replace('FOLDER', str(tmp_path))}", delimiter=",")
    assert (tmp_path / "stays.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["stays.db"]


@pytest.mark.parametrize("query", ["(SELECT 1)", "/* a */ -- b\n with q as (select 1) select * from q ;\n", "table t"])
def test_a_query_that_reads_may_begin_in_several_ways(query: str) -> None:
    assert SqlTable(url="env:CLINIC", query=query).query == query


def test_nothing_is_written_to_the_database(tmp_path: Path, url: str) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        table_text(f"{url}#key=id&query=WITH q AS (SELECT 1) DELETE FROM stays RETURNING id", delimiter=",")
    assert sqlite3.connect(tmp_path / "stays.db").execute("SELECT count(*) FROM stays").fetchone() == (12,)
    with pytest.raises(DataError, match="does not exist"):
        table_text(f"sqlite:///{tmp_path / 'other.db'}#table=stays", delimiter=",")
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize("value", [math.nan, Decimal("NaN"), Decimal("sNaN"), None, "", b"7", memoryview(b"7")])
def test_a_value_without_an_order_is_no_key(monkeypatch: pytest.MonkeyPatch, value: object) -> None:
    class Result(list[tuple[object, int]]):
        def keys(self) -> list[str]:
            return ["id", "age"]

    @contextmanager
    def result(table: SqlTable) -> Iterator[tuple[Result, tuple[str, ...]]]:
        yield Result([(3, 40), (value, 90)]), ()

    monkeypatch.setattr(SqlTable, "_result", result)
    with pytest.raises(DataError, match="does not name every record once"):
        SqlTable.at("env:CLINIC#key=id&table=stays").read()


def test_an_unknown_database_and_a_missing_driver_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sqlalchemy")
    with pytest.raises(DataError, match="Did you mean 'postgresql'"):
        table_text("postgres://ana@db/clinic#table=stays", delimiter=",")
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(DependencyError, match="pip install 'psycopg2-binary'"):
        table_text("postgresql+psycopg2://ana@db/clinic#table=stays", delimiter=",")


def test_a_missing_sqlalchemy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(DependencyError, match=r"pip install 'privet\[sql\]'"):
        table_text("postgresql://ana@db/clinic#table=stays", delimiter=",")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ana:Geheim@db/clinic",
        "postgresql+psycopg://ana:Ge/heim#@db/clinic",
        "mysql://:Geheim@db/clinic",
        "postgresql://db/clinic?user=ana&password=Geheim",
        "mssql+pyodbc:///?odbc_connect=PWD%3DGeheim",
        "databricks://db?access_token=Geheim",
        "snowflake://ana@db?private_key=Geheim",
        "bigquery://clinic?credentials_base64=Geheim",
        "postgresql://db/clinic?%70assword=Geheim",
    ],
)
@pytest.mark.parametrize("what", ["", "#table=stays", "#key=id&query=SELECT '@' FROM stays"])
def test_a_url_with_a_password_is_refused_and_not_shown(url: str, what: str) -> None:
    assert is_address(f"{url}{what}")
    with pytest.raises(DataError, match="holds a password") as caught:
        table_text(f"{url}{what}", delimiter=",")
    assert "heim" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ana@db:5432/clinic?passfile=/home/ana/.pgpass",
        "sqlite:////data/a:b@c.db",
        "env:CLINIC",
        "postgresql://ana%3Aw%40clinic@db/clinic",
    ],
)
def test_a_url_without_a_password_is_an_address_that_survives_writing(url: str) -> None:
    for table in (SqlTable(url=url, table="a.b", key="id"), SqlTable(url=url, query="SELECT '#table=x&key=y' AS a\n")):
        assert SqlTable.at(table.address) == table


def test_the_url_may_come_from_the_environment_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLINIC", raising=False)
    with pytest.raises(DataError, match="environment variable CLINIC, which is not set"):
        SqlTable.at("env:CLINIC").whole_url()
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("CLINIC", base(tmp_path))
    assert read_header("env:CLINIC#table=stays", targets=["ill"]) == ["id", "patient", "age", "ill"]
    monkeypatch.setenv("CLINIC", "nonsense Geheim")
    with pytest.raises(DataError) as caught:
        read_header("env:CLINIC#table=stays", targets=["ill"])
    assert "Geheim" not in str(caught.value)


def test_the_same_table_is_known_by_other_names(tmp_path: Path) -> None:
    url = base(tmp_path)
    for one in (f"{url}#table=stays", f"{SqlTable.at(url).url}#key=id&table=stays", tmp_path / "stays.db"):
        assert same_table(one, f"{url}#table=stays")
    assert not same_table(f"{url}#table=seen", f"{url}#table=stays")
    assert not same_table(as_csv(tmp_path), f"{url}#table=stays")


def test_a_relative_sqlite_file_is_that_of_its_folder(tmp_path: Path) -> None:
    where = SqlTable.at("sqlite:///stays.db?timeout=3#table=stays").anchored(tmp_path / "sub" / "..")
    assert where.address == f"sqlite:///{tmp_path}/stays.db?timeout=3#table=stays"
    assert where.anchored(Path("/elsewhere")) == where


def test_paths_are_no_addresses() -> None:
    assert not any(map(is_address, ["stays.db", "/data/stays.csv", "C:\\stays.csv", "env:", "a b://c"]))


def test_an_identifier_of_a_typed_column_keeps_its_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    person = UUID(int=7)
    monkeypatch.setattr(SqlTable, "read", lambda table: (["patient"], [(person,)]))
    assert table_text("env:CLINIC#table=stays", delimiter=",").content == f"patient\r\n{person}\r\n".encode()
