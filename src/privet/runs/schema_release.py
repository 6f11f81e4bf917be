"""Ranges and counts for a schema, released from private records with a budget and a ledger of their own.

One vector of counts is released with noise: for each column of numbers a histogram on a fixed grid, for each column of
declared words the count of each. Bounds and comments of the schema follow from the noisy vector alone.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.accounting.ledger import Ledger
from privet.accounting.ledger.heads import UserHeads
from privet.datasets.counted_columns import BucketColumn, WordColumn
from privet.datasets.tables import CsvSchema, columns_of, words_of
from privet.datasets.typed_tables import TableText, table_text
from privet.errors import ArgumentError, RecipeError
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.owners import Owners
from privet.mechanism.sampling import FullBatch
from privet.plan import Plan
from privet.runs.ledger_check import check_ledger
from privet.runs.recipes.table_schema import ReleaseOfSchema
from privet.runs.recipes.table_settings import ReleasedSettings
from privet.runs.run_files import RunFiles
from privet.training.further_release import released_vector
from privet.vocabulary import Adjacency, Unit

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

# A bucket counts for a bound if noise alone passes its count in less than one column of so many.
_FALSE_BUCKETS = 0.05
_DECLARED = "columns and categories that were counted are public and were not chosen by looking at the private data"
_PERSONS = (
    "one item is all records that name one person in the column {column!r}, nobody has two names, and records without "
    "a name are not counted"
)


@dataclass(frozen=True, kw_only=True)
class CountedTable:
    """What is counted of a table. All of it is declared, and none is read off the records.

    Attributes:
        numbers: The columns of numbers whose bounds are released, with their buckets.
        words: The columns whose declared words are counted.
        person: The column that names the person of a record; None to protect records.
        delimiter: One character between cells.
    """

    numbers: tuple[BucketColumn, ...] = ()
    words: tuple[WordColumn, ...] = ()
    person: str | None = None
    delimiter: str = ","

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names:
            raise ArgumentError("A schema is released for at least one column: name columns of numbers, or categories.")
        if len(set(names)) != len(names) or self.person in names:
            raise ArgumentError(
                "Each column is counted once, as numbers or as categories, and the column of persons not at all."
            )
        for column in self.words:
            if len(column.words) < 2 or len(set(column.words)) < len(column.words):
                raise ArgumentError(f"The column {column.name!r} needs at least two different categories.")

    @property
    def columns(self) -> tuple[BucketColumn | WordColumn, ...]:
        """The columns as they are read, in the order of their counts."""
        return (*self.numbers, *self.words)

    @property
    def weight(self) -> float:
        """The weight of every count in the norm in which one unit moves the vector by at most 1."""
        return 1 / math.sqrt(len(self.columns))

    @property
    def unit(self) -> Unit:
        """Whom the noise hides."""
        return Unit.RECORD if self.person is None else Unit.PERSON

    def plan(self, *, epsilon: float, delta: float, num_units: int) -> Plan:
        """Return the plan of one release of the whole vector, with the least noise that spends at most this epsilon."""
        return Plan(
            sampling=FullBatch(steps=1, expected_batch_size=float(checks.count("num_units", num_units))),
            clipping=Threshold(norm=1.0),
            noise=Gaussian(noise_multiplier=1.0),
            delta=delta,
            adjacency=Adjacency.ADD_REMOVE,
            unit=self.unit,
        ).calibrated(epsilon=epsilon)

    def read(self, path: str | os.PathLike[str]) -> Array:
        """Return the exact counts of a table. Secret.

        Guarantee:
            Adding or removing one unit moves the vector by at most 1 in the norm that multiplies each count by
            ``weight``. A record adds at most 1 to one count of each column. With persons as the unit, the records of
            a person count 1 together, however many they are, and a record that names nobody counts as nothing. A cell
            that is no number, or no declared word, counts as nothing.
        """
        form = CsvSchema(columns=self.columns, delimiter=self.delimiter)
        text = table_text(path, delimiter=self.delimiter)  # read once: persons belong to these records
        found = columns_of(text, form)
        num_records = len(found[self.columns[0].name])
        weights = np.ones(num_records) if self.person is None else _weights(text, form, self.person)
        parts = [_counts(found[column.name], weights, column.size) for column in self.columns]
        return np.concatenate(parts)


def _weights(text: TableText, form: CsvSchema, person: str) -> Array:
    """Return how much each record counts: the records of one person count 1 together."""
    names = np.array(words_of(text, form, person), dtype=object)
    named = np.flatnonzero(names != "")
    owners = Owners.of(names[named])
    weights = np.zeros(len(names))
    weights[named] = 1.0 / owners.num_records_of[owners.of_record]
    return weights


def _counts(codes: Codes, weights: Array, size: int) -> Array:
    is_counted = codes >= 0
    return np.bincount(codes[is_counted], weights=weights[is_counted], minlength=size).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Released bounds of a column of numbers.

    Attributes:
        low: Lower bound.
        high: Upper bound.
        inside: The noisy number of numbers within them.
        beyond: The noisy number of the others.
    """

    low: float
    high: float
    inside: float
    beyond: float


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleasedCounts:
    """The noisy counts of a table, and what they say. Released.

    Attributes:
        table: What was counted.
        std: Standard deviation of the noise of each count.
        vector: The noisy counts.
    """

    table: CountedTable
    std: float
    vector: Array

    def counts(self) -> dict[str, Array]:
        """Return the noisy counts of each column."""
        columns = self.table.columns
        ends = np.cumsum([column.size for column in columns])
        parts = np.split(self.vector, ends[:-1])
        return {column.name: part for column, part in zip(columns, parts, strict=True)}

    def bounds(self, column: BucketColumn, *, tail: float) -> Bounds | None:
        """Return ends of buckets with all but a share of ``tail`` beyond each; None if noise hides all buckets.

        Buckets whose noisy counts could be noise alone count as empty.
        """
        noisy = self.counts()[column.name]
        kept = np.where(_above_noise(noisy, self.std), np.maximum(noisy, 0.0), 0.0)
        total = float(kept.sum())
        if total <= 0:
            return None
        first = int(np.argmax(np.cumsum(kept) > tail * total))
        last = column.size - 1 - int(np.argmax(np.cumsum(kept[::-1]) > tail * total))
        inside = float(noisy[first : last + 1].sum())
        return Bounds(
            low=column.edges[first], high=column.edges[last + 1], inside=inside, beyond=float(noisy.sum()) - inside
        )

    def declarations(self, *, tail: float) -> dict[str, str]:
        """Return the rest of the line of each column in a schema file, with a comment on what was found."""
        found = {column.name: self._bounded(column, self.bounds(column, tail=tail)) for column in self.table.numbers}
        spread = f"noise of standard deviation {self.std:,.0f}" if self.std >= 1 else "noise below 1"
        for column in self.table.words:
            counts = np.maximum(self.counts()[column.name], 0.0)
            told = ", ".join(f"{word} {count:,.0f}" for word, count in zip(column.words, counts, strict=True))
            words = json.dumps(list(column.words), ensure_ascii=False)
            found[column.name] = f"categories = {words} }},  # released: {_one_line(told)}; {spread}"
        return found

    def _bounded(self, column: BucketColumn, found: Bounds | None) -> str:
        if found is None:
            return "low = ?, high = ? },  # noise hides its numbers at this epsilon, or it holds words"
        return (
            f"low = {found.low!r}, high = {found.high!r} }},  # released: about {max(0.0, found.inside):,.0f} numbers "
            f"within, {max(0.0, found.beyond):,.0f} beyond; noise of standard deviation up to "
            f"{self.std * math.sqrt(column.size):,.0f}"
        )


def _above_noise(noisy: Array, std: float) -> NDArray[np.bool_]:
    """Return which counts are kept: by themselves, or in a block of neighbours that noise alone does not explain.

    Blocks of 1, 2, 4, ... buckets are tried in turn, each without the buckets that are kept by then. Noise alone keeps
    a bucket of an empty column with a probability of at most ``_FALSE_BUCKETS``.
    """
    kept = np.zeros(len(noisy), dtype=np.bool_)
    quantile = math.sqrt(2 * math.log(2 * len(noisy) / _FALSE_BUCKETS))
    width = 1
    while width < 2 * len(noisy):
        for start in range(0, len(noisy), width):
            left = ~kept[start : start + width]
            if noisy[start : start + width][left].sum() > quantile * std * math.sqrt(max(1, int(left.sum()))):
                kept[start : start + width] = True
        width *= 2
    return kept


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def release_counts(
    path: str | os.PathLike[str], table: CountedTable, plan: Plan, folder: str | os.PathLike[str]
) -> tuple[ReleasedCounts, str]:
    """Charge a release on a new ledger, count the records of a table, and return noisy counts and the ledger's head.

    Args:
        path: The table to protect.
        table: What is counted.
        plan: The plan of :meth:`CountedTable.plan`.
        folder: A folder for the ledger; it must hold none.

    Guarantee:
        The charge is durable before a record is read. Every count gets independent Gaussian noise, so that the vector
        is one Gaussian release of the multiplier of the plan. A release that fails stays charged.

    Raises:
        RecipeError: the folder holds a ledger, which was spent.
        DataError: the table cannot be read.
    """
    files = RunFiles(folder=Path(folder))
    if files.ledger.exists():
        raise RecipeError(
            f"{folder} holds the ledger of an earlier release, which is spent. Another release costs as much again: "
            "write it to another file, and count both."
        )
    multiplier = _multiplier(plan)
    weights = np.full(sum(column.size for column in table.columns), table.weight)
    files.folder.mkdir(parents=True, exist_ok=True)
    about = () if table.person is None else (_PERSONS.format(column=table.person),)
    with Ledger.create(
        files.ledger,
        plan=plan.to_dict(),
        plan_hash=plan.hash,
        assumptions=(_DECLARED, *about),
        heads=UserHeads(),
    ) as ledger:
        vector = released_vector(lambda: table.read(path), weights=weights, noise_multiplier=multiplier, ledger=ledger)
        ledger.complete()
    counts = ReleasedCounts(table=table, std=multiplier / table.weight, vector=vector)
    return counts, check_ledger(files.folder).head


def _multiplier(plan: Plan) -> float:
    found = plan.noise.noise_multiplier
    assert found is not None, "a calibrated plan has noise"
    return found


def check_release(schema: str | os.PathLike[str], named: ReleaseOfSchema) -> ReleasedSettings:
    """Return what a schema cost, from the ledger that it names.

    Raises:
        RecipeError: the ledger is missing, is not the one that the schema was written with, or disagrees with its plan.
    """
    folder = Path(schema).parent / named.ledger
    if not RunFiles(folder=folder).ledger.exists():
        raise RecipeError(
            f"{schema} was released from private records, and the ledger of that release, in {folder}, is missing. "
            "Keep the folder beside the schema: without it nobody knows what was spent."
        )
    check = check_ledger(folder)
    if check.mismatch is not None:
        raise RecipeError(f"The ledger in {folder} does not agree with its plan: {check.mismatch}")
    if check.head != named.head:
        raise RecipeError(
            f"{schema} names the row {named.head} of its ledger, and the newest row in {folder} is {check.head}. They "
            "belong to different releases: restore the folder that was written with the schema."
        )
    return ReleasedSettings(
        ledger=check.head,
        spent_epsilon=check.spent.epsilon,
        spent_delta=check.spent.delta,
        noise_ratio=_multiplier(check.plan),
        protects=check.plan.unit.value,
        neighbours=check.plan.adjacency.value,
    )
