"""A table in a database, from the schema to predictions, through the command line."""

from __future__ import annotations

import csv
import sqlite3
from pathlib import Path

import pytest

from privet.errors import DataError
from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.runner import train
from tests.cli import conftest
from tests.cli.conftest import FEW_STEPS, Ask

SCHEMA = conftest.SCHEMA.replace("high = 100", "high = 100, default = 40")
COLUMNS = ("id", "age", "town", "income")
TRAIN = ("--target", "income", "--epsilon", "3", "--schema", "schema.toml", "-q", *FEW_STEPS)
SEED = ("--set", "training.seed=7")


def write(folder: Path, rows: list[tuple[object, ...]]) -> None:
    (folder / "stays.db").unlink(missing_ok=True)
    base = sqlite3.connect(folder / "stays.db")
    base.execute("CREATE TABLE stays (id INTEGER, age REAL, town TEXT, income TEXT)")
    base.executemany("INSERT INTO stays VALUES (?, ?, ?, ?)", rows)
    base.commit()
    base.close()


def records(count: int = 200) -> list[tuple[object, ...]]:
    return [
        (
            number,
            20.0 + number % 60 if number % 9 else None,
            ("north", "south")[number % 2],
            ("low", "high")[number % 3 == 0],
        )
        for number in range(count)
    ]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("sqlalchemy")
    monkeypatch.chdir(tmp_path)
    write(tmp_path, records())
    with open("stays.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([["" if value is None else value for value in row] for row in records()])
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def everything_in(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_query_and_a_csv_file_of_the_same_records_give_the_same_model(ask: Ask, own: Path) -> None:
    shuffled = "SELECT income, id, town, age FROM stays ORDER BY random()"
    from_file = ask("train", "stays.csv", *TRAIN, *SEED, "-o", "runs/file", "--one-record-per-person")
    from_base = ask(
        "train", "sqlite:///stays.db", "--query", shuffled, "--key", "id", *TRAIN, *SEED, "-o", "runs/base",
        "--one-record-per-person",
    )  # fmt: skip
    assert (from_file.code, from_base.code) == (0, 0), from_base.err
    told = ask("predict", "runs/file", "stays.csv")
    assert told.code == 0
    assert ask("predict", "runs/base", "sqlite:///stays.db", "--query", shuffled, "--key", "id").out == told.out


def test_schema_and_evaluate_take_a_database(ask: Ask, own: Path) -> None:
    found = ask("schema", "sqlite:///stays.db", "--table", "stays", "--target", "income")
    assert found.code == 0
    assert '{ name = "age", low = ?, high = ? }' in found.out
    keyed = ask("schema", "sqlite:///stays.db", "--table", "stays", "--key", "town", "--target", "income")
    assert '# left out, because it is the key of the records: "town"' in keyed.out
    assert '{ name = "town"' not in keyed.out
    assert ask("train", "sqlite:///stays.db", "--table", "stays", "--key", "id", *TRAIN).code == 0
    by_file = ask("evaluate", "runs/stays", "--data", "stays.csv", "--json")
    by_base = ask("evaluate", "runs/stays", "--data", "sqlite:///stays.db", "--table", "stays", "--key", "id", "--json")
    assert by_file.code == by_base.code == 0, by_base.err
    assert by_file.out == by_base.out


def test_a_password_reaches_no_file_and_no_message(ask: Ask, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLINIC", f"sqlite:///file:{own}/stays.db?uri=true&password=Geheim")
    told = [
        ask(
            "train", "env:CLINIC", "--table", "stays", "--key", "id", *TRAIN, "--test", "env:CLINIC#key=id&table=stays"
        ),
        ask("evaluate", "runs/stays"),
        ask("predict", "runs/stays", "env:CLINIC", "--table", "stays", "--key", "id", "-o", "predicted.csv"),
        ask("predict", "runs/stays", "env:CLINIC", "--table", "stay", "--key", "id"),
        ask("predict", "runs/stays", "env:CLINIC", "--query", "SELECT nothing", "--key", "id"),
        ask("report", "runs/stays"),
    ]
    assert "env:CLINIC#key=id&table=stays" in (own / "runs/stays/recipe.toml").read_text()
    assert "Geheim" not in "".join(answer.out + answer.err for answer in told)
    assert b"Geheim" not in everything_in(own)


def test_a_run_is_resumed_with_the_same_records_in_any_order_and_with_no_others(ask: Ask, own: Path) -> None:
    assert ask("train", "sqlite:///stays.db", "--table", "stays", "--key", "id", *TRAIN).code == 0
    recipe = load_recipe("runs/stays/recipe.toml")
    assert not train(recipe, own / "begun", should_stop=lambda: True).is_finished
    write(own, records()[::-1])
    assert not train(recipe, own / "begun", should_stop=lambda: True).is_finished
    write(own, [*records()[:-1], (199, 77.0, "north", "high")])
    with pytest.raises(DataError, match="not those this run began with"):
        train(recipe, own / "begun")


def test_neighbouring_tables_give_equal_messages_and_exit_codes(ask: Ask, own: Path) -> None:
    told = []
    for name, rows in {
        "one": records(),
        "malformed": [*records()[:-1], (199, b"\xff", "nowhere", None)],
        "without": records()[:-1],
    }.items():
        (own / name).mkdir()
        write(own, rows)
        answer = ask("train", "sqlite:///stays.db", "--table", "stays", "--key", "id", *TRAIN, "-o", "run")
        assert answer.code == 0, answer.err
        told.append(answer)
        (own / "run").rename(own / name / "run")
    assert told[0] == told[1] == told[2]
    sizes = [{path.name: path.stat().st_size for path in (own / name / "run").iterdir()} for name in ("one", "without")]
    assert sizes[0].keys() == sizes[1].keys()


@pytest.mark.parametrize(
    "command",
    [
        ("train", "postgresql://ana:Geheim@db/x", "--table", "stays", *TRAIN),
        ("train", "stays.csv", "--test", "postgresql://ana:Geheim@db/x#table=stays", *TRAIN),
        ("schema", "postgresql://ana:Geheim@db/x", "--table", "stays", "--target", "income"),
        ("predict", "runs/stays", "postgresql://ana:Geheim@db/x", "--table", "stays"),
        ("evaluate", "runs/stays", "--data", "postgresql://ana:Geheim@db/x"),
        ("plan", "postgresql://ana:Geheim@db/x"),
        ("train", "recipe.toml", "-o", "runs/x"),
        ("plan", "demo", "--set", "table.train=postgresql://ana:Geheim@db/x"),
    ],
)
def test_a_password_on_the_command_line_is_refused_and_not_repeated(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "recipe.toml").write_text('[table]\ntrain = "postgresql://ana:Geheim@db/x#table=stays"\n')
    found = ask(*command)
    assert found.code != 0
    assert "Geheim" not in found.out + found.err
    assert not (tmp_path / "runs").exists()


def test_options_of_a_database_are_refused_with_a_file(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stays.csv").write_text("age\n")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    assert "goes with the URL of a database" in ask("train", "stays.csv", "--table", "stays", *TRAIN).err
    assert "goes with the URL of a database" in ask("schema", "stays.csv", "--key", "id", "--target", "income").err
    both = ask("schema", "env:CLINIC", "--table", "a", "--query", "b", "--target", "income")
    assert "Give one of them" in both.err
