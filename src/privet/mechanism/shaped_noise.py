"""Normal noise of different sizes: in the units of clipping, or per clipping group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privet import checks
from privet.errors import ArgumentError, LoopError
from privet.mechanism.events import gaussian_event
from privet.mechanism.geometry import Frame, Geometry
from privet.mechanism.layout import Layout
from privet.mechanism.noise import HALF_NORMAL, Array, FixedNoise, GaussianNoise, NoiseRun, add_normal
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.sums import ClippedSum, NormalSource, PrivateSum

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class EllipticalGaussian(GaussianNoise):
    """Normal noise proportional to the units of a geometry, on gradients that were clipped in the same units.

    Attributes:
        geometry: The units, fixed before any batch is drawn.
        preconditioning: The update is divided by the squared units to this power: 0 keeps the gradient, 1/2 takes steps
            in the units, 1 is a diagonal preconditioner for units proportional to the root of the second moments.
        noise_multiplier: Standard deviation of the noise in the units, over the sensitivity in the units. None until
            the plan is calibrated.
    """

    geometry: Geometry
    preconditioning: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.geometry, type) or not isinstance(self.geometry, Geometry):
            raise ArgumentError(f"geometry must be a Geometry such as Factored(...), got {self.geometry!r}.")
        power = checks.non_negative("preconditioning", self.preconditioning)
        if power > 1:
            raise ArgumentError(f"preconditioning must lie between 0 and 1, got {power!r}.")
        object.__setattr__(self, "preconditioning", power)
        super().__post_init__()

    def start(self, layout: Layout, *, has_mask: bool) -> NoiseRun:
        return FixedNoise(noise=self, layout=layout, geometry=self.geometry)

    def in_clipped_units(self, flat: Tensor, layout: Layout) -> Tensor:
        Frame.of(self.geometry, layout, flat).rescale_(flat, power=2 * self.preconditioning - 1)
        return flat

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Add equal noise in the units, then return to plain coordinates.

        Guarantee:
            ``clipped`` was measured and summed in the units of this geometry object, so in these units this is the
            Gaussian mechanism; the rest is post-processing by public constants. Masked coordinates stay exactly zero.
            An empty batch releases pure noise.

        Raises:
            LoopError: the sum was clipped in other units.
        """
        multiplier = self.multiplier
        if clipped.frame is None or clipped.frame.geometry is not self.geometry:
            raise LoopError(
                "The sum was clipped in other units than those of its noise. Both must use the same Geometry object: "
                "start the session from the plan that holds it."
            )
        std = multiplier * clipped.sensitivity.total
        add_normal(clipped.flat, std=std, source=source, keep=clipped.keep, kept=clipped.kept)
        clipped.frame.rescale_(clipped.flat, power=1 - 2 * self.preconditioning)
        bounds = clipped.sensitivity.bounds
        event = gaussian_event(bounds=bounds, stds=(std,) * len(bounds))
        return PrivateSum(flat=clipped.flat, layout=clipped.layout, event=event, noise_std=None)

    def mean_noise(self, layout: Layout, sensitivity: Sensitivity) -> Array:
        units = np.concatenate(
            [part.full(shape) for part, shape in zip(self.geometry.units(layout), layout.shapes, strict=True)]
        )
        return np.asarray(HALF_NORMAL * self.multiplier * sensitivity.total * units)


@dataclass(frozen=True, kw_only=True)
class GroupwiseGaussian(GaussianNoise):
    """Normal noise with one size per clipping group; the sizes minimise the total variance at a given guarantee.

    With bounds ``C_k`` and ``n_k`` coordinates the variance of group ``k`` is proportional to ``C_k / sqrt(n_k)``; a
    large group gets less noise per coordinate than a small one with the same bound. With one group it is
    :class:`~privet.mechanism.noise.Gaussian`.

    Attributes:
        noise_multiplier: ``1 / sqrt(sum (C_k / std_k)^2)``, the multiplier of the single Gaussian release with the same
            cost. None until the plan is calibrated.
    """

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Add the noise of each group to its part of the sum.

        Guarantee:
            Group ``k`` moves by at most its bound and gets independent noise of its size on every kept coordinate; the
            event is built from bounds and sizes. Masked coordinates stay exactly zero. An empty batch releases pure
            noise.
        """
        if clipped.frame is not None:
            clipped.refuse_units(type(self).__name__)
        multiplier = self.multiplier
        layout, bounds = clipped.layout, clipped.sensitivity.bounds
        stds = tuple(multiplier * ratio for ratio in _split(layout, bounds))
        for group, where in zip(layout.groups, layout.slices, strict=True):
            keep = None if clipped.keep is None else clipped.keep[where]
            add_normal(clipped.flat[where], std=stds[group], source=source, keep=keep)
        return PrivateSum(
            flat=clipped.flat,
            layout=layout,
            event=gaussian_event(bounds=bounds, stds=stds),
            noise_std=stds[0] if len(set(stds)) == 1 else None,
        )

    def mean_noise(self, layout: Layout, sensitivity: Sensitivity) -> Array:
        split = _split(layout, sensitivity.bounds)
        each = [split[group] for group in layout.groups]
        return np.asarray(HALF_NORMAL * self.multiplier * np.repeat(each, layout.sizes))


def _split(layout: Layout, bounds: Sequence[float]) -> tuple[float, ...]:
    sizes = [0] * len(bounds)
    for group, size in zip(layout.groups, layout.sizes, strict=True):
        sizes[group] += size
    return optimal_split(bounds, sizes)


def optimal_split(bounds: Sequence[float], sizes: Sequence[int]) -> tuple[float, ...]:
    """Return the standard deviation of every group at multiplier 1, with the least total variance.

    Minimises ``sum size * std^2`` under ``sum (bound / std)^2 = 1``; the solution is
    ``std^2 = bound / sqrt(size) * sum (bound * sqrt(size))``.
    Edge cases: no groups, unequal lengths, bounds that are not positive and empty groups are refused.
    """
    if len(bounds) != len(sizes) or not bounds:
        raise ArgumentError(f"Every group needs a bound and a size, got {len(bounds)} bounds and {len(sizes)} sizes.")
    roots = [math.sqrt(checks.count("size", size)) for size in sizes]
    limits = [checks.positive("bound", bound) for bound in bounds]
    total = math.fsum(limit * root for limit, root in zip(limits, roots, strict=True))
    return tuple(math.sqrt(limit / root * total) for limit, root in zip(limits, roots, strict=True))
