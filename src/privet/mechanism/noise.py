"""Noise: the one place where randomness is added to a clipped sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from privet import checks
from privet.errors import PlanError
from privet.mechanism.events import gaussian_event
from privet.mechanism.granularity import Kept
from privet.mechanism.sensitivity import Norm
from privet.mechanism.sums import ClippedSum, PrivateSum

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor

# Noise of kept coordinates is drawn apart from the sum it joins; this many at a time bound the extra memory.
_CHUNK = 1 << 22


class NormalSource(Protocol):
    """Where noise comes from: a keyed stream of standard normal numbers."""

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Add a fresh N(0, std^2) draw, made in double precision, to every element of a vector in place."""
        ...


@runtime_checkable
class Noise(Protocol):
    """A noise piece of a plan."""

    @property
    def norm_kind(self) -> Norm:
        """The norm in which the clipped sum must be bounded."""
        ...

    def event(self) -> DpEvent:
        """Say what one release of a clipped sum costs, before amplification by sampling."""
        ...

    def with_multiplier(self, noise_multiplier: float) -> Noise:
        """Return the same noise at another ratio of standard deviation to sensitivity."""
        ...

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Turn a clipped sum into a private one; the event of the result is built from what was really added."""
        ...


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """Independent normal noise of one size on every kept coordinate.

    Attributes:
        noise_multiplier: Standard deviation of the noise on the *sum*, over the total sensitivity of the sum. None
            until the plan is calibrated.
    """

    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        """Refuse a multiplier that is not a positive number; zero noise is no mechanism."""
        object.__setattr__(self, "noise_multiplier", checked_multiplier(self.noise_multiplier))

    @property
    def norm_kind(self) -> Norm:
        """Gaussian noise hides an L2-bounded contribution."""
        return Norm.L2

    def event(self) -> DpEvent:
        """Return the Gaussian mechanism at this multiplier."""
        return gaussian_event(bounds=(1.0,), stds=(calibrated_multiplier(type(self).__name__, self.noise_multiplier),))

    def with_multiplier(self, noise_multiplier: float) -> Gaussian:
        """Return a copy with this multiplier."""
        return replace(self, noise_multiplier=noise_multiplier)

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        """Add noise to ``clipped.flat`` in place and hand it on as a private sum.

        Guarantee:
            Every kept coordinate gets an independent N(0, (noise_multiplier * sensitivity)^2) draw from ``source``,
            in double precision: single-precision generators never draw beyond 5.8 standard deviations, which alone can
            cost more than delta. Masked coordinates stay exactly zero. An empty batch releases noise alone.
        """
        clipped.check_plain_units(type(self).__name__)
        std = calibrated_multiplier(type(self).__name__, self.noise_multiplier) * clipped.sensitivity.total
        add_normal(clipped.flat, std=std, source=source, keep=clipped.keep, kept=clipped.kept)
        bounds = clipped.sensitivity.bounds
        return PrivateSum(
            flat=clipped.flat,
            layout=clipped.layout,
            event=gaussian_event(bounds=bounds, stds=(std,) * len(bounds)),
            noise_std=std,
        )


def checked_multiplier(noise_multiplier: float | None) -> float | None:
    """Return a multiplier that is a positive number, or None for a piece that is not calibrated yet."""
    return None if noise_multiplier is None else checks.positive("noise_multiplier", noise_multiplier)


def calibrated_multiplier(piece: str, noise_multiplier: float | None) -> float:
    """Return the multiplier of a piece, or say that it has none yet."""
    if noise_multiplier is None:
        raise PlanError(f"{piece}() has no noise_multiplier yet. Set one, or let plan.calibrated(epsilon=...) find it.")
    return noise_multiplier


def add_normal(
    flat: Tensor, *, std: float, source: NormalSource, keep: Tensor | None, kept: Kept | None = None
) -> None:
    """Add N(0, std^2) to the kept coordinates of ``flat`` in place; for the others nothing is drawn.

    ``kept`` is the same choice as ``keep``, with the numbers of its coordinates; they are looked for otherwise.
    """
    if keep is None:
        source.add_normal(flat, std)
        return
    index = keep.nonzero().squeeze(1) if kept is None else kept.index
    for start in range(0, len(index), _CHUNK):
        part = index[start : start + _CHUNK]
        draw = flat.new_zeros(len(part))
        source.add_normal(draw, std)
        flat.scatter_add_(0, part, draw)
