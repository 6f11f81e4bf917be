"""Privacy-loss distributions: discretised from above and composed in one Fourier transform.

Each of three steps can only increase the result:

1. The losses of one release are discretised by connecting the dots (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi,
   2022): the mass between two grid points is split between them so that both distributions keep their mass. The
   hockey-stick curve of the result equals the true one at every grid point and lies above it in between.
2. All releases are composed by one product of Fourier transforms. The distributions are first tilted exponentially, so
   that the rounding error of the transform is small for the relevant probabilities (1e-4 to 1e-12); the remaining
   error is bounded and added to delta.
3. Delta at the grid points, and the exact curve between them, follow from two running sums of positive numbers.

A coarse sketch predicts the spacing and the length of the grid before large arrays are allocated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.signal import lfilter
from scipy.special import ndtri

from privet.accounting.dominating_pairs import LossPair, Mixture
from privet.errors import AccountingError

Array = NDArray[np.float64]
Part = tuple[LossPair | Mixture, int]

FINEST_SPACING, COARSEST_SPACING = 1e-7, 1e-4
MAX_POINTS = 2**20
# Spacing over the std of the loss of one step: 0.1 inflates epsilon by 0.1 %, 0.5 by 2 %; above, RDP is as good.
_WANTED_RATIO, _WORST_RATIO = 0.1, 0.5
# A coarser grid is needed only for losses above a hundred thousand, where no guarantee is useful.
_MAX_SPACING = 0.1
_SKETCH_POINTS = 3000
_MAX_STEPS = 10**9
_TRUNCATED_MASS = 1e-18
_LOG_WRAPPED_MASS = math.log(1e-17)
_LOG_TILTED_TO = math.log(1e-2)


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """A coarse approximation of the composed loss, only used to choose grid, range and tilt."""

    losses: tuple[Array, ...]
    log_masses: tuple[Array, ...]
    counts: tuple[int, ...]

    def log_moment(self, order: float) -> tuple[float, float]:
        """Return log E exp(order * L) of the composed loss and its derivative, the mean of the tilted loss."""
        total, slope = 0.0, 0.0
        for losses, log_masses, count in zip(self.losses, self.log_masses, self.counts, strict=True):
            exponent = order * losses + log_masses
            peak = float(exponent.max())
            weights = np.exp(exponent - peak)
            mass = float(weights.sum())
            total += count * (peak + math.log(mass))
            slope += count * float(weights @ losses) / mass
        return total, slope

    @property
    def std(self) -> float:
        variance = 0.0
        for losses, log_masses, count in zip(self.losses, self.log_masses, self.counts, strict=True):
            masses = np.exp(log_masses)
            variance += count * float(masses @ (losses - masses @ losses) ** 2)
        return math.sqrt(variance)

    def tilt(self) -> float:
        """Return the order whose tilted mean is the point with upper tail probability of about 1e-2.

        At most four over the standard deviation: bounded losses have no such tail, and a Gaussian loss needs three.
        """
        low, high = math.log(1e-3 / self.std), math.log(4 / self.std)
        for _ in range(30):
            middle = (low + high) / 2
            order = math.exp(middle)
            total, mean = self.log_moment(order)
            low, high = (middle, high) if total - order * mean > _LOG_TILTED_TO else (low, middle)
        return math.exp(low)

    def reach(self, tilt: float) -> tuple[float, float]:
        """Return losses outside which the tilted composition has negligible mass (Chernoff's bound, both sides)."""
        base, mean = self.log_moment(tilt)
        low, high = -math.inf, math.inf
        # Sizes on two scales: for rare large losses the standard deviation is no measure of the tail.
        sizes = np.geomspace(0.1, 1e3, 24)
        for size in [*(sizes / self.std).tolist(), *sizes.tolist()]:
            above = (self.log_moment(tilt + size)[0] - base - _LOG_WRAPPED_MASS) / size
            below = -(self.log_moment(tilt - size)[0] - base - _LOG_WRAPPED_MASS) / size
            low, high = max(low, below), min(high, above)
        return min(low, mean), max(high, mean)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The grid of losses: spacing, range of the composed loss, tilt, and range of outcomes in standard deviations."""

    spacing: float
    low: float
    high: float
    tilt: float
    stds: float

    @property
    def num_points(self) -> int:
        """Predicted length of the composed distribution."""
        return math.ceil((self.high - self.low) / self.spacing)


def sketch(parts: Sequence[Part], stds: float) -> Sketch:
    """Return the coarse approximation of a composition."""
    losses, log_masses = [], []
    for part, _ in parts:
        drawn = [(weight, *_draw(pair, stds)) for weight, pair in branches(part)]
        losses.append(np.concatenate([at for _, at, _ in drawn]))
        masses = np.concatenate([weight * mass for weight, _, mass in drawn])
        log_masses.append(np.log(np.maximum(masses / masses.sum(), 1e-300)))
    return Sketch(losses=tuple(losses), log_masses=tuple(log_masses), counts=tuple(count for _, count in parts))


def branches(part: LossPair | Mixture) -> tuple[tuple[float, LossPair], ...]:
    """Return the pairs of a mixture with their probabilities; a single pair has probability 1."""
    return part.branches if isinstance(part, Mixture) else ((1.0, part),)


def _draw(pair: LossPair, stds: float) -> tuple[Array, Array]:
    edges = np.linspace(*pair.ends(stds), _SKETCH_POINTS + 1)
    return pair.loss((edges[:-1] + edges[1:]) / 2), pair.upper_mass(edges[:-1], edges[1:])


def plan_grid(parts: Sequence[Part], coarsest: float = COARSEST_SPACING) -> Grid:
    """Choose the grid of a composition, or raise ``AccountingError`` before large arrays are allocated."""
    num_steps = sum(count for _, count in parts)
    if num_steps > _MAX_STEPS:
        raise AccountingError(f"Loss distributions are composed at most {_MAX_STEPS} times, got {num_steps}. Use RDP.")
    stds = -float(ndtri(_TRUNCATED_MASS / (2 * num_steps)))
    picture = sketch(parts, stds)
    step_std = picture.std / math.sqrt(num_steps)
    if not step_std * _WORST_RATIO >= FINEST_SPACING:
        raise AccountingError(f"Losses of {step_std:.1e} per step are too small for a loss distribution. Use RDP.")
    tilt = picture.tilt()
    low, high = picture.reach(tilt)
    longest = max([high - low, *(float(np.ptp(losses)) for losses in picture.losses)])
    spacing = max(FINEST_SPACING, min(coarsest, _WANTED_RATIO * step_std), longest / (MAX_POINTS - 16))
    if not spacing <= min(_WORST_RATIO * step_std, _MAX_SPACING):
        raise AccountingError(
            f"A loss distribution would need more than {MAX_POINTS} points "
            f"(losses up to {longest:.3g} in steps of {step_std:.1e}). Use RDP, or more noise."
        )
    return Grid(spacing=spacing, low=low, high=high, tilt=tilt, stds=stds)


def discretise(part: LossPair | Mixture, grid: Grid) -> tuple[int, Array, float]:
    """Return the first grid index, the masses from there on, and the mass at infinite loss, connecting the dots."""
    drawn = [(weight, *_connect(pair, grid)) for weight, pair in branches(part)]
    first = min(start for _, start, _, _ in drawn)
    masses = np.zeros(max(start + len(found) for _, start, found, _ in drawn) - first)
    for weight, start, found, _ in drawn:
        masses[start - first : start - first + len(found)] += weight * found
    return first, masses, sum(weight * beyond for weight, _, _, beyond in drawn)


def _connect(pair: LossPair, grid: Grid) -> tuple[int, Array, float]:
    h = grid.spacing
    ends = np.array(pair.ends(grid.stds))
    first, last = (math.floor(end / h) for end in pair.loss(ends))
    losses: Array = np.arange(first, last + 2, dtype=np.float64) * h
    edges = pair.outcome(losses)
    upper = pair.upper_mass(edges[:-1], edges[1:])
    # Above 700 the product would overflow; a smaller factor moves more mass to the larger loss, which is safe.
    lower = np.exp(np.minimum(losses[:-1], 700.0)) * pair.lower_mass(edges[:-1], edges[1:])
    to_right = np.clip((upper - lower) / -math.expm1(-h), 0.0, upper)
    masses = np.zeros(len(losses))
    masses[:-1] += upper - to_right
    masses[1:] += to_right
    masses[0] += float(pair.upper_mass(np.array(-np.inf), edges[0]))
    return first, masses, float(pair.upper_mass(edges[-1], np.array(np.inf)))


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """The hockey-stick curve of one composed loss distribution, for epsilon >= 0.

    Attributes:
        spacing: Distance of the grid points.
        first: Index of the first grid point kept, zero or more; below it delta is taken to be 1.
        deltas: Upper bound on delta at each grid point, decreasing, at most 1.
        above: Mass of losses above each grid point, with the safety terms.
        weighted: The same mass without the safety terms, each loss l weighted by exp(grid point - l).
    """

    spacing: float
    first: int
    deltas: Array
    above: Array
    weighted: Array

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0 with delta(epsilon) <= delta; inf if the mass at infinity exceeds delta."""
        if self.deltas[0] <= delta:
            return self.first * self.spacing
        if self.deltas[-1] > delta:
            return math.inf
        # The last grid point whose delta is too large; from it to the next the curve is above - e^t * weighted.
        at = int(np.searchsorted(-self.deltas, -delta)) - 1
        gap, weighted = float(self.above[at]) - delta, float(self.weighted[at])
        inside = math.log(gap / weighted) if weighted > 0 else self.spacing
        return (self.first + at + 0.0) * self.spacing + min(max(inside, 0.0), self.spacing)

    def delta(self, epsilons: Array) -> Array:
        last = len(self.deltas) - 1
        position = np.clip(epsilons / self.spacing - self.first, 0.0, float(last))
        at = position.astype(np.int64)
        inside = self.above[at] - np.exp((position - at) * self.spacing) * self.weighted[at]
        bound = np.minimum(np.maximum(inside, self.deltas[np.minimum(at + 1, last)]), 1.0)
        return np.where(epsilons < self.first * self.spacing, 1.0, bound)


def compose_losses(parts: Sequence[Part], grid: Grid) -> LossCurve:
    """Compose releases and return the curve of the whole.

    Guarantee: the returned delta is at least the hockey-stick divergence of the product of the given pairs, at every
    epsilon >= 0. Mass cut off at either end, wrapped around by the transform or lost to its rounding is added back.
    Edge cases: at least one part with a positive count is needed.
    """
    h, tilt = grid.spacing, grid.tilt
    pieces = [(discretise(pair, grid), count) for pair, count in parts]
    low, high = math.floor(grid.low / h) - 1, math.ceil(grid.high / h) + 1
    length = fft.next_fast_len(max([high - low + 1, *(len(masses) for (_, masses, _), _ in pieces)]), real=True)
    transform = np.ones(length // 2 + 1, dtype=np.complex128)
    start, log_scale, log_finite, num_steps = 0, 0.0, 0.0, 0
    for (first, masses, at_infinity), count in pieces:
        with np.errstate(divide="ignore"):
            exponent = np.log(masses) + tilt * h * (first + np.arange(len(masses)))
        peak = float(exponent.max())
        tilted = np.exp(exponent - peak)
        total = float(tilted.sum())
        transform *= fft.rfft(tilted / total, length) ** count
        start += first * count
        log_scale += count * (peak + math.log(total))
        log_finite += count * math.log1p(-at_infinity)
        num_steps += count
    composed = np.roll(fft.irfft(transform, length), (start - low) % length)
    # Each of the num_steps factors has a rounding error of a few 1e-16.
    rounding = 1e-15 * (num_steps + 16)
    return _read_curve(np.maximum(composed, 0.0), low, grid, log_scale, rounding, -math.expm1(log_finite))


def _read_curve(
    composed: Array, low: int, grid: Grid, log_scale: float, rounding: float, at_infinity: float
) -> LossCurve:
    h, first = grid.spacing, max(low, 0)
    # Undo the tilt; the exponent is capped, because delta is 1 at such losses.
    exponent = log_scale - grid.tilt * h * np.arange(first, low + len(composed))
    factor = np.exp(np.minimum(exponent, 600.0))
    masses = composed[first - low :] * factor
    # suffix[k]: masses at and above grid point k weighted by exp(-distance), a recursion of positive terms.
    suffix = lfilter([1.0], [1.0, -math.exp(-h)], masses[::-1])[::-1]
    weighted = math.exp(-h) * np.append(suffix[1:], 0.0)
    finite = -math.expm1(-h) * np.append(np.cumsum(suffix[:0:-1])[::-1], 0.0)
    deltas = finite + at_infinity + _TRUNCATED_MASS + rounding * factor
    return LossCurve(
        spacing=h,
        first=first,
        deltas=np.minimum.accumulate(np.minimum(deltas, 1.0)),
        above=deltas + weighted,
        weighted=weighted,
    )
