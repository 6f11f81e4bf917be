"""What it costs that drawn noise ends somewhere, while the Gaussian it stands for does not.

The noise of a pair of coordinates is a point in the plane whose distance from the origin never exceeds a reach ``R``
(in standard deviations). An outcome outside the disc around one data set's sum, but inside that around its neighbour's,
gives the neighbour away. On every other outcome the ratio of the two densities is the ideal one, because both are cut
in the same way. So the cost is the probability of such outcomes, which this module bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting import dp_event
from numpy.typing import NDArray
from scipy.special import i0e

from privet import checks
from privet.accounting.mechanisms import neighbour_distance
from privet.errors import AccountingError
from privet.mechanism.events import DpEvent, flatten, fuse_gaussians
from privet.vocabulary import Adjacency

Array = NDArray[np.float64]

# The radius of a keystream draw is sqrt(-2 log u) with u from this many random bits, never zero.
KEYSTREAM_RADIUS_BITS = 52
# How much of delta the cut tail may cost before a certificate says that it is too much.
TAIL_SHARE = 1e-3

_POINTS = 400
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_PANEL, _NUM_PANELS = 1.0, 12


def reach_of_bits(bits: int) -> float:
    """Return the largest radius, in standard deviations, that a uniform number of so many bits gives."""
    return math.sqrt(2 * checks.count("bits", bits) * math.log(2))


def beyond(distance: float, reach: float) -> float:
    """Return the probability that a plane normal draw centred ``distance`` away lies further out than ``reach``.

    This is Marcum's Q function of order one, integrated in double precision.
    """
    edges = reach + _PANEL * np.arange(_NUM_PANELS + 1)
    half = _PANEL / 2
    x = (edges[:-1, None] + half * (1 + _NODES)).ravel()
    density = x * np.exp(-0.5 * (x - distance) ** 2) * i0e(distance * x)
    return float(np.tile(half * _WEIGHTS, _NUM_PANELS) @ density)


def _lune(distance: float, reach: float) -> float:
    """Bound the mass of the lune per unit of ``distance``: its area is at most ``2 * reach * distance``."""
    return reach / math.pi * math.exp(-0.5 * max(0.0, reach - distance) ** 2)


def lost_mass(shift: float, *, reach: float, num_coordinates: int) -> float:
    """Bound the probability that one draw gives a neighbour away.

    Args:
        shift: Distance of the neighbours' sums in standard deviations of the noise.
        reach: Largest radius of a pair's noise, in the same unit.
        num_coordinates: Over how many coordinates the distance may be spread in any way.

    Guarantee: an upper bound for every spread. Pairs that get at most a threshold of the distance are bounded by the
    area of their lune, those that get more, of which there are few, by the whole mass beyond the reach; the best
    threshold is taken.
    Edge cases: a shift of the reach or more gives 1.
    """
    shift, reach = checks.positive("shift", shift), checks.positive("reach", reach)
    pairs = (checks.count("num_coordinates", num_coordinates) + 1) // 2
    if shift >= reach:
        return 1.0
    thresholds = np.geomspace(shift * 1e-4, shift, _POINTS)
    masses: Array = np.array([beyond(float(distance), reach) for distance in thresholds])
    # Between two thresholds the mass is at most that of the upper one, the square at least that of the lower one.
    ratios = masses[1:] / thresholds[:-1] ** 2
    of_large = np.append(np.maximum.accumulate(ratios[::-1])[::-1], 0.0) * shift**2
    of_small = np.array([_lune(float(distance), reach) for distance in thresholds]) * shift * math.sqrt(pairs)
    return min(1.0, float((of_large + of_small).min()))


@dataclass(frozen=True, kw_only=True)
class _Draws:
    """Rounds in which a neighbour's sum lies ``shift`` away with probability ``rate``."""

    rate: float
    shift: float
    count: int


def _draws(event: DpEvent, adjacency: Adjacency) -> list[_Draws]:
    return [_draw(part, count, neighbour_distance(adjacency)) for part, count in flatten(event)]


def _draw(part: DpEvent, count: int, factor: float) -> _Draws:
    rate, inner = 1.0, part
    if isinstance(part, dp_event.TruncatedSubsampledGaussianDpEvent):
        # In a full batch a record takes another's place: twice the distance, at no better rate than one.
        return _Draws(rate=1.0, shift=2 / _positive(part.noise_multiplier), count=count)
    if isinstance(part, dp_event.PoissonSampledDpEvent):
        rate, inner = float(part.sampling_probability), part.event
    elif isinstance(part, dp_event.SampledWithoutReplacementDpEvent):
        inner, factor = part.event, 2.0
    parts = list(flatten(inner))
    if not parts or not all(isinstance(each, dp_event.GaussianDpEvent) for each, _ in parts):
        raise AccountingError(f"The tail of {type(inner).__name__} noise is not known here; that of Gaussian noise is.")
    multiplier = fuse_gaussians([each.noise_multiplier / math.sqrt(times) for each, times in parts])
    return _Draws(rate=rate, shift=factor / _positive(multiplier), count=count)


def _positive(multiplier: float) -> float:
    if not 0 < multiplier < math.inf:
        raise AccountingError(f"A noise multiplier of {multiplier!r} has no tail to speak of.")
    return float(multiplier)


def tail_delta(
    event: DpEvent, *, adjacency: Adjacency, epsilon: float, delta: float, reach: float, num_coordinates: int
) -> float:
    """Bound what a run's delta grows by because its Gaussian noise ends at ``reach``.

    Args:
        event: Everything that was charged.
        adjacency: Which two data sets are meant to look alike.
        epsilon: The epsilon that is promised together with ``delta``.
        delta: The delta that is promised for ideal noise.
        reach: Largest radius of the noise of a pair of coordinates, in standard deviations.
        num_coordinates: Coordinates that get noise.

    Guarantee: with the returned number added to delta the promise holds for the cut noise, whatever else is ideal.
    Three terms are added up: outcomes that only one of two neighbours can give; the same outcomes seen from the other
    side, which weigh ``exp(epsilon)`` times their tiny mass; and the growth of both densities where nothing was cut.
    Edge cases: an infinite epsilon or noise that is not Gaussian raises ``AccountingError``; nothing released costs 0.
    """
    if not math.isfinite(epsilon):
        raise AccountingError("Without a finite epsilon there is nothing that a tail could spoil.")
    draws = _draws(event, adjacency)
    pairs = (checks.count("num_coordinates", num_coordinates) + 1) // 2
    num_rounds = sum(draw.count for draw in draws)
    growth = math.expm1(-num_rounds * pairs * math.log1p(-math.exp(-0.5 * reach * reach)))
    lost = math.fsum(
        draw.count * draw.rate * _lost_both_ways(draw.shift, reach, num_coordinates, epsilon) for draw in _merged(draws)
    )
    return min(1.0, growth * delta + (1 + growth) * lost)


def _lost_both_ways(shift: float, reach: float, num_coordinates: int, epsilon: float) -> float:
    pairs = (num_coordinates + 1) // 2
    from_afar = math.exp(min(epsilon, 700.0)) * _lune(0.0, reach) * shift * math.sqrt(pairs)
    return lost_mass(shift, reach=reach, num_coordinates=num_coordinates) + from_afar


def _merged(draws: Sequence[_Draws]) -> list[_Draws]:
    counts: dict[tuple[float, float], int] = {}
    for draw in draws:
        counts[draw.rate, draw.shift] = counts.get((draw.rate, draw.shift), 0) + draw.count
    return [_Draws(rate=rate, shift=shift, count=count) for (rate, shift), count in counts.items()]
