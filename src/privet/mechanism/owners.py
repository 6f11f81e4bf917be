"""The owners of records: which person each record is about, and which of a person's records are used.

Numbers only, no torch. Nothing here is public: numbers of persons and of their records are private under
add-or-remove.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Number
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.errors import DataError

if TYPE_CHECKING:
    from privet.mechanism.sampling import Sampling

Indices = NDArray[np.int64]

# Types that hold several names at once.
_SEVERAL = (list, tuple, set, frozenset, dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Owners:
    """The person of every record; persons are numbered in the order of their first records.

    Attributes:
        of_record: The number of each record's person.
    """

    of_record: Indices

    @classmethod
    def of(cls, names: Iterable[object]) -> Self:
        """Number the persons of records, given by any names, in the order of the records.

        Raises:
            DataError: a name is missing, may stand for two persons, or may be one of two names of a person, or a record
                has several names; without a word about whose they are.
        """
        seen = _Names()
        return cls(of_record=np.array([seen.number(name) for name in names], dtype=np.int64))

    @cached_property
    def num_records_of(self) -> Indices:
        """The number of records of each person."""
        return np.bincount(self.of_record).astype(np.int64)

    @property
    def num_persons(self) -> int:
        return len(self.num_records_of)

    @cached_property
    def _order(self) -> Indices:
        """The records of person 0, then those of person 1 and so on, each in the order of the data."""
        return np.argsort(self.of_record, kind="stable").astype(np.int64)

    @cached_property
    def _starts(self) -> Indices:
        return np.cumsum(self.num_records_of) - self.num_records_of

    def chosen(self, persons: Indices, max_records: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
        """Choose up to ``max_records`` records of each of these persons, uniformly without replacement.

        Guarantee:
            The choice for a person depends on that person's own records and on the generator only. A person with at
            most ``max_records`` records keeps all of them, in the order of the data.

        Returns:
            The chosen records, person by person, and how many there are of each.
        """
        sizes = self.num_records_of[persons]
        place = np.repeat(np.arange(len(persons)), sizes)
        first = np.cumsum(sizes) - sizes
        inside = np.arange(int(sizes.sum())) - np.repeat(first, sizes)
        records = self._order[np.repeat(self._starts[persons], sizes) + inside]
        if len(sizes) and sizes.max() > max_records:
            # Equal keys keep the order of the data, so whoever has few enough records keeps all in order.
            keys = np.where(np.repeat(sizes, sizes) > max_records, rng.random(len(records)), 0.0)
            records = records[np.lexsort((keys, place))]
            records = records[inside < max_records]
        return records, np.minimum(sizes, max_records)


@dataclass(kw_only=True, eq=False)
class _Names:
    """The names of persons that were seen, each with its number."""

    _numbers: dict[object, int] = field(default_factory=dict)
    _kind: type | None = None
    _with_point: set[str] = field(default_factory=set)

    def number(self, name: object) -> int:
        """Return the number of a name; a new name gets the next one.

        Guarantee: one person under one spelling has one number, whatever type of number or array holds the name. Names
            that are missing are refused, and so are names that may be one for two persons, or two for one.
        """
        plain = _plain(name)
        kind = Number if isinstance(plain, Number) else type(plain)
        if self._kind is None:
            self._kind = kind
        if kind is not self._kind:
            raise DataError(
                f"Some names of persons are of type {self._kind.__name__} and others of type {kind.__name__}, so one "
                "person may have two names, such as 1 and '1'. Give all names one type."
            )
        if isinstance(plain, str):
            self._check_spelling(plain)
        try:
            return self._numbers.setdefault(plain, len(self._numbers))
        except TypeError:
            raise DataError(f"{kind.__name__} cannot name a person. Use a number or a text.") from None

    def _check_spelling(self, name: str) -> None:
        """Refuse a number that stands here with and there without a fraction of zero."""
        whole, point, fraction = name.partition(".")
        is_pointed = bool(point) and whole.isdigit() and not fraction.strip("0")
        if is_pointed:
            self._with_point.add(whole)
        if whole in self._numbers if is_pointed else name in self._with_point:
            raise DataError(
                "Some names of persons are written as 17 and others as 17.0, so one person may have two names. Spell "
                "all names alike; pandas writes integers with a fraction where one is missing."
            )


def _plain(name: object) -> object:
    """Return a name without its array, and a text without surrounding spaces.

    Raises:
        DataError: it is missing, holds several names, or is too large a number to be exact.
    """
    if isinstance(name, _SEVERAL) or math.prod(getattr(name, "shape", ())) > 1:
        raise DataError(
            "A record names several owners, and no sampling here bounds the records of each of them. Give each record "
            "one owner (split it, or keep one name), or leave such records out; docs/persons.md says more."
        )
    item = getattr(name, "item", None)
    plain = item() if callable(item) and math.prod(getattr(name, "shape", ())) else name  # of numpy, or of torch
    if isinstance(plain, str):
        plain = plain.strip()
    if _is_missing(plain):
        raise DataError(
            "A record names no person, so nobody knows whose it is. Words for missing values, such as nan, None or NA, "
            "are no names. Give each a name, or leave it out."
        )
    if isinstance(plain, float) and abs(plain) >= _exact_below(name):
        raise DataError(
            "The name of a person is a floating-point number so large that two persons may have been rounded to it. "
            "Give names as integers or texts; pandas turns integers into floats where one is missing."
        )
    return plain


def _is_missing(plain: Any) -> bool:
    if plain is None or math.prod(getattr(plain, "shape", ())) == 0:
        return True
    if isinstance(plain, str | bytes):
        return checks.is_missing(plain if isinstance(plain, str) else plain.decode("latin-1"))
    try:
        return bool(plain != plain)
    except (TypeError, ValueError):
        return True  # what is neither equal nor unequal to itself is pandas' missing value


def _exact_below(name: object) -> float:
    """Return the number up to which floating-point numbers of this type count integers one by one."""
    kind = str(getattr(name, "dtype", "float64")).removeprefix("torch.")
    return {"float64": 2.0**53, "float32": 2.0**24, "float16": 2.0**11}.get(kind, 2.0**8)


class Pool(Sized, Protocol):
    """The items of a sampler: persons, or records that were kept."""

    def records(self, items: Indices, rng: np.random.Generator) -> Indices:
        """Return the records of drawn items: one row per item, padded as :func:`padded` says; or one number each."""
        ...


class Contribution(Protocol):
    """How the records of a person take part in a step. A sampler of persons implements it.

    Attributes:
        max_records: The largest number of records of one person in a step.
        records_per_item: The number of records whose gradients are averaged before they are clipped as one.
        items_per_person: The largest number of items of the pool that belong to one person.
    """

    @property
    def max_records(self) -> int: ...
    @property
    def records_per_item(self) -> int: ...
    @property
    def items_per_person(self) -> int: ...

    def around(self, sampling: Sampling) -> Sampling:
        """Return the same bound around another sampler."""
        ...

    def pool(self, owners: Owners, rng: np.random.Generator) -> Pool:
        """Return the items of a run; whatever is chosen once for the whole run is chosen here."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class PersonPool:
    """Persons; some of the records of each are chosen anew in every step."""

    owners: Owners
    max_records: int

    def __len__(self) -> int:
        return self.owners.num_persons

    def records(self, items: Indices, rng: np.random.Generator) -> Indices:
        chosen, sizes = self.owners.chosen(items, self.max_records, rng)
        return padded(chosen, sizes, self.max_records)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordPool:
    """Records that were kept for the whole run."""

    kept: Indices

    def __len__(self) -> int:
        return len(self.kept)

    def records(self, items: Indices, rng: np.random.Generator) -> Indices:
        return self.kept[items]


def padded(records: Indices, sizes: Indices, width: int) -> Indices:
    """Return rows of ``width`` records; a shorter row is filled with its own first record, marked.

    A marked record ``r`` stands as ``-1 - r`` and has weight zero. The filling is the person's own, so that a row
    depends on no other person, and is a valid input of every model. With a width of 1 there is nothing to fill, and
    the rows are plain numbers.
    """
    if width == 1:
        return records
    inside = np.arange(width) < sizes[:, None]
    first = np.cumsum(sizes) - sizes
    rows = np.repeat(-1 - records[first][:, None], width, axis=1) if len(sizes) else np.empty((0, width), np.int64)
    rows[inside] = records
    return rows


def unpadded(rows: Indices) -> tuple[Indices, NDArray[np.bool_]]:
    """Return the record at every place of padded rows, and whether it counts."""
    counts = rows >= 0
    return np.where(counts, rows, -1 - rows), counts
