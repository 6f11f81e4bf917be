"""From released sums over rows and columns to units, and units as lists of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privet.mechanism.geometry import Factored
from privet.mechanism.geometry_sources import Array, AxisMoments, axis_sizes, factored_geometry
from privet.mechanism.layout import Layout


def num_axis_sums(layout: Layout) -> int:
    """Return how many rows and columns all parameters have together."""
    return sum(rows + columns for rows, columns in axis_sizes(layout))


def split_axis_sums(layout: Layout, sums: Array) -> list[AxisMoments]:
    """Cut a list of sums, parameter by parameter and rows before columns."""
    found, at = [], 0
    for num_rows, num_columns in axis_sizes(layout):
        middle, end = at + num_rows, at + num_rows + num_columns
        found.append(AxisMoments(rows=sums[at:middle], columns=sums[middle:end]))
        at = end
    return found


def joined_axis_sums(moments: Sequence[AxisMoments]) -> Array:
    """Put the sums of all parameters one after another, rows before columns."""
    return np.concatenate([part for one in moments for part in (one.rows, one.columns)])


def units_from_flat(layout: Layout, sums: Array, *, power: float, floor: float) -> Factored:
    """Return the units that follow from a list of sums, every axis written out."""
    found = factored_geometry(layout, split_axis_sums(layout, sums), power=power, floor=floor)
    return plain_geometry(layout, flat_units(found))


def plain_geometry(layout: Layout, values: Sequence[float] | None = None) -> Factored:
    """Return units from a list of numbers as :func:`flat_units` writes it; all one by default."""
    rows, columns, at = [], [], 0
    given = None if values is None else list(values)
    for num_rows, num_columns in axis_sizes(layout):
        width = max(1, num_columns)
        part = [1.0] * (num_rows + width) if given is None else given[at : at + num_rows + width]
        rows.append(tuple(part[:num_rows]))
        columns.append(tuple(part[num_rows:]))
        at += num_rows + width
    return Factored(rows=tuple(rows), columns=tuple(columns))


def flat_units(geometry: Factored) -> tuple[float, ...]:
    """Write units as one list, parameter by parameter and rows before columns."""
    pairs = zip(geometry.rows, geometry.columns, strict=True)
    return tuple(value for rows, columns in pairs for part in (rows, columns) for value in part)


@dataclass(frozen=True, kw_only=True, eq=False)
class SquareMoments:
    """Positive sums of squares that were measured in units.

    Attributes:
        layout: Of the model.
        geometry: The units, every axis written out.
        sums: Over rows and columns of all parameters.
    """

    layout: Layout
    geometry: Factored
    sums: Array

    def plain(self) -> Array:
        """Return the sums as they would be in plain units, if squares were products of their rows and columns."""
        found = []
        for part, rows, columns in zip(
            split_axis_sums(self.layout, self.sums), self.geometry.rows, self.geometry.columns, strict=True
        ):
            across, along = np.square(np.array(rows)), np.square(np.array(columns))
            if not len(part.columns):
                found.append(AxisMoments(rows=part.rows * across * along, columns=part.columns))
                continue
            by_rows, by_columns = part.rows * across, part.columns * along
            found.append(
                AxisMoments(
                    rows=by_rows * by_columns.sum() / part.columns.sum(),
                    columns=by_columns * by_rows.sum() / part.rows.sum(),
                )
            )
        return joined_axis_sums(found)
