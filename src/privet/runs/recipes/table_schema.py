"""The columns of a user's table, declared without its records: by a schema file, or from a public sample."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from privet.datasets.header_hints import header_advice, names_persons
from privet.datasets.sql_tables import SqlTable, is_address, same_table
from privet.datasets.tables import read_header, read_public_cells
from privet.errors import DataError, RecipeError
from privet.mechanism.codec import suggestion
from privet.runs.recipes.recipe_faults import explained
from privet.runs.recipes.recipe_files import read_values
from privet.runs.recipes.table_settings import HOW_TO_PREDICT_NUMBERS, ColumnSettings, ReleasedSettings, TargetSettings
from privet.runs.recipes.training_settings import Count, Table

_MOST_CATEGORIES = 50
_SIZE_TO_FILL_IN = "train_size = ?  # about how many records, as a public number"
_NUMBERS = "low = ?, high = ?"
_BLANK = re.compile(r"=\s*\?")


class ReleaseOfSchema(Table):
    """The ledger of a schema that was released from private records.

    Attributes:
        ledger: Its folder, relative to that of the schema.
        head: SHA-256 of its newest row.
    """

    ledger: str
    head: str


class SchemaFile(Table):
    """A schema file: the declared columns of a table, the targets among them.

    Attributes:
        train_size: Declared number of records; may be given on the command line instead.
        release: The ledger on which the file was charged, if it was released from private records.
        columns: The columns to use. Other columns of the file are ignored.
    """

    train_size: Count | None = None
    release: ReleaseOfSchema | None = None
    columns: list[TargetSettings]


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """The declared columns of a table.

    Attributes:
        targets: The columns to predict.
        columns: The input columns of the model.
        train_size: Declared number of records; None if the schema does not declare it.
        left_out: Columns of a public sample that are not used: constant, or with too many different words.
        release: The ledger that the schema file names, if it was released from private records.
        released: What that cost, once the ledger was checked.
    """

    targets: tuple[TargetSettings, ...]
    columns: tuple[ColumnSettings, ...]
    train_size: int | None = None
    left_out: tuple[str, ...] = ()
    release: ReleaseOfSchema | None = None
    released: ReleasedSettings | None = None


def read_schema(path: str | os.PathLike[str], *, targets: Sequence[str]) -> TableSchema:
    """Read a schema file.

    Raises:
        RecipeError: it cannot be read, is not a schema, or does not declare a target.
    """
    values = _values(Path(path))
    try:
        schema = SchemaFile.model_validate(values)
    except ValidationError as error:
        raise RecipeError(
            f"{path}: {explained(error, values, SchemaFile, of='A schema')} A schema has a list of columns, each with "
            "a name and either low and high or categories, and may have a train_size."
        ) from None
    wanted, columns = _targets_and_features(schema.columns, targets, where=str(path))
    return TableSchema(targets=wanted, columns=columns, train_size=schema.train_size, release=schema.release)


def _values(path: Path) -> dict[str, Any]:
    try:
        return read_values(path)
    except RecipeError:
        text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
        blank = next((number for number, line in enumerate(text.split("\n"), start=1) if _BLANK.search(line)), None)
        if blank is None:
            raise
        raise RecipeError(
            f"{path}: line {blank} still holds a ?. Replace every ? by a number, or the whole of low = ?, high = ? by "
            'categories = ["red", "blue"] where a column holds words; remove the lines of columns that are not used.'
        ) from None


def schema_of_public_sample(
    path: str | os.PathLike[str],
    *,
    private: str | os.PathLike[str],
    targets: Sequence[str],
    delimiter: str,
    decimal: str = ".",
) -> TableSchema:
    """Derive ranges and categories from a file of public records with the same columns.

    The range of a column of numbers is from the smallest to the largest number of the sample; any other column has its
    words as categories. The size of the sample is not used: it says nothing about the private file.

    Guarantee: a function of the public file alone. The private file is not opened; only its identity on the disk is
    compared, to check that it is another file.

    Raises:
        RecipeError: the sample is the private file itself, or lacks the target.
        DataError: the sample cannot be read.
    """
    if same_table(path, private):
        raise RecipeError(
            f"{path} holds the records to protect. Ranges and categories must not be learned from them: give public "
            "records, or declare them with --schema."
        )
    header, rows = read_public_cells(path, delimiter=delimiter)
    for target in targets:
        if header.count(target) == 1:
            continue
        advice = header_advice(delimiter.join(header), [target], delimiter=delimiter)
        names = ", ".join(repr(name) for name in header)
        raise RecipeError(
            f"The header of {path} should name the target {target!r} once and names it {header.count(target)} times. "
            f"It names: {names}. {advice}"
        )
    if not rows:
        raise DataError(f"{path} has a header and no records, so it shows no ranges and no categories.")
    found: list[TargetSettings] = []
    left_out: list[str] = []
    for place, name in enumerate(header):
        words = [row[place] for row in rows if place < len(row) and row[place]]
        column = (_categories(name, words) if name in targets else None) or _column(name, words, decimal)
        if column is None and name in targets:
            raise RecipeError(_no_classes(path, name, len(set(words))))
        if column is None:
            left_out.append(name)
        else:
            found.append(column)
    wanted, columns = _targets_and_features(found, targets, where=str(path))
    return TableSchema(targets=wanted, columns=columns, left_out=tuple(left_out))


def written(schema: TableSchema) -> str:
    """Return a schema as a file; its size is left to fill in."""
    values = [column.model_dump(exclude_none=True) for column in (*schema.columns, *schema.targets)]
    lines = [
        f"  {{ {', '.join(f'{key} = {json.dumps(value, ensure_ascii=False)}' for key, value in one.items())} }},"
        for one in values
    ]
    return "\n".join([_SIZE_TO_FILL_IN, "columns = [", *lines, "]"])


def schema_to_write(
    path: str | os.PathLike[str],
    *,
    targets: Sequence[str],
    delimiter: str,
    person: str | None = None,
    declared: Mapping[str, str] | None = None,
    head: Sequence[str] = (_SIZE_TO_FILL_IN,),
) -> str:
    """Return a schema file for the user to complete, with the names of the columns, without those of identifiers.

    Args:
        path: The file.
        targets: The columns to predict.
        delimiter: One character between cells.
        person: The column of persons, which is left out.
        declared: By column, what is known of it and need not be guessed from its name.
        head: The lines before the columns.

    Guarantee: only the first line of the private file is read, and it is shown only if it names the target, so that a
    record of a file without a header is not mistaken for names.

    Raises:
        DataError: the first line does not name the target.
    """
    header = read_header(path, targets=targets, delimiter=delimiter)
    known = declared or {}
    keys = SqlTable.at(os.fspath(path)).key_names() if is_address(path) else []
    features = [
        f"  {{ name = {json.dumps(name, ensure_ascii=False)}, {known[name]}"
        if name in known
        else f"  # left out, because it {reason}: {json.dumps(name, ensure_ascii=False)}"
        if (reason := _not_learned(name, header, keys)) is not None
        else f"  {{ name = {json.dumps(name, ensure_ascii=False)}, {_guess(name)} }},"
        for name in dict.fromkeys(header)
        if name and name not in (*targets, person)
    ]
    wanted = [
        f"  {{ name = {json.dumps(target, ensure_ascii=False)}, {known[target]}"
        if target in known
        else f'  {{ name = {json.dumps(target, ensure_ascii=False)}, categories = ["?", "?"] }},'
        "  # a target; low = ?, high = ? to predict a number"
        for target in targets
    ]
    return "\n".join(
        [
            *head,
            "columns = [",
            '  # words instead of numbers: categories = ["red", "blue"]; remove a line to leave a column out',
            '  # ordered words: ordered = ["mild", "severe"]; dates: dates = "%Y-%m-%d", earliest = "?", latest = "?"',
            "  # cells that are often empty: gaps = true shows the model where they are",
            "  # an empty or unreadable cell becomes low, or the first category; say default = 40 for something else",
            *features,
            *wanted,
            "]",
        ]
    )


def seems_a_number(name: str) -> bool:
    """Whether a column is guessed to hold numbers, from its name alone."""
    return not names_persons(name) and _guess(name) == _NUMBERS


def _not_learned(name: str, header: Sequence[str], keys: Sequence[str]) -> str | None:
    """Return why a column is no input of a model, by its name alone; None for one that may be."""
    if list(header).count(name) > 1:
        return "stands in the header more than once"
    if [name] == list(keys):
        return "is the key of the records"
    return "seems to name records or persons" if names_persons(name) else None


def _guess(name: str) -> str:
    """Return what to declare for a column, guessed from its name alone."""
    words = set(re.findall(r"[a-z]+", name.lower()))
    if words & {"date", "day", "dob", "birthday", "admitted", "discharged"}:
        return 'dates = "%Y-%m-%d", earliest = "?", latest = "?"'
    if words & {
        "type",
        "kind",
        "class",
        "status",
        "region",
        "ward",
        "country",
        "sex",
        "gender",
        "group",
        "category",
        "code",
    }:
        return 'categories = ["?", "?"]'
    if words & {"category", "code"}:
        return 'categories = ["?", "?"]'
    if words & {"severity", "stage", "grade", "degree"}:
        return 'ordered = ["?", "?"]'
    return _NUMBERS


def _no_classes(path: str | os.PathLike[str], target: str, num_values: int) -> str:
    return (
        f"The target {target!r} has {num_values:,} different values in {path}, and 2 to {_MOST_CATEGORIES} can be "
        f"taken for classes. If it holds more classes, declare them with --schema. {HOW_TO_PREDICT_NUMBERS}"
    )


def _targets_and_features(
    columns: Sequence[TargetSettings], targets: Sequence[str], *, where: str
) -> tuple[tuple[TargetSettings, ...], tuple[ColumnSettings, ...]]:
    found = {column.name: column for column in columns}
    for target in targets:
        if target in found:
            continue
        names = ", ".join(repr(column.name) for column in columns)
        hint = suggestion(target, [column.name for column in columns])
        near = f" {hint}" if hint.startswith("Did") else ""
        raise RecipeError(
            f"{where} does not declare the target {target!r}. Declared columns: {names}.{near} Correct --target, or "
            "declare the column."
        )
    features = [column for column in columns if column.name not in targets]
    return tuple(found[target] for target in targets), tuple(column.as_feature() for column in features)


def _column(name: str, words: Sequence[str], decimal: str) -> TargetSettings | None:
    numbers = _numbers([word.replace(",", ".") for word in words] if decimal == "," else words)
    if numbers is None:
        return _categories(name, words)
    low, high = min(numbers), max(numbers)
    return TargetSettings(name=name, low=low, high=high) if low < high else None


def _numbers(words: Sequence[str]) -> list[float] | None:
    try:
        found = [float(word) for word in words]
    except ValueError:
        return None
    finite = [number for number in found if abs(number) < float("inf")]
    return finite or None


def _categories(name: str, words: Sequence[str]) -> TargetSettings | None:
    different = sorted(set(words))
    return TargetSettings(name=name, categories=different) if 2 <= len(different) <= _MOST_CATEGORIES else None
