"""Units from second moments of gradients that are public or were released before.

Let ``s`` be the mean square of each coordinate of the gradient of one example. Clipping in units ``u`` loses little if
``sum s / u^2`` is small, and the noise of a coordinate is proportional to ``u``. Two powers of ``s`` are in use:

* ``u`` proportional to ``s^(1/4)`` gives the least variance ``sum u^2`` at ``sum s / u^2 = 1``: AdaClip (Pichapati
  et al. 2019), for plain steps. Near a good fit the curvature of the loss is proportional to ``s``; weighted by
  curvature, equal units are optimal.
* ``u`` proportional to ``s^(1/2)`` is for preconditioned steps: after preconditioning all coordinates have equal noise,
  which helps on badly scaled features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.errors import ArgumentError
from privet.mechanism.geometry import MAX_RATIO, Factored
from privet.mechanism.layout import Layout

Array = NDArray[np.float64]

# Second moments below this share of the mean cannot be distinguished from noise.
DEFAULT_FLOOR = 0.02


def floored(moments: Array, floor: float = DEFAULT_FLOOR) -> Array:
    """Return the second moments, raised to at least ``floor`` times their mean.

    Edge cases: negative values, which noise causes, are raised; values that are all zero or not finite are refused.
    """
    values = np.asarray(moments, dtype=np.float64)
    share = checks.positive("floor", floor)
    mean = float(np.maximum(values, 0.0).mean()) if values.size else math.nan
    if not (math.isfinite(mean) and mean > 0 and np.isfinite(values).all()):
        raise ArgumentError(
            "Second moments must be finite and not all zero. Compute them from gradients of this model."
        )
    return np.asarray(np.maximum(values, share * mean))


@dataclass(frozen=True, kw_only=True)
class AxisMoments:
    """Sums of second moments over the rows and over the columns of one parameter.

    Attributes:
        rows: One per index of the first axis.
        columns: One per index of the second axis; empty for vectors.
    """

    rows: Array
    columns: Array


def axis_sizes(layout: Layout) -> list[tuple[int, int]]:
    """Return the number of rows and columns of each parameter; vectors and scalars have no columns."""
    return [(shape[0] if shape else 1, shape[1] if len(shape) > 1 else 0) for shape in layout.shapes]


def factored_geometry(layout: Layout, moments: Sequence[AxisMoments], *, power: float, floor: float) -> Factored:
    """Return units from row and column sums of second moments, scaled to a mean square of one.

    Args:
        layout: The layout of the model.
        moments: One entry per parameter.
        power: The units are the second moments to this power: 1/4 for the least variance of plain steps, 1/2 for steps
            that are preconditioned with power 1.
        floor: Rows, columns and parameters are raised to this share of the mean over all rows, columns or parameters.

    A matrix of second moments is estimated as the product of its row and column sums over its total.
    """
    exponent = checks.positive("power", power)
    means = [float(np.maximum(part.rows, 0).sum()) / size for part, size in zip(moments, layout.sizes, strict=True)]
    levels = floored(np.array(means), floor)
    rows, columns = [], []
    for part, level in zip(moments, levels, strict=True):
        rows.append((level**exponent) * _relative(part.rows, floor) ** exponent)
        columns.append(_relative(part.columns, floor) ** exponent if len(part.columns) else np.ones(1))
    squares = sum(
        float((r * r).mean()) * float((c * c).mean()) * size
        for r, c, size in zip(rows, columns, layout.sizes, strict=True)
    )
    scale = math.sqrt(layout.num_coordinates / squares)
    rows = _within_ratio([scale * part for part in rows], columns)
    return Factored(
        rows=tuple(tuple(part.tolist()) for part in rows), columns=tuple(tuple(part.tolist()) for part in columns)
    )


def _relative(sums: Array, floor: float) -> Array:
    if not (np.asarray(sums) > 0).any():
        return np.ones(len(sums))  # no information: equal units
    values = floored(sums, floor)
    return np.asarray(values / values.mean())


def _within_ratio(rows: list[Array], columns: list[Array]) -> list[Array]:
    most = max(float(r.max() * c.max()) for r, c in zip(rows, columns, strict=True))
    least = most / MAX_RATIO * 1.01
    return [np.maximum(r, least / float(c.min())) for r, c in zip(rows, columns, strict=True)]


@dataclass(kw_only=True)
class History:
    """Second moments of the mean gradient, estimated from released noisy gradients: post-processing, without cost.

    The gradients are mostly noise. The known variance of the noise is subtracted, and the rest counts only above a
    few standard errors of that variance: without this floor the units follow the noise and training gets worse. The
    squared mean gradient is not the mean squared gradient, so this is the weakest source of units.

    Attributes:
        layout: The layout of the model.
        decay: Decay of the running mean of squares.
        floor_errors: A row counts only if it exceeds this many standard errors of the noise.
    """

    layout: Layout
    decay: float = 0.98
    floor_errors: float = 2.0
    _moments: list[AxisMoments] | None = None
    _noise: list[tuple[float, float]] | None = None

    def __post_init__(self) -> None:
        self.decay = checks.probability("decay", self.decay)
        self.floor_errors = checks.non_negative("floor_errors", self.floor_errors)

    def note(self, gradient: Array, noise_std: Array | float) -> None:
        """Record one released gradient, as a flat vector, and the standard deviation of its noise."""
        squares = np.square(np.asarray(gradient, dtype=np.float64))
        variances = np.broadcast_to(np.square(np.asarray(noise_std, dtype=np.float64)), squares.shape)
        if squares.shape != (self.layout.num_coordinates,):
            raise ArgumentError(f"A gradient has {self.layout.num_coordinates} coordinates, got shape {squares.shape}.")
        seen = axis_moments(self.layout, squares - variances)
        old = self._moments
        self._moments = (
            seen
            if old is None
            else [
                AxisMoments(
                    rows=self.decay * was.rows + (1 - self.decay) * now.rows,
                    columns=self.decay * was.columns + (1 - self.decay) * now.columns,
                )
                for was, now in zip(old, seen, strict=True)
            ]
        )
        self._noise = [(float(variances[where].mean()), float(size)) for where, size in self._places()]

    def state(self) -> dict[str, tuple[float, ...]]:
        """Return the moments of rows and columns and the noise of each parameter, as plain numbers."""
        return {
            "moments": () if self._moments is None else tuple(joined_axis_sums(self._moments).tolist()),
            "noise": tuple(variance for variance, _ in self._noise or ()),
        }

    def restore(self, state: Mapping[str, tuple[float, ...]]) -> None:
        """Restore a state of the same layout."""
        if not state["moments"]:
            self._moments = self._noise = None
            return
        self._moments = split_axis_sums(self.layout, np.array(state["moments"]))
        self._noise = [(one, float(size)) for one, size in zip(state["noise"], self.layout.sizes, strict=True)]

    def _places(self) -> list[tuple[slice, int]]:
        return list(zip(self.layout.slices, self.layout.sizes, strict=True))

    def geometry(self, *, power: float, floor: float = DEFAULT_FLOOR) -> Factored:
        """Return units from moments above the noise level; rows below it get equal units.

        Raises:
            ArgumentError: no gradient was recorded yet.
        """
        if self._moments is None or self._noise is None:
            raise ArgumentError(
                "No released gradient was recorded yet, so no units can be estimated. Call note() first."
            )
        spread = self.floor_errors * math.sqrt(2 * (1 - self.decay) / (1 + self.decay))
        raised = []
        for part, (variance, size) in zip(self._moments, self._noise, strict=True):
            # the sum over a row of n squares has n times the variance of one; its error grows with the root of n
            axes = [
                np.maximum(sums, variance * spread * math.sqrt(size / len(sums))) if len(sums) else sums
                for sums in (part.rows, part.columns)
            ]
            raised.append(AxisMoments(rows=axes[0], columns=axes[1]))
        return factored_geometry(self.layout, raised, power=power, floor=floor)


def axis_moments(layout: Layout, squares: Array) -> list[AxisMoments]:
    """Return the sums of a flat vector over the rows and over the columns of every parameter."""
    found = []
    for where, shape in zip(layout.slices, layout.shapes, strict=True):
        values = squares[where].reshape(shape if shape else (1,))
        columns = values.reshape(shape[0], shape[1], -1).sum((0, 2)) if len(shape) > 1 else np.zeros(0)
        found.append(AxisMoments(rows=values.reshape(len(values), -1).sum(1), columns=columns))
    return found


def num_axis_sums(layout: Layout) -> int:
    """Return the total number of rows and columns of all parameters."""
    return sum(rows + columns for rows, columns in axis_sizes(layout))


def split_axis_sums(layout: Layout, sums: Array) -> list[AxisMoments]:
    """Split a flat list of sums by parameter, rows before columns; the inverse of :func:`joined_axis_sums`."""
    found, at = [], 0
    for num_rows, num_columns in axis_sizes(layout):
        middle, end = at + num_rows, at + num_rows + num_columns
        found.append(AxisMoments(rows=sums[at:middle], columns=sums[middle:end]))
        at = end
    return found


def joined_axis_sums(moments: Sequence[AxisMoments]) -> Array:
    """Concatenate the sums of all parameters, rows before columns."""
    return np.concatenate([part for one in moments for part in (one.rows, one.columns)])


def units_from_flat(layout: Layout, sums: Array, *, power: float, floor: float) -> Factored:
    """Return the units for a flat list of sums, with one unit per row and column."""
    found = factored_geometry(layout, split_axis_sums(layout, sums), power=power, floor=floor)
    return plain_geometry(layout, flat_units(found))


def plain_geometry(layout: Layout, values: Sequence[float] | None = None) -> Factored:
    """Return units from the list of numbers of :func:`flat_units`; all one by default."""
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
    """Return units as one list, parameter by parameter, rows before columns."""
    pairs = zip(geometry.rows, geometry.columns, strict=True)
    return tuple(value for rows, columns in pairs for part in (rows, columns) for value in part)


@dataclass(frozen=True, kw_only=True, eq=False)
class SquareMoments:
    """Positive sums of squares in the units of a geometry.

    Attributes:
        layout: The layout of the model.
        geometry: The units, with one unit per row and column.
        sums: The sums over rows and columns of all parameters.
    """

    layout: Layout
    geometry: Factored
    sums: Array

    def plain(self) -> Array:
        """Return the sums in plain units, for squares that are products of a row and a column factor."""
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
