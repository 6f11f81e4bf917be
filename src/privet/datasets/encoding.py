"""Encoding of declared columns as features: numbers unchanged, categories one-hot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.datasets.info import Normalisation
from privet.datasets.tables import CategoryColumn, NumberColumn


def encode_columns(
    table: Mapping[str, NDArray[Any]], columns: Sequence[NumberColumn | CategoryColumn]
) -> NDArray[np.float64]:
    """Return one row per record; the columns of the result are ``encoded_names``."""
    num_records = len(table[columns[0].name])
    features = np.zeros((num_records, len(encoded_names(columns))))
    rows, start = np.arange(num_records), 0
    for column in columns:
        if isinstance(column, NumberColumn):
            features[:, start] = table[column.name]
            start += 1
        else:
            features[rows, start + table[column.name].astype(np.int64)] = 1.0
            start += len(column.categories)
    return features


def encoded_names(columns: Sequence[NumberColumn | CategoryColumn]) -> tuple[str, ...]:
    """Return the names of the encoded columns: ``age``, ``sex=Female``, ``sex=Male``."""
    names: list[str] = []
    for column in columns:
        if isinstance(column, NumberColumn):
            names.append(column.name)
        else:
            names += [f"{column.name}={category}" for category in column.categories]
    return tuple(names)


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureGroup:
    """The encoded columns of one column of the file: its categories, or a number with the column of its gaps.

    Attributes:
        name: Name of the column in the file.
        places: The places of the encoded columns.
        stand_ins: Public values of these encoded columns, one set per row, spread evenly over the declaration.
    """

    name: str
    places: tuple[int, ...]
    stand_ins: NDArray[np.float64]


def feature_groups(columns: Sequence[NumberColumn | CategoryColumn]) -> tuple[FeatureGroup, ...]:
    """Return the encoded columns by column of the file. Nothing but the declaration decides."""
    by_name: dict[str, list[NumberColumn | CategoryColumn]] = {}
    places: dict[str, list[int]] = {}
    start = 0
    for column in columns:
        width = len(encoded_names([column]))
        by_name.setdefault(column.header, []).append(column)
        places.setdefault(column.header, []).extend(range(start, start + width))
        start += width
    return tuple(
        FeatureGroup(
            name=name,
            places=tuple(places[name]),
            stand_ins=encode_columns({each.name: np.array(each.stand_ins()) for each in own}, own),
        )
        for name, own in by_name.items()
    )


def declared_ranges(columns: Sequence[NumberColumn | CategoryColumn]) -> Normalisation:
    """Return the map of encoded columns from their declared ranges to 0 and 1."""
    low: list[float] = []
    high: list[float] = []
    for column in columns:
        if isinstance(column, NumberColumn):
            low.append(column.low)
            high.append(column.high)
        else:
            low += [0.0] * len(column.categories)
            high += [1.0] * len(column.categories)
    scale = tuple(top - bottom for bottom, top in zip(low, high, strict=True))
    return Normalisation(name="unit_interval", shift=tuple(low), scale=scale, bounds=(0.0, 1.0))


def categories_of(feature_names: Sequence[str], column: str) -> dict[str, int]:
    """Return the categories of an encoded column and their positions; empty if no such category column exists."""
    prefix = f"{column}="
    return {name[len(prefix) :]: place for place, name in enumerate(feature_names) if name.startswith(prefix)}


def category_columns(feature_names: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct names of the category columns in encoded names."""
    return tuple(dict.fromkeys(name.partition("=")[0] for name in feature_names if "=" in name))
