"""The cost of the bounded range of generated noise, in contrast to an ideal Gaussian.

The noise of a pair of coordinates is a point in the plane whose distance from the origin never exceeds a reach ``R``
(in standard deviations). An outcome outside the disc around the sum of one data set, but inside the disc of its
neighbour, identifies the neighbour. On every other outcome the ratio of the two densities is the ideal one, because
both are truncated in the same way. So the cost is the probability of such outcomes, which this module bounds.
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
from privet.accounting.sampled_records import binomial_weights
from privet.errors import AccountingError
from privet.mechanism.events import DpEvent, RandomAllocationDpEvent, SampledRecordsDpEvent, flatten, fuse_gaussians
from privet.vocabulary import Adjacency

Array = NDArray[np.float64]

# The radius of a keystream draw is sqrt(-2 log u), where u has this many random bits and is never zero.
KEYSTREAM_RADIUS_BITS = 52
# The largest share of delta that the truncated tail may cost in a certificate without a warning.
TAIL_SHARE = 1e-3

_POINTS = 400
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_PANEL, _NUM_PANELS = 1.0, 12


def reach_of_bits(bits: int) -> float:
    """Return the largest radius, in standard deviations, from a uniform number with this many bits."""
    return math.sqrt(2 * checks.count("bits", bits) * math.log(2))


def beyond(distance: float, reach: float) -> float:
    """Return the probability that a normal draw in the plane, centred at ``distance``, is outside the radius ``reach``.

    This is the Marcum Q function of order one, integrated in double precision.
    """
    edges = reach + _PANEL * np.arange(_NUM_PANELS + 1)
    half = _PANEL / 2
    x = (edges[:-1, None] + half * (1 + _NODES)).ravel()
    density = x * np.exp(-0.5 * (x - distance) ** 2) * i0e(distance * x)
    return float(np.tile(half * _WEIGHTS, _NUM_PANELS) @ density)


def _lune(distance: float, reach: float) -> float:
    """Return a bound on the mass of the lune per unit of ``distance``; its area is at most ``2 * reach * distance``."""
    return reach / math.pi * math.exp(-0.5 * max(0.0, reach - distance) ** 2)


def lost_mass(shift: float, *, reach: float, num_coordinates: int) -> float:
    """Return a bound on the probability that one draw identifies a neighbour.

    Args:
        shift: Distance of the sums of the neighbours in standard deviations of the noise.
        reach: Largest radius of the noise of a pair of coordinates, in the same unit.
        num_coordinates: Number of coordinates over which the distance may be distributed in any way.

    Guarantee: an upper bound for every distribution of the distance. A pair of coordinates with at most a threshold of
    the distance is bounded by the area of its lune; the few pairs with more are bounded by the whole mass beyond the
    reach. The best threshold is used.
    Edge cases: a shift of the reach or more gives 1.
    """
    shift, reach = checks.positive("shift", shift), checks.positive("reach", reach)
    pairs = (checks.count("num_coordinates", num_coordinates) + 1) // 2
    if shift >= reach:
        return 1.0
    thresholds = np.geomspace(shift * 1e-4, shift, _POINTS)
    masses: Array = np.array([beyond(float(distance), reach) for distance in thresholds])
    # Between two thresholds the mass is at most that of the upper one and the square at least that of the lower one.
    ratios = masses[1:] / thresholds[:-1] ** 2
    of_large = np.append(np.maximum.accumulate(ratios[::-1])[::-1], 0.0) * shift**2
    of_small = np.array([_lune(float(distance), reach) for distance in thresholds]) * shift * math.sqrt(pairs)
    return min(1.0, float((of_large + of_small).min()))


@dataclass(frozen=True, kw_only=True)
class _Draws:
    """Rounds in which the sum of a neighbour is at distance ``shift`` with probability ``rate``."""

    rate: float
    shift: float
    count: int


def _draws(event: DpEvent, adjacency: Adjacency) -> list[_Draws]:
    factor, found = neighbour_distance(adjacency), list[_Draws]()
    for part, count in flatten(event):
        if isinstance(part, SampledRecordsDpEvent):
            found += _draws_of_records(part, count)
        else:
            found.append(_draw(part, count, factor))
    return found


def _draws_of_records(part: SampledRecordsDpEvent, count: int) -> list[_Draws]:
    """Return one entry per number of the unit's records in the sample, with its probability."""
    rate, records, multiplier = part.sampling_probability, part.num_records, _positive(part.noise_multiplier)
    weights = binomial_weights(records, rate)
    return [_Draws(rate=weights[j], shift=j / multiplier, count=count) for j in range(1, records + 1)]


def _draw(part: DpEvent, count: int, factor: float) -> _Draws:
    rate, inner = 1.0, part
    if isinstance(part, dp_event.TruncatedSubsampledGaussianDpEvent):
        # In a full batch a record replaces another one: twice the distance, with rate one.
        return _Draws(rate=1.0, shift=2 / _positive(part.noise_multiplier), count=count)
    if isinstance(part, dp_event.PoissonSampledDpEvent):
        rate, inner = float(part.sampling_probability), part.event
    elif isinstance(part, dp_event.SampledWithoutReplacementDpEvent):
        inner, factor = part.event, 2.0
    elif isinstance(part, RandomAllocationDpEvent):
        inner, count = part.event, count * part.steps  # as if every step used the record
    parts = list(flatten(inner))
    if not parts or not all(isinstance(each, dp_event.GaussianDpEvent) for each, _ in parts):
        raise AccountingError(f"The truncated tail is bounded for Gaussian noise only, not for {type(inner).__name__}.")
    multiplier = fuse_gaussians([each.noise_multiplier / math.sqrt(times) for each, times in parts])
    return _Draws(rate=rate, shift=factor / _positive(multiplier), count=count)


def _positive(multiplier: float) -> float:
    if not 0 < multiplier < math.inf:
        raise AccountingError(
            f"The noise multiplier must be positive and finite to bound the tail, got {multiplier!r}."
        )
    return float(multiplier)


def tail_delta(
    event: DpEvent, *, adjacency: Adjacency, epsilon: float, delta: float, reach: float, num_coordinates: int
) -> float:
    """Return a bound on the increase of delta because the Gaussian noise ends at ``reach``.

    Args:
        event: The event of all charges.
        adjacency: The neighbouring relation of data sets.
        epsilon: The epsilon of the guarantee.
        delta: The delta of the guarantee for ideal noise.
        reach: Largest radius of the noise of a pair of coordinates, in standard deviations.
        num_coordinates: Number of coordinates with noise.

    Guarantee: with the returned number added to delta, the guarantee holds for the truncated noise. Three terms are
    summed: outcomes that only one of two neighbours can produce; the same outcomes under the other neighbour, weighted
    by ``exp(epsilon)``; and the growth of both densities by the normalisation of the truncated noise.
    Edge cases: an infinite epsilon or noise that is not Gaussian raises ``AccountingError``; no releases cost 0.
    """
    if not math.isfinite(epsilon):
        raise AccountingError("The cost of the truncated tail needs a finite epsilon.")
    draws = _draws(event, adjacency)
    pairs = (checks.count("num_coordinates", num_coordinates) + 1) // 2
    num_rounds = sum(count for _, count in flatten(event))
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
