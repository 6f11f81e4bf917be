"""Events that the dp-accounting library has no class for. They are written, read and composed like all others."""

from __future__ import annotations

from dataclasses import dataclass

from dp_accounting import DpEvent


@dataclass(frozen=True, kw_only=True)
class PureDpEvent(DpEvent):  # type: ignore[misc]
    """A release of which only its pure guarantee is known.

    Attributes:
        epsilon: Bound on the log-ratio of probabilities when one unit is added, removed or blanked. Exchanging a unit
            for another is blanking one and adding the other, so it is charged twice this bound.
    """

    epsilon: float


@dataclass(frozen=True, kw_only=True)
class TotalVariationDpEvent(DpEvent):  # type: ignore[misc]
    """The run differs from the one that the other events describe, with at most this probability.

    It is released together with other events and is worth ``(1 + exp(epsilon)) * distance`` of their delta: if P and Q
    are within ``distance`` of P' and Q' in total variation, the hockey-stick divergence of P and Q exceeds that of P'
    and Q' by at most that much.

    Attributes:
        distance: Bound on the probability of a difference, on either of the two data sets.
    """

    distance: float


@dataclass(frozen=True, kw_only=True)
class L2LaplaceDpEvent(DpEvent):  # type: ignore[misc]
    """A release under noise of density ``exp(-length / scale)``.

    Attributes:
        noise_multiplier: Standard deviation of the noise in each coordinate, ``sqrt(num_coordinates + 1)`` scales,
            over the bound on the length of one unit's contribution.
        num_coordinates: How many coordinates have noise.
    """

    noise_multiplier: float
    num_coordinates: int


@dataclass(frozen=True, kw_only=True)
class ProductLaplaceDpEvent(DpEvent):  # type: ignore[misc]
    """A release under independent Laplace noise, of a sum in which one unit's contribution is bounded in length.

    Attributes:
        scales: The different scales of the noise over the bound on the length.
        counts: How many coordinates have each scale.
    """

    scales: tuple[float, ...]
    counts: tuple[int, ...]
