"""Geometries: the units in which clipping and noise measure the coordinates of a gradient.

Noise may have a different size in every coordinate only if clipping measures norms in the same units. Under a geometry
the norm of an example is that of ``gradient / unit``, and the noise of a coordinate is proportional to its unit.
Whitening makes this an ordinary Gaussian release: divide by the units, clip to a ball, add equal noise; multiplying by
the units afterwards is post-processing. Under a ball in the plain norm, unequal noise is never better than equal noise,
because the smallest noise decides the privacy.

Units are public constants: they come from public data, from values released before the step, or from a separate release
that is charged (see :mod:`privet.mechanism.second_moments`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.errors import ArgumentError, PlanError
from privet.mechanism.layout import Layout

if TYPE_CHECKING:
    from torch import Tensor

# With a larger ratio the smaller units are lost in single-precision rounding.
MAX_RATIO = 1e4
_ALIKE = (1.0,)


@dataclass(frozen=True, kw_only=True)
class Units:
    """The units of one parameter: one number per row times one per column, or one per entry.

    Attributes:
        rows: Units along the first axis; a single number holds for all rows.
        columns: Units along the second axis; a single number holds for all columns.
        entries: One unit per entry in the order of the parameter, instead of rows and columns; otherwise empty.
    """

    rows: tuple[float, ...] = _ALIKE
    columns: tuple[float, ...] = _ALIKE
    entries: tuple[float, ...] = ()

    @property
    def extremes(self) -> tuple[float, float]:
        """The smallest and the largest unit."""
        if self.entries:
            return min(self.entries), max(self.entries)
        return min(self.rows) * min(self.columns), max(self.rows) * max(self.columns)

    def full(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the unit of every entry of a parameter of this shape, flattened."""
        if self.entries:
            return np.array(self.entries)
        units = np.ones(shape)
        for axis, values in ((0, self.rows), (1, self.columns)):
            if len(values) > 1:
                units *= np.array(values).reshape([-1 if index == axis else 1 for index in range(len(shape))])
            else:
                units *= values[0]
        return units.reshape(-1)


@runtime_checkable
class Geometry(Protocol):
    """A choice of units for the coordinates of a model. Public constants only."""

    def units(self, layout: Layout) -> tuple[Units, ...]:
        """Return the units of every parameter; refuse a layout of another model."""
        ...


def positive_units(name: str, values: object) -> tuple[float, ...]:
    """Return positive finite numbers as a tuple."""
    if not isinstance(values, list | tuple) or not values:
        raise ArgumentError(f"{name} must be a tuple of positive numbers, got {values!r}.")
    return tuple(checks.positive(f"{name}[{index}]", value) for index, value in enumerate(values))


@dataclass(frozen=True, kw_only=True)
class _Listed:
    """A geometry with one field of units, which ``_listed`` names."""

    _listed: ClassVar[str]

    def __post_init__(self) -> None:
        checks.fields(self, positive_units, self._listed)


def _check_number(piece: str, units: tuple[float, ...], number: int, found: str) -> None:
    if len(units) != number:
        raise PlanError(f"{piece} gives {len(units)} units but {found}")


@dataclass(frozen=True, kw_only=True)
class Isotropic:
    """The same unit for every coordinate: plain norms and equal noise."""

    def units(self, layout: Layout) -> tuple[Units, ...]:
        return (Units(),) * len(layout.names)


@dataclass(frozen=True, kw_only=True)
class PerGroup(_Listed):
    """One unit for each clipping group of the plan's grouping.

    Attributes:
        group_units: One unit per group, in the order of the groups.
    """

    _listed = "group_units"
    group_units: tuple[float, ...]

    def units(self, layout: Layout) -> tuple[Units, ...]:
        found = f"the grouping makes {layout.num_groups} groups. Give one unit per group."
        _check_number("PerGroup", self.group_units, layout.num_groups, found)
        return tuple(Units(rows=(self.group_units[group],)) for group in layout.groups)


@dataclass(frozen=True, kw_only=True)
class Factored:
    """One unit per row times one unit per column of every parameter; as cheap as plain norms in the default engine.

    The gradient of a linear map is the outer product of the output gradient and the input; dividing its rows and
    columns by units is dividing these two vectors.

    Attributes:
        rows: One tuple per parameter with one unit per index of the first axis, or a single unit for all.
        columns: The same for the second axis.
    """

    rows: tuple[tuple[float, ...], ...]
    columns: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            given = getattr(self, name)
            if not isinstance(given, list | tuple):
                raise ArgumentError(f"{name} must hold one tuple of units per parameter, got {given!r}.")
            object.__setattr__(self, name, tuple(positive_units(f"{name}[{i}]", part) for i, part in enumerate(given)))
        if len(self.rows) != len(self.columns):
            raise ArgumentError(
                f"rows and columns must hold one tuple per parameter each, got {len(self.rows)} and "
                f"{len(self.columns)}. Write (1.0,) where an axis has no units of its own."
            )

    def units(self, layout: Layout) -> tuple[Units, ...]:
        if len(self.rows) != len(layout.names):
            raise PlanError(
                f"Factored gives units for {len(self.rows)} parameters but the model has {len(layout.names)}. Build "
                "the geometry from the same model."
            )
        for name, shape, rows, columns in zip(layout.names, layout.shapes, self.rows, self.columns, strict=True):
            sizes = (*shape, 1, 1)[:2]
            if len(rows) not in (1, sizes[0]) or len(columns) not in (1, sizes[1]):
                raise PlanError(
                    f"Factored gives {len(rows)} rows and {len(columns)} columns for '{name}', which has the shape "
                    f"{list(shape)}. Build the geometry from the same model."
                )
        return tuple(Units(rows=rows, columns=cols) for rows, cols in zip(self.rows, self.columns, strict=True))


@dataclass(frozen=True, kw_only=True)
class Diagonal(_Listed):
    """One unit per coordinate. Engines materialise per-example gradients for it, so it is meant for small models.

    Attributes:
        coordinate_units: One unit per coordinate, in the order of the flat gradient vector.
    """

    _listed = "coordinate_units"
    coordinate_units: tuple[float, ...]

    def units(self, layout: Layout) -> tuple[Units, ...]:
        found = f"the model has {layout.num_coordinates} trainable coordinates. Build the geometry from the same model."
        _check_number("Diagonal", self.coordinate_units, layout.num_coordinates, found)
        return tuple(Units(entries=self.coordinate_units[where]) for where in layout.slices)


@dataclass(frozen=True, kw_only=True, eq=False)
class Factors:
    """The units of one parameter as tensors; None if all units are one."""

    rows: Tensor | None
    columns: Tensor | None
    entries: Tensor | None

    def multiply_(self, values: Tensor, power: float) -> None:
        """Multiply a tensor with the shape of the parameter by ``unit ** power``, in place."""
        if self.entries is not None:
            values.mul_(self.entries.view(values.shape).pow(power))
        for factor, axis in ((self.rows, 0), (self.columns, 1)):
            if factor is not None:
                values.mul_(along(factor, axis, values.dim()).pow(power))

    def over(self, gradients: Tensor) -> Tensor:
        """Divide per-example gradients ``[batch, *parameter]`` by the units."""
        if self.entries is not None:
            return gradients / self.entries.view(gradients.shape[1:])
        for factor, axis in ((self.rows, 1), (self.columns, 2)):
            if factor is not None:
                gradients = gradients / along(factor, axis, gradients.dim())
        return gradients


def along(factor: Tensor, axis: int, num_axes: int) -> Tensor:
    """Return the units as a view that broadcasts along one axis."""
    if len(factor) == 1:
        return factor.view(())
    return factor.view([-1 if index == axis else 1 for index in range(num_axes)])


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """A geometry bound to a model; clipping and noise of a step share one frame.

    Guarantee:
        Clipping divides by the units before it measures norms, so the clipped sum, its sensitivity and its noise are
        all in the units of this object. Rounding of the units costs no privacy, because it happens before clipping or
        after noise.
    """

    geometry: Geometry
    layout: Layout
    factors: tuple[Factors, ...]

    @classmethod
    def of(cls, geometry: Geometry, layout: Layout, like: Tensor) -> Frame:
        """Bind a geometry to a layout, in the precision and on the device of ``like``.

        Raises:
            PlanError: the units belong to another model, or their ratio is too large.
        """
        units = geometry.units(layout)
        _check_ratio(units)
        return cls(geometry=geometry, layout=layout, factors=tuple(_factors(part, like) for part in units))

    def rescale_(self, flat: Tensor, *, power: float) -> None:
        """Multiply every coordinate of a flat vector by ``unit ** power``, in place."""
        if power == 0:
            return
        for factors, where, shape in zip(self.factors, self.layout.slices, self.layout.shapes, strict=True):
            factors.multiply_(flat[where].view(shape), power)

    def whitened(self, flat: Tensor) -> Tensor:
        """Return a flat vector divided by the units."""
        result = flat.clone()
        self.rescale_(result, power=-1.0)
        return result


def _factors(units: Units, like: Tensor) -> Factors:
    def tensor(values: tuple[float, ...]) -> Tensor | None:
        return None if not values or values == _ALIKE else like.new_tensor(values)

    if units.entries:
        return Factors(rows=None, columns=None, entries=tensor(units.entries))
    return Factors(rows=tensor(units.rows), columns=tensor(units.columns), entries=None)


def _check_ratio(units: Sequence[Units]) -> None:
    low = min(part.extremes[0] for part in units)
    high = max(part.extremes[1] for part in units)
    if not (low > 0 and math.isfinite(high) and high / low <= MAX_RATIO):
        raise PlanError(
            f"The units of a geometry may differ by a factor of {MAX_RATIO:g} at most, found {low:g} to {high:g}. "
            "Raise the small ones with a floor."
        )
