"""Laws of a schema that is released from private records: its charge, its sensitivity, and what its words rest on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from privet.accounting.ledger import Ledger
from privet.datasets.counted_columns import BucketColumn, WordColumn, grid_within
from privet.errors import ArgumentError, DataError, RecipeError
from privet.runs import schema_release
from privet.runs.ledger_check import check_ledger
from privet.runs.recipes.table_schema import ReleaseOfSchema
from privet.runs.schema_release import CountedTable, ReleasedCounts, check_release, release_counts
from privet.training import further_release
from privet.training.randomness import Streams

COLUMNS = (BucketColumn(name="age"), BucketColumn(name="weight", edges=grid_within(0, 200)))
WORDS = (WordColumn(name="town", words=("north", "south")),)
RECORDS = CountedTable(numbers=COLUMNS, words=WORDS)
PERSONS = CountedTable(numbers=COLUMNS, words=WORDS, person="who")
Row = tuple[object, ...]


def write(path: Path, rows: Iterable[Row]) -> Path:
    path.write_text("who,age,weight,town\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def rows(count: int) -> list[Row]:
    rng = random.Random(count)
    return [
        (number // 3, rng.randint(18, 90), rng.randint(50, 110), rng.choice(["north", "south"]))
        for number in range(count)
    ]


ODD: list[Row] = [
    (5_000, 40, 70, "north"),
    (5_000, "1e300", "-inf", "south"),
    (5_000, "", "nan", "nowhere"),
    ("", 40, 70, "north"),
]


@pytest.mark.parametrize("added", ODD)
def test_a_record_moves_the_counts_by_at_most_one_in_the_norm_of_the_noise(tmp_path: Path, added: Row) -> None:
    before = RECORDS.read(write(tmp_path / "a.csv", rows(60)))
    after = RECORDS.read(write(tmp_path / "b.csv", [*rows(60), added]))
    assert np.linalg.norm((after - before) * RECORDS.weight) <= 1 + 1e-12


def test_the_bound_on_a_record_is_reached(tmp_path: Path) -> None:
    before = RECORDS.read(write(tmp_path / "a.csv", rows(60)))
    after = RECORDS.read(write(tmp_path / "b.csv", [*rows(60), ODD[0]]))
    assert np.linalg.norm((after - before) * RECORDS.weight) == pytest.approx(1.0)


@pytest.mark.parametrize("num_records", [1, 2, 7, 300])
def test_a_person_of_any_number_of_records_moves_the_counts_by_at_most_one(tmp_path: Path, num_records: int) -> None:
    theirs: list[Row] = [(9_999, 40, 70, "north")] * num_records
    before = PERSONS.read(write(tmp_path / "a.csv", rows(60)))
    after = PERSONS.read(write(tmp_path / "b.csv", [*theirs, *rows(60)]))
    assert np.linalg.norm((after - before) * PERSONS.weight) == pytest.approx(1.0)


def test_a_person_whose_records_differ_moves_the_counts_by_less(tmp_path: Path) -> None:
    theirs: list[Row] = [(9_999, 20 + number, 60 + number, "north") for number in range(40)]
    before = PERSONS.read(write(tmp_path / "a.csv", rows(60)))
    after = PERSONS.read(write(tmp_path / "b.csv", [*rows(60), *theirs]))
    assert np.linalg.norm((after - before) * PERSONS.weight) < 1


def test_a_record_that_names_nobody_counts_as_nothing_where_persons_are_protected(tmp_path: Path) -> None:
    before = PERSONS.read(write(tmp_path / "a.csv", rows(60)))
    after = PERSONS.read(write(tmp_path / "b.csv", [*rows(60), ODD[3]]))
    assert np.array_equal(before, after)


def test_the_release_is_charged_before_a_record_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, plan = write(tmp_path / "a.csv", rows(60)), RECORDS.plan(epsilon=0.5, delta=1e-5, num_units=60)
    charged = []
    read = schema_release.table_text

    def watched(*args: object, **options: object) -> object:
        charged.append(Ledger.read(tmp_path / "made" / "ledger.jsonl").charged_rounds)
        return read(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(schema_release, "table_text", watched)
    release_counts(path, RECORDS, plan, tmp_path / "made")
    assert charged == [1]


def test_a_release_that_fails_stays_charged_and_is_not_made_again(tmp_path: Path) -> None:
    path, plan = tmp_path / "a.csv", RECORDS.plan(epsilon=0.5, delta=1e-5, num_units=60)
    path.write_text('who,age,weight,town\n1,2,3,"north\n')
    with pytest.raises(DataError):
        release_counts(path, RECORDS, plan, tmp_path / "made")
    assert check_ledger(tmp_path / "made").spent.epsilon == plan.guarantee().epsilon
    with pytest.raises(RecipeError, match="is spent"):
        release_counts(write(path, rows(60)), RECORDS, plan, tmp_path / "made")


def test_the_ledger_says_what_was_asked_for_and_agrees_with_its_plan(tmp_path: Path) -> None:
    plan = PERSONS.plan(epsilon=0.5, delta=1e-5, num_units=20)
    _, head = release_counts(write(tmp_path / "a.csv", rows(60)), PERSONS, plan, tmp_path / "made")
    found = check_ledger(tmp_path / "made")
    assert (found.mismatch, found.head, found.is_finished) == (None, head, True)
    assert 0.49 < found.spent.epsilon <= 0.5
    assert found.spent.unit.value == "person"
    assert any("'who'" in word for word in found.spent.assumptions)


def test_the_noise_of_a_count_is_that_of_the_plan_over_the_weight_of_a_column(tmp_path: Path) -> None:
    plan = RECORDS.plan(epsilon=0.5, delta=1e-5, num_units=60)
    path = write(tmp_path / "a.csv", rows(60))
    exact, noise = RECORDS.read(path), []
    for number in range(12):
        found, _ = release_counts(path, RECORDS, plan, tmp_path / f"made{number}")
        noise.extend(found.vector - exact)
    wanted = (plan.noise.noise_multiplier or 0.0) * 3**0.5
    assert found.std == pytest.approx(wanted)
    assert np.std(noise) == pytest.approx(wanted, rel=0.1)
    assert len(noise) > 1_000


def test_neighbouring_tables_differ_in_the_counts_of_one_record_and_in_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, plan = Streams.new, RECORDS.plan(epsilon=0.5, delta=1e-5, num_units=60)

    class Seeded:
        @staticmethod
        def new(device: object, *, seed: object) -> Streams:
            return new(device, seed=7)  # type: ignore[arg-type]

    monkeypatch.setattr(further_release, "Streams", Seeded)
    vectors, exact = [], []
    for number, table in enumerate((rows(60), [*rows(60), (7, 33, 61, "a word of one record")])):
        path = write(tmp_path / f"{number}.csv", table)
        found, _ = release_counts(path, RECORDS, plan, tmp_path / f"made{number}")
        vectors.append(found.vector)
        exact.append(RECORDS.read(path))
        assert "a word of one record" not in json.dumps(found.declarations(tail=0.01))
        assert "a word of one record" not in (tmp_path / f"made{number}" / "ledger.jsonl").read_text()
    assert vectors[1] - vectors[0] == pytest.approx(exact[1] - exact[0], abs=1e-6)


def test_bounds_hold_nearly_all_numbers_where_there_are_many(tmp_path: Path) -> None:
    plan = RECORDS.plan(epsilon=1.0, delta=1e-5, num_units=3_000)
    found, _ = release_counts(write(tmp_path / "a.csv", rows(3_000)), RECORDS, plan, tmp_path / "made")
    age, weight = (found.bounds(column, tail=0.01) for column in COLUMNS)
    assert age is not None
    assert weight is not None
    assert age.low in (5.0, 10.0, 20.0) and age.high in (100.0, 200.0)  # noqa: PT018
    assert 30 <= weight.low <= 55 and 105 <= weight.high <= 130  # noqa: PT018
    counts = found.counts()["town"]
    assert counts.sum() == pytest.approx(3_000, abs=200)


def test_noise_alone_gives_no_bounds() -> None:
    rng, hidden = np.random.default_rng(3), 0
    table = CountedTable(numbers=COLUMNS)
    for _ in range(200):
        found = ReleasedCounts(
            table=table, std=10.0, vector=rng.normal(0, 10.0, sum(each.size for each in table.columns))
        )
        hidden += sum(found.bounds(column, tail=0.01) is None for column in COLUMNS)
    assert hidden >= 380
    assert "low = ?" in found.declarations(tail=0.01)["age"]


def test_a_declared_word_is_written_even_where_nobody_has_it(tmp_path: Path) -> None:
    table = CountedTable(words=(WordColumn(name="town", words=("north", 'a "quoted" one', "no\nline")),))
    vector = np.array([100.0, -3.0, 0.0])
    line = ReleasedCounts(table=table, std=2.0, vector=vector).declarations(tail=0.01)["town"]
    assert r"a \"quoted\" one" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "wrong",
    [
        {"numbers": ()},
        {"numbers": (COLUMNS[0], COLUMNS[0])},
        {"numbers": COLUMNS, "person": "age"},
        {"words": (WordColumn(name="town", words=("north", "north")),)},
    ],
)
def test_a_table_that_is_counted_twice_or_not_at_all_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        CountedTable(**wrong)  # type: ignore[arg-type]


def test_a_schema_whose_ledger_is_missing_or_another_one_is_refused(tmp_path: Path) -> None:
    plan = RECORDS.plan(epsilon=0.5, delta=1e-5, num_units=60)
    _, head = release_counts(write(tmp_path / "a.csv", rows(60)), RECORDS, plan, tmp_path / "made")
    schema = tmp_path / "schema.toml"
    found = check_release(schema, ReleaseOfSchema(ledger="made", head=head))
    assert (found.ledger, found.protects, found.neighbours) == (head, "record", "add_or_remove")
    assert found.spent_epsilon == plan.guarantee().epsilon
    with pytest.raises(RecipeError, match="is missing"):
        check_release(schema, ReleaseOfSchema(ledger="moved", head=head))
    with pytest.raises(RecipeError, match="different releases"):
        check_release(schema, ReleaseOfSchema(ledger="made", head="ab" * 32))
