"""Random allocation: every record is in one of several batches, chosen uniformly and in secret (balls in bins).

With Gaussian noise of size ``z`` over the bound, and a record that is in one of ``T`` steps, the likelihood ratio of a
run with the record and a run without it is ``S / T``. Without the record ``S`` is a sum of ``T`` independent lognormal
numbers ``Y = exp((2 x - 1) / (2 z^2))`` with ``x ~ N(0, z^2)``, of mean one. Gradients may depend on earlier releases:
given the past, the term of a step whose contribution is shorter than the bound is a lognormal number of mean one and
smaller variance, which is smaller in convex order, and the hockey-stick divergences of both directions are means of
convex functions of ``S``. So ``S / T`` is the worst case, and its distribution alone is needed (Chua et al., 2024, and
Feldman and Shenfeld, 2025, have the pair; the distribution of the sum is computed here).

Each of three steps can only increase the divergences:

1. ``Y`` is moved to a grid without changing its mean in any cell: larger in convex order, and so is the sum.
2. What lies above a limit is cut off; its mean is added to the mass of infinite loss.
3. The sum is one power of a Fourier transform. What wraps around moves to smaller values, which helps an attacker who
   looks for the absence of a record; the mass that it had for one who looks for its presence is added at infinity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import ndtri

from privet.accounting import renyi
from privet.accounting.dominating_pairs import LossPair, Mirrored, normal_mass
from privet.accounting.mechanisms import NoiseOverBound
from privet.errors import AccountingError
from privet.vocabulary import Adjacency

Array = NDArray[np.float64]

# Mass of P above the cut, in standard deviations of its logarithm: 1e-10.
_CUT = 6.36
_LOG_LOST = math.log(1e-12)
_FEWEST_POINTS, _MOST_POINTS = 1 << 12, 1 << 22
# Grid cells over the standard deviation of one term; the rounding then adds a thousandth of its variance.
_CELL = 0.06
# Above this size the rounding adds more than four percent of the variance.
_WORST_CELL = 0.4
_LARGEST_ORDER = 32
_MOST_CELLS = 1 << 25
# So few that a block stays in the fast memory of a core: large temporaries cost more than the arithmetic.
_CELLS_AT_ONCE = 1 << 15
# Outside these noise multipliers no grid is long and fine enough.
_LEAST_NOISE, _MOST_NOISE = 0.25, 1e5
_AT_ZERO = 1e-16
_CHERNOFF_CELLS = 4000


@dataclass(frozen=True, kw_only=True, eq=False)
class Atoms:
    """A pair of discrete distributions on the line of losses; the outcome is the loss.

    Attributes:
        losses: The losses of the atoms, increasing.
        upper: Running sum of the masses of P, one more than atoms, from zero on.
        lower: The same for Q.
        at_infinity: Mass of P at infinite loss.
        at_zero: Mass of Q at a loss of minus infinity, in addition to the atoms.
    """

    losses: Array
    upper: Array
    lower: Array
    at_infinity: float
    at_zero: float

    def loss(self, x: Array) -> Array:
        return np.asarray(x)

    def outcome(self, losses: Array) -> Array:
        return np.asarray(losses)

    def upper_mass(self, left: Array, right: Array) -> Array:
        return self._between(self.upper, left, right) + np.where(np.isposinf(right), self.at_infinity, 0.0)

    def lower_mass(self, left: Array, right: Array) -> Array:
        return self._between(self.lower, left, right) + np.where(np.isneginf(left), self.at_zero, 0.0)

    def _between(self, sums: Array, left: Array, right: Array) -> Array:
        """Return the mass of losses above ``left`` and up to ``right``."""
        first, last = (np.searchsorted(self.losses, edge, side="right") for edge in (left, right))
        # an atom at minus infinity is above a left end of minus infinity
        first = np.where(np.isneginf(left), 0, first)
        return np.asarray(sums[np.maximum(last, first)] - sums[first])

    def ends(self, stds: float) -> tuple[float, float]:
        finite = np.flatnonzero(np.isfinite(self.losses))
        return float(self.losses[finite[0]]) - 1e-9, float(self.losses[finite[-1]]) + 1e-9


@dataclass(frozen=True, kw_only=True)
class AllocatedGaussian(NoiseOverBound):
    """Gaussian noise on each of several steps, one of which, chosen uniformly, uses the record.

    Attributes:
        steps: Number of steps.
        noise_multiplier: Noise over the bound on the contribution of one record.
    """

    steps: int
    noise_multiplier: float

    def refusal(self, adjacency: Adjacency) -> str | None:
        return adjacency.refused_exchange(
            "Random allocation is not supported under Adjacency.REPLACE_ONE: its pair is that of a missing record."
        )

    def losses(self, adjacency: Adjacency) -> tuple[LossPair, LossPair]:
        pair = allocation_pair(self.steps, self.noise_multiplier)
        return pair, Mirrored(pair=pair)

    def divergences(self, orders: Array, adjacency: Adjacency) -> Array:
        """Return the larger of both directions up to order 32, and above it those of one certain use.

        A certain use is an upper bound by joint convexity. Divergences grow with the order, so an order is charged as
        the next whole one.
        """
        plain = renyi.gaussian_divergences(orders, 1 / self.noise_multiplier)
        whole = np.ceil(orders).astype(np.int64)
        known = np.minimum(whole, _LARGEST_ORDER)
        both = np.maximum(
            _log_moments(self.steps, self.noise_multiplier), _log_negative_moments(self.steps, self.noise_multiplier)
        )
        return np.where(whole <= _LARGEST_ORDER, np.minimum(plain, both[known] / np.maximum(known - 1, 1)), plain)


@lru_cache(maxsize=8)
def allocation_pair(steps: int, noise_multiplier: float) -> Atoms:
    """Return a pair of discrete distributions that dominates random allocation, in both orders.

    Raises:
        AccountingError: so little noise that no grid of reasonable length is fine enough.
    """
    z = noise_multiplier
    if not _LEAST_NOISE < z < _MOST_NOISE:
        raise _no_grid(steps, z)
    limit = math.exp(1 / (2 * z * z) + _CUT / z)
    reach = limit + _others_reach(steps, z, limit)
    spread = math.sqrt(math.expm1(1 / (z * z)))
    # so fine that all terms lie in the first cell with negligible probability: a sum of zero has infinite loss
    smallest = math.exp(float(ndtri(_AT_ZERO ** (1 / steps))) / z - 1 / (2 * z * z))
    wanted = reach / min(_CELL * spread, smallest)
    points = 1 << math.ceil(math.log2(min(max(wanted, _FEWEST_POINTS), _MOST_POINTS)))
    cell = reach / points
    if cell > min(_WORST_CELL * spread, smallest):
        raise _no_grid(steps, z)
    one, above = _rounded_term(z, limit, cell, points)
    total = np.maximum(fft.irfft(fft.rfft(one) ** steps, points), 0.0)
    values = np.arange(points) * cell / steps
    # the transform errs by a few units of the last place of the norm of its result, evenly over the entries
    error = 8e-16 * (steps + 64) * float(np.linalg.norm(total)) / math.sqrt(points)
    lost = above + math.exp(_LOG_LOST) + error * float(values.sum())
    return _atoms(values, total, lost, error * points)


def _no_grid(steps: int, z: float) -> AccountingError:
    return AccountingError(
        f"A noise multiplier of {z:g} is too small or too large for the distribution of {steps} allocated steps."
    )


def _atoms(values: Array, masses: Array, lost: float, at_zero: float) -> Atoms:
    keep = masses > 0
    with np.errstate(divide="ignore"):
        losses = np.log(values[keep])
    upper = np.append(0.0, np.cumsum(values[keep] * masses[keep]))
    lower = np.append(0.0, np.cumsum(masses[keep]))
    return Atoms(losses=losses, upper=upper, lower=lower, at_infinity=lost, at_zero=at_zero)


def _rounded_term(z: float, limit: float, cell: float, points: int) -> tuple[Array, float]:
    """Return one term on the grid, each cell split between its ends so that mass and mean stay; and the cut mean.

    Guarantee: the term below the limit grows in convex order, and ``E max(Y - limit, 0)`` is at most the second number.
    """
    edges = np.append(np.arange(0, math.ceil(limit / cell) + 1) * cell, np.inf)
    with np.errstate(divide="ignore"):
        x = z * z * np.log(edges) + 0.5
    mass = normal_mass(x[:-1] / z, x[1:] / z)
    mean = normal_mass((x[:-1] - 1) / z, (x[1:] - 1) / z)  # of Y times the indicator of the cell
    last = len(edges) - 2
    above = float(max(mean[last] - edges[last] * mass[last], 0.0))
    to_right = np.clip(mean[:last] / cell - np.arange(last) * mass[:last], 0.0, mass[:last])
    found = np.zeros(points)
    found[:last] += mass[:last] - to_right
    found[1 : last + 1] += to_right
    found[last] += mass[last]
    return found, above


def _others_reach(steps: int, z: float, limit: float) -> float:
    """Return a value that the other terms, cut at the limit, exceed with probability 1e-12 at most (Chernoff)."""
    if steps == 1:
        return 0.0
    edges = np.append(np.geomspace(limit * 1e-12, limit, _CHERNOFF_CELLS), np.inf)
    x = (z * z * np.log(edges) + 0.5) / z
    mass = np.append(normal_mass(np.array([-np.inf]), x[:1]), normal_mass(x[:-1], x[1:]))
    # each cell counts at its upper end, so the moments are not below the true ones
    values = np.minimum(edges, limit)
    slopes = np.geomspace(1e-4, 300.0, 200) / limit
    logs = np.log1p(np.expm1(np.outer(slopes, values)) @ mass)
    return float((((steps - 1) * logs - _LOG_LOST) / slopes).min())


@lru_cache(maxsize=32)
def _log_moments(steps: int, z: float) -> Array:
    """Return the logarithms of ``E (S / T)^n`` without the record, for orders n from 0 on.

    They are coefficients of a power of a series with positive terms, so nothing cancels.
    """
    orders = np.arange(_LARGEST_ORDER + 1)
    factorials = np.cumsum(np.log(np.maximum(orders, 1)))
    base = orders * (orders - 1) / (2 * z * z) - factorials
    result = np.full(_LARGEST_ORDER + 1, -np.inf)
    result[0] = 0.0
    power = steps
    while power:
        if power & 1:
            result = _series_product(result, base)
        base = _series_product(base, base)
        power >>= 1
    return np.asarray(result + factorials - orders * math.log(steps))


def _series_product(first: Array, second: Array) -> Array:
    return np.array([np.logaddexp.reduce(first[: n + 1] + second[n::-1]) for n in range(len(first))])


@lru_cache(maxsize=32)
def _log_negative_moments(steps: int, z: float) -> Array:
    """Return the logarithms of ``E (S / T)^(1 - n)`` without the record, for orders n from 0 on; 0 below order 2.

    ``E S^-a = integral of t^(a - 1) E[exp(-t Y)]^T dt / Gamma(a)``; both integrands are smooth and vanish at the ends,
    where the trapezoidal rule is exact to many digits, and a millionth is added for the rest.
    """
    found = np.zeros(_LARGEST_ORDER + 1)
    # beyond the largest power over the smallest value that counts the integrand vanishes
    most = math.log(_LARGEST_ORDER) + 4 + (_LARGEST_ORDER - 1) / (steps * z * z) + 1 / (2 * z * z) + 12 / z
    width = min(0.05, 1 / (20 * z))
    if (most + 40) / width * ((9 / z + most + 2) / width) > _MOST_CELLS:
        found[2:] = np.inf
        return found
    logs = np.arange(-40.0, most, width)  # of t
    values = np.arange(-most - 2, 9 / z, width)  # of log Y
    weights = -(((values + 1 / (2 * z * z)) * z) ** 2) / 2 + math.log(z * width / math.sqrt(2 * math.pi))
    transform = np.empty(len(logs))
    rows = max(1, _CELLS_AT_ONCE // len(values))
    for start in range(0, len(logs), rows):
        exponents = np.add.outer(logs[start : start + rows], values)
        np.exp(np.minimum(exponents, 700.0, out=exponents), out=exponents)
        np.subtract(weights, exponents, out=exponents)
        largest = exponents.max(axis=1)
        exponents -= largest[:, None]
        transform[start : start + rows] = largest + np.log(np.exp(exponents, out=exponents).sum(axis=1))
    for order in range(2, _LARGEST_ORDER + 1):
        power = order - 1
        total = np.logaddexp.reduce(power * logs + steps * np.minimum(transform, 0.0)) + math.log(width)
        found[order] = (total - math.lgamma(power) + power * math.log(steps)) * (1 + 1e-6) + 1e-6
    return found
