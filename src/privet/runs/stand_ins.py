"""Records that stand in for private ones: made up from the declaration of a table, or public ones of the same columns.

Nothing here reads a private record. Made-up records follow a hidden rule of their own, so figures on them show how
accuracy falls with epsilon at this size and for these columns, not how accurate a model of the real records will be.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from privet.datasets.own.declared_table import DeclaredTable
from privet.datasets.special_columns import DateColumn, GapColumn, OrdinalColumn
from privet.datasets.tables import CategoryColumn, NumberColumn, read_public_cells
from privet.errors import DataError
from privet.runs.recipes.recipe import Recipe

_TEST_SHARE = 0.3
# Spread of what the rule does not explain, beside what it explains.
_UNEXPLAINED = 0.5


def made_up_files(recipe: Recipe, folder: Path) -> tuple[Path, Path]:
    """Write training and test files of made-up records with the declared columns, and return their paths.

    Raises:
        DataError: the recipe declares no table.
    """
    table, settings = _table(recipe), recipe.table
    assert settings is not None
    rng = np.random.Generator(np.random.PCG64DXSM(0))  # the same records for every epsilon, and on every machine
    train, test = folder / "train.csv", folder / "test.csv"
    directions = _directions(table, rng)
    num_test = max(500, round(settings.train_size * _TEST_SHARE))
    for path, count in ((train, settings.train_size), (test, num_test)):
        _write(path, table, _rows(table, count, directions, rng, settings.num_persons))
    return train, test


def split_public_file(recipe: Recipe, path: str | Path, folder: Path) -> tuple[Path, Path, int]:
    """Divide a file of public records into training and test files; return their paths and the training size."""
    table = _table(recipe)
    header, rows = read_public_cells(path, delimiter=table.delimiter)
    order = np.random.Generator(np.random.PCG64DXSM(0)).permutation(len(rows))
    num_test = len(rows) - training_size(len(rows))
    if num_test < 1 or len(rows) - num_test < 100:
        raise DataError(f"{path} has too few records to train on: a hundred and more are needed beside those to test.")
    train, test = folder / "train.csv", folder / "test.csv"
    for target, chosen in ((train, order[num_test:]), (test, order[:num_test])):
        _write(target, table, [rows[place] for place in chosen], header=header)
    return train, test, len(rows) - num_test


def training_size(num_records: int) -> int:
    """Return how many of so many public records are trained on; the others are measured on."""
    return num_records - round(num_records * _TEST_SHARE)


def _table(recipe: Recipe) -> DeclaredTable:
    if recipe.table is None:
        raise DataError(
            "Stand-ins are made from the declared columns of a table, and this recipe has none. For data that privet "
            "knows the public records themselves are used; for images of your own name public ones: a recipe of theirs."
        )
    return recipe.table.declared()


def _write(
    path: Path, table: DeclaredTable, rows: Sequence[Sequence[str]], header: Sequence[str] | None = None
) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=table.delimiter)
        writer.writerow(_header(table) if header is None else header)
        writer.writerows(rows)


def _columns(table: DeclaredTable) -> list[NumberColumn | CategoryColumn]:
    return [column for column in table.columns if type(column) is not GapColumn]


def _header(table: DeclaredTable) -> list[str]:
    person = [] if table.ownership.person is None else [table.ownership.person]
    return [*person, *(column.header for column in _columns(table))]


def _directions(table: DeclaredTable, rng: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    """Return the hidden rule: a weight for every number and category, for every target."""
    features = [column for column in table.features if type(column) is not GapColumn]
    sizes = [len(column.categories) if isinstance(column, CategoryColumn) else 1 for column in features]
    return [rng.normal(size=sum(sizes)) for _ in table.targets]


def _rows(
    table: DeclaredTable, count: int, directions: Sequence[Any], rng: np.random.Generator, num_persons: int | None
) -> list[list[str]]:
    features = [column for column in table.features if type(column) is not GapColumn]
    words, parts = [], []
    for column in features:
        if isinstance(column, CategoryColumn):
            codes = rng.integers(0, len(column.categories), count)
            words.append([column.categories[code] for code in codes])
            parts.append(np.eye(len(column.categories))[codes] - 1 / len(column.categories))
        else:
            shares = rng.random(count)
            words.append([_WORDS[type(column)](column, share) for share in shares])
            parts.append((2 * shares - 1)[:, None])
    inputs = np.concatenate(parts, axis=1)
    for target, direction in zip(table.targets, directions, strict=True):
        score = inputs @ direction
        score = score / max(float(score.std()), 1e-9) + _UNEXPLAINED * rng.normal(size=count)
        ranks = score.argsort().argsort() / count
        if isinstance(target.column, CategoryColumn):
            names = target.column.categories
            words.append([names[int(rank * len(names))] for rank in ranks])
        else:
            words.append([_WORDS[type(target.column)](target.column, rank) for rank in ranks])
    if table.ownership.person is not None:
        persons = rng.integers(0, num_persons or count, count)
        words.insert(0, [f"person {number}" for number in persons])
    return [list(row) for row in zip(*words, strict=True)]


def _number_word(column: NumberColumn, share: float) -> str:
    return f"{column.low + share * (column.high - column.low):.6g}".replace(".", column.decimal)


def _date_word(column: DateColumn, share: float) -> str:
    return (column.earliest + timedelta(days=round(share * column.high))).strftime(column.form)


def _ordinal_word(column: OrdinalColumn, share: float) -> str:
    return column.ordered[min(int(share * len(column.ordered)), len(column.ordered) - 1)]


_WORDS: Mapping[type, Callable[[Any, float], str]] = {
    NumberColumn: _number_word,
    DateColumn: _date_word,
    OrdinalColumn: _ordinal_word,
}
