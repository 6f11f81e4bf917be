"""Noise with exponential tails on sums bounded in l2 norm, with pure guarantees.

All three pieces have the density ``exp(-N(z) / scale)`` with a norm ``N`` that is at most the l2 norm. If the sum moves
by at most ``C``, the logarithm of the density changes by at most ``C / scale``, so one release is
``C / scale``-differentially private (``pure_epsilon``). The norm decides how the noise is distributed over the
coordinates; :mod:`privet.mechanism.optimal_laplace` chooses a norm for given weights.

A draw of the keystream reaches 36 scales. The missing tail has probability 2e-16: the pure guarantee holds up to that.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from privet import checks
from privet.errors import ArgumentError, PlanError
from privet.mechanism.draws import add_radial, add_radial_at, add_two_sided
from privet.mechanism.events import MAX_PARTS, L2LaplaceDpEvent, ProductLaplaceDpEvent, PureDpEvent
from privet.mechanism.geometry import positive_units
from privet.mechanism.layout import Layout
from privet.mechanism.noise import MultipliedNoise, NoiseFamily
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.sums import ClippedSum, NormalSource, PrivateSum

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Array = NDArray[np.float64]
_SQUARES_TOLERANCE = 1e-12


def mean_coordinate(num_coordinates: int) -> float:
    """Return the mean absolute value of one coordinate under ``exp(-length)``: about ``sqrt(2 d / pi)``."""
    half = num_coordinates / 2
    return num_coordinates * math.exp(float(gammaln(half) - gammaln(half + 0.5))) / math.sqrt(math.pi)


@dataclass(frozen=True, kw_only=True)
class LaplaceNoise(MultipliedNoise):
    """Noise of density ``exp(-N(z) / scale)`` with a norm ``N`` that is at most the l2 norm."""

    family: ClassVar[NoiseFamily | None] = NoiseFamily.LAPLACE

    @abstractmethod
    def mean_absolute(self) -> Array:
        """Return the mean absolute noise of every coordinate, at sensitivity 1."""

    def mean_noise(self, layout: Layout, sensitivity: Sensitivity) -> Array:
        means = self.mean_absolute() * sensitivity.total
        if len(means) != layout.num_coordinates:
            raise PlanError(f"The noise is for {len(means)} coordinates, but the model has {layout.num_coordinates}.")
        return means


@dataclass(frozen=True, kw_only=True)
class L2Laplace(LaplaceNoise):
    """Noise of density ``exp(-length / scale)``: a uniform direction and a Gamma-distributed length.

    One closed-form dominating pair makes its composition exact. At one guarantee it needs as much noise as Gaussian
    noise in many dimensions, and far less for a single release in few dimensions.

    Attributes:
        num_coordinates: Number of coordinates with noise; the cost depends on it.
        noise_multiplier: Standard deviation of the noise of a coordinate over the sensitivity, as for Gaussian noise;
            the scale is this divided by ``sqrt(num_coordinates + 1)``. None until the plan is calibrated.
    """

    num_coordinates: int

    def __post_init__(self) -> None:
        checks.count("num_coordinates", self.num_coordinates)
        super().__post_init__()

    @property
    def is_spherical(self) -> bool:
        return True

    def event(self) -> DpEvent:
        return L2LaplaceDpEvent(noise_multiplier=self.multiplier, num_coordinates=self.num_coordinates)

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Add the noise in place.

        Guarantee:
            The number of coordinates with noise is the number in the event, because the cost depends on it; any other
            number is refused. Masked coordinates stay exactly zero. An empty batch releases pure noise.
        """
        if clipped.frame is not None:
            clipped.refuse_units(type(self).__name__)
        live = live_coordinates(clipped, self.num_coordinates, type(self).__name__)
        std = self.multiplier * clipped.sensitivity.total
        add_radial(clipped.flat, scale=std / math.sqrt(live + 1), source=source, keep=clipped.keep)
        event = L2LaplaceDpEvent(noise_multiplier=_ratio(std, clipped), num_coordinates=live)
        return PrivateSum(flat=clipped.flat, layout=clipped.layout, event=event, noise_std=std)

    @property
    def pure_epsilon(self) -> float:
        """The largest privacy loss of one release: the sensitivity over the scale."""
        return math.sqrt(self.num_coordinates + 1) / self.multiplier

    def mean_absolute(self) -> Array:
        return np.full(self.num_coordinates, mean_coordinate(self.num_coordinates) / self.pure_epsilon)


@dataclass(frozen=True, kw_only=True)
class ProductLaplace(LaplaceNoise):
    """Independent Laplace noise with one scale per coordinate, for contributions bounded in l2 norm.

    Attributes:
        sizes: The scale of each coordinate, in the flat order, relative to the smallest scale, which is 1.
        noise_multiplier: Standard deviation of the smallest noise, ``sqrt(2)`` of its scale, over the sensitivity. The
            smallest noise dominates the cost of composed releases. None until the plan is calibrated.
    """

    sizes: tuple[float, ...]

    def __post_init__(self) -> None:
        sizes = positive_units("sizes", self.sizes)
        if min(sizes) != 1:
            raise ArgumentError(f"The smallest of sizes must be 1, got {min(sizes)!r}. Divide all by the smallest.")
        object.__setattr__(self, "sizes", sizes)
        super().__post_init__()

    def event(self) -> DpEvent:
        return self._event(self.multiplier)

    def _event(self, multiplier: float) -> DpEvent:
        sizes, counts = self._different_sizes
        least = multiplier / math.sqrt(2)
        return ProductLaplaceDpEvent(scales=tuple(least * size for size in sizes), counts=counts)

    @cached_property
    def _array(self) -> Array:
        return np.array(self.sizes)

    @cached_property
    def _different_sizes(self) -> tuple[tuple[float, ...], tuple[int, ...]]:
        sizes = self._array
        if len(np.unique(sizes)) > MAX_PARTS // 2:
            # Sizes are rounded down by up to one percent for the charge; the smallest size is not changed.
            sizes = np.exp(np.floor(np.log(sizes) * 100) / 100)
        found, counts = np.unique(sizes, return_counts=True)
        return tuple(found.tolist()), tuple(counts.tolist())

    @property
    def pure_epsilon(self) -> float:
        return math.sqrt(2 * float((1 / np.square(self._array)).sum())) / self.multiplier

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Add the noise in place.

        Guarantee:
            Every coordinate gets an independent draw of its scale. A mask is refused, because the charge covers all
            coordinates. An empty batch releases pure noise.
        """
        if clipped.frame is not None:
            clipped.refuse_units(type(self).__name__)
        _check_unmasked(clipped, len(self.sizes), type(self).__name__)
        std = self.multiplier * clipped.sensitivity.total
        scale = std / math.sqrt(2)
        is_equal = len(self._different_sizes[0]) == 1
        scales = scale if is_equal else scale * self._array
        add_two_sided(clipped.flat, scales=scales, source=source, keep=None)
        event = self._event(_ratio(std, clipped))
        return PrivateSum(flat=clipped.flat, layout=clipped.layout, event=event, noise_std=None)

    def mean_absolute(self) -> Array:
        return np.asarray(self.multiplier / math.sqrt(2) * self._array)

    def root_mean_square(self, num_coordinates: int) -> float:
        return math.sqrt(2 * float(np.square(self.mean_absolute()).sum()))


@dataclass(frozen=True, kw_only=True)
class BlockL2(LaplaceNoise):
    """Noise of density ``exp(-sum_j coefficient_j * length of block j / scale)``; contains the other two as extremes.

    Only its pure guarantee is accounted, so it is meant for one release or a few.

    Attributes:
        block_of: The block of every coordinate in the flat order; blocks are numbered from 0 without gaps.
        coefficients: One per block, with squares that sum to 1; a larger coefficient means less noise.
        noise_multiplier: One over the pure epsilon of a release. None until the plan is calibrated.
    """

    block_of: tuple[int, ...]
    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", _shares("coefficients", self.coefficients))
        blocks = tuple(checks.count("block_of", block, minimum=0) for block in self.block_of)
        if set(blocks) != set(range(len(self.coefficients))):
            raise ArgumentError(
                f"block_of must name every block from 0 to {len(self.coefficients) - 1} and no other; it names "
                f"{len(set(blocks))} different ones."
            )
        object.__setattr__(self, "block_of", blocks)
        super().__post_init__()

    def event(self) -> DpEvent:
        return PureDpEvent(epsilon=1 / self.multiplier)

    @property
    def pure_epsilon(self) -> float:
        return 1 / self.multiplier

    @cached_property
    def _members(self) -> tuple[NDArray[np.int64], ...]:
        order = np.argsort(np.array(self.block_of), kind="stable")
        ends = np.cumsum(np.bincount(self.block_of))[:-1]
        return tuple(np.split(order, ends))

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Add the noise in place, block by block; blocks are independent.

        Guarantee:
            As in :meth:`ProductLaplace.add`.
        """
        if clipped.frame is not None:
            clipped.refuse_units(type(self).__name__)
        _check_unmasked(clipped, len(self.block_of), type(self).__name__)
        scale = self.multiplier * clipped.sensitivity.total
        for members, coefficient in zip(self._members, self.coefficients, strict=True):
            add_radial_at(clipped.flat, members, scale=scale / coefficient, source=source)
        event = PureDpEvent(epsilon=1 / _ratio(scale, clipped))
        return PrivateSum(flat=clipped.flat, layout=clipped.layout, event=event, noise_std=None)

    def mean_absolute(self) -> Array:
        means = [mean_coordinate(len(m)) / c for c, m in zip(self.coefficients, self._members, strict=True)]
        return self.multiplier * np.array(means)[list(self.block_of)]

    def root_mean_square(self, num_coordinates: int) -> float:
        sizes = np.bincount(self.block_of)
        scales = 1 / (self.pure_epsilon * np.array(self.coefficients))
        return math.sqrt(float((sizes * (sizes + 1) * scales * scales).sum()))


def live_coordinates(clipped: ClippedSum, expected: int, piece: str) -> int:
    """Return the number of coordinates of a step; refuse a number that differs from the plan."""
    live = clipped.flat.numel() if clipped.keep is None else int(clipped.keep.sum())
    if live != expected:
        raise PlanError(
            f"{piece}(num_coordinates={expected}) was planned, but {live} coordinates take part in this step. The cost "
            "depends on this number: plan with the number of trainable coordinates of the model."
        )
    return live


def _check_unmasked(clipped: ClippedSum, expected: int, piece: str) -> None:
    if clipped.keep is not None:
        raise PlanError(f"{piece} adds noise to every coordinate and does not work with a mask. Use NoMask().")
    live_coordinates(clipped, expected, piece)


def _ratio(scale: float, clipped: ClippedSum) -> float:
    # Computed from the bounds, not from the total that set the scale: the event must state the real bounds.
    return scale / math.hypot(*clipped.sensitivity.bounds)


def _shares(name: str, values: Sequence[float]) -> tuple[float, ...]:
    if not isinstance(values, list | tuple) or not values:
        raise ArgumentError(f"{name} must be a tuple of positive numbers whose squares sum to 1, got {values!r}.")
    found = tuple(checks.positive(f"{name}[{index}]", value) for index, value in enumerate(values))
    total = math.fsum(value * value for value in found)
    if not 1 - 1e-6 <= total <= 1 + _SQUARES_TOLERANCE:
        raise ArgumentError(
            f"The squares of {name} must sum to 1, but they sum to {total!r}. Divide all by the root of that sum."
        )
    return found
