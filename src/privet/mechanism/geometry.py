"""The units in which gradients are measured: one object for clipping and for noise.

Noise may have another size in every coordinate only if clipping measures lengths in the same units. A geometry says
what the units are: an example counts with the norm of ``gradient / unit``, and the noise of a coordinate is
proportional to its unit. Whitening makes this an ordinary Gaussian release: dividing by the units, clipping a ball,
adding equal noise, and multiplying by the units afterwards is post-processing. Under a ball of the plain norm, on the
other hand, no choice of sizes is better than equal ones, since the smallest of them decides about privacy.

Units are public constants: they come from public data, from values released before the step, or from a release of their
own that is charged (see :mod:`privet.mechanism.second_moments`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.errors import ArgumentError, PlanError
from privet.mechanism.layout import Layout

if TYPE_CHECKING:
    from torch import Tensor

# Units further apart than this lose the smaller ones in the rounding of single precision.
MAX_RATIO = 1e4
_ALIKE = (1.0,)


@dataclass(frozen=True, kw_only=True)
class Units:
    """The units of one parameter: one number per row times one per column, or one per entry.

    Attributes:
        rows: Along the first axis; a single number holds for all.
        columns: Along the second axis; a single number holds for all.
        entries: One per entry in the parameter's order, instead of rows and columns; empty otherwise.
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
        """Return the unit of every entry of a parameter of this shape, in its order."""
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
    """A choice of units for the coordinates of a model."""

    def units(self, layout: Layout) -> tuple[Units, ...]:
        """Return the units of every parameter; refuse a layout for which they were not made."""
        ...


def positive_units(name: str, values: object) -> tuple[float, ...]:
    """Return positive finite numbers as a tuple."""
    if not isinstance(values, list | tuple) or not values:
        raise ArgumentError(f"{name} must be a tuple of positive numbers, got {values!r}.")
    return tuple(checks.positive(f"{name}[{index}]", value) for index, value in enumerate(values))


@dataclass(frozen=True, kw_only=True)
class Isotropic:
    """Every coordinate in the same unit: plain norms and equal noise."""

    def units(self, layout: Layout) -> tuple[Units, ...]:
        return (Units(),) * len(layout.names)


@dataclass(frozen=True, kw_only=True)
class PerGroup:
    """One unit for each clipping group of the plan's grouping.

    Attributes:
        group_units: In the order of the groups.
    """

    group_units: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "group_units", positive_units("group_units", self.group_units))

    def units(self, layout: Layout) -> tuple[Units, ...]:
        if len(self.group_units) != layout.num_groups:
            raise PlanError(
                f"PerGroup gives {len(self.group_units)} units but the grouping makes {layout.num_groups} groups. Give "
                "one unit per group."
            )
        return tuple(Units(rows=(self.group_units[group],)) for group in layout.groups)


@dataclass(frozen=True, kw_only=True)
class Factored:
    """A unit per row times a unit per column of every parameter: as cheap as plain norms in the default engine.

    The gradient of a linear map is an outer product of what came back and what went in; dividing rows and columns by
    their units is dividing these two.

    Attributes:
        rows: One tuple per parameter, of the length of its first axis, or a single number for all rows.
        columns: One tuple per parameter, of the length of its second axis, or a single number.
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
class Diagonal:
    """A unit for every single coordinate. Per-example gradients are written out for it: meant for small models.

    Attributes:
        coordinate_units: In the order of the flat gradient vector.
    """

    coordinate_units: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "coordinate_units", positive_units("coordinate_units", self.coordinate_units))

    def units(self, layout: Layout) -> tuple[Units, ...]:
        if len(self.coordinate_units) != layout.num_coordinates:
            raise PlanError(
                f"Diagonal gives {len(self.coordinate_units)} units but the model has {layout.num_coordinates} "
                "trainable coordinates. Build the geometry from the same model."
            )
        return tuple(Units(entries=self.coordinate_units[where]) for where in layout.slices)


@dataclass(frozen=True, kw_only=True, eq=False)
class Factors:
    """The units of one parameter as tensors; None where all are one."""

    rows: Tensor | None
    columns: Tensor | None
    entries: Tensor | None

    def multiply_(self, values: Tensor, power: float) -> None:
        """Multiply a tensor of the parameter's shape by the units to some power, in place."""
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
    """Return a vector, or a single number, that broadcasts along one of the axes."""
    if len(factor) == 1:
        return factor.view(())
    return factor.view([-1 if index == axis else 1 for index in range(num_axes)])


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """A geometry bound to a model: what a step's clipping and noise share.

    Guarantee:
        Clipping divides by the units before it measures, so the clipped sum, its sensitivity and its noise all live in
        the units of this one object. Rounding of the units costs no privacy: it happens before clipping, or after
        noise.
    """

    geometry: Geometry
    layout: Layout
    factors: tuple[Factors, ...]

    @classmethod
    def of(cls, geometry: Geometry, layout: Layout, like: Tensor) -> Frame:
        """Bind a geometry to a layout, in the precision and on the device of ``like``.

        Raises:
            PlanError: if the units were made for another model, or lie too far apart.
        """
        units = geometry.units(layout)
        _check_ratio(units)
        return cls(geometry=geometry, layout=layout, factors=tuple(_factors(part, like) for part in units))

    def rescale_(self, flat: Tensor, *, power: float) -> None:
        """Multiply every coordinate of a flat vector by its unit to some power, in place."""
        if power == 0:
            return
        for factors, where, shape in zip(self.factors, self.layout.slices, self.layout.shapes, strict=True):
            factors.multiply_(flat[where].view(shape), power)

    def whitened(self, flat: Tensor) -> Tensor:
        """Return a flat vector in the units."""
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
