"""Gaussian differential privacy: one number, mu, for the whole privacy curve of Gaussian noise.

A mechanism is mu-GDP if distinguishing two neighbouring data sets by its output is at least as hard as distinguishing
N(0, 1) from N(mu, 1) (Dong, Roth and Su, 2019). All conversions use logarithms of probabilities, so they hold for delta
down to 1e-300 and for epsilon far beyond 709, where exp(epsilon) overflows. Relative accuracy: about 1e-11.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import erf, log_ndtr, ndtri

from privet import checks
from privet.errors import ArgumentError

_SEARCH_TOLERANCE = 1e-15
_BISECTIONS = 100
_OVERFLOWING_MULTIPLIER = 0.038


def log_gdp_delta(mu: NDArray[np.float64], epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log delta of mu-GDP, elementwise, for finite positive mu; minus infinity where it underflows."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        upper = np.asarray(log_ndtr(mu / 2 - epsilon / mu))
        lower = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        # If both terms underflow to minus infinity, so does the result.
        gap = np.where(np.isneginf(upper), 0.0, lower - upper)
        return np.where(gap < 0, upper + np.log(-np.expm1(np.minimum(gap, 0.0))), -np.inf)


def _log_delta(mu: float, epsilon: float) -> float:
    return float(log_gdp_delta(np.array(mu), np.array(epsilon)))


def _total_variation(mu: float) -> float:
    # A difference of two normal tails would lose all digits for a small mu.
    return float(erf(mu / math.sqrt(8)))


def gdp_delta(mu: float, epsilon: float) -> float:
    """Return the smallest delta such that every mu-GDP mechanism is (epsilon, delta)-DP.

    Guarantee: exact for the Gaussian mechanism (Balle and Wang, 2018), an upper bound for every other mu-GDP mechanism.
    Edge cases: mu = 0 gives ``max(0, 1 - exp(epsilon))``; mu = inf gives 1; epsilon may be negative; NaN raises.
    """
    mu, epsilon = _mu(mu), checks.number("epsilon", epsilon)
    if mu == 0 or math.isinf(epsilon):
        return 0.0 if epsilon >= 0 else -math.expm1(epsilon)
    if math.isinf(mu):
        return 1.0
    if epsilon == 0:
        return _total_variation(mu)
    return math.exp(_log_delta(mu, epsilon))


def gdp_deltas(mu: float, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``gdp_delta`` at each of many epsilons >= 0, which may be infinite.

    Guarantee: equal to ``gdp_delta`` up to rounding in the last place.
    """
    mu = _mu(mu)
    if mu == 0 or math.isinf(mu):
        return np.where(np.isinf(epsilons), 0.0, 0.0 if mu == 0 else 1.0)
    at = np.where(np.isinf(epsilons), 1.0, epsilons)
    found = np.where(at == 0, _total_variation(mu), np.exp(log_gdp_delta(np.array(mu), at)))
    return np.asarray(np.where(np.isinf(epsilons), 0.0, found))


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 such that every mu-GDP mechanism is (epsilon, delta)-DP.

    Guarantee: exact for the Gaussian mechanism.
    Edge cases: 0 when delta is at least the total variation distance; inf for mu = inf; delta of 0, 1 or NaN raises.
    """
    mu, delta = _mu(mu), checks.probability("delta", delta)
    if mu == 0 or delta >= _total_variation(mu):
        return 0.0
    target = math.log(delta)
    high = mu * (mu + 1)
    while math.isfinite(high) and _log_delta(mu, high) > target:
        high *= 2
    if not math.isfinite(high):
        return math.inf
    return float(brentq(lambda e: _log_delta(mu, e) - target, 0.0, high, xtol=_SEARCH_TOLERANCE, rtol=1e-14))


def gdp_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu such that every mu-GDP mechanism is (epsilon, delta)-DP, to calibrate a Gaussian release.

    Edge cases: epsilon = inf gives inf; negative epsilon, and delta of 0, 1 or NaN, raise ``ArgumentError``.
    """
    epsilon, delta = checks.number("epsilon", epsilon), checks.probability("delta", delta)
    if epsilon < 0:
        raise ArgumentError(f"epsilon must be zero or more, got {epsilon!r}.")
    if math.isinf(epsilon):
        return math.inf
    if epsilon == 0:
        return float(-2 * ndtri((1 - delta) / 2))
    target = math.log(delta)
    low, high = 1e-3, 1.0
    while _log_delta(low, epsilon) > target:
        low /= 2
    while _log_delta(high, epsilon) < target:
        high *= 2
    return float(brentq(lambda m: _log_delta(m, epsilon) - target, low, high, xtol=1e-300, rtol=1e-14))


def smallest_mu(epsilons: NDArray[np.float64], deltas: NDArray[np.float64]) -> float:
    """Return the smallest mu whose profile lies on or above every given (epsilon, delta) point.

    Edge cases: points with delta 0 have no effect; a point with delta 1 gives inf; no points give 0.
    """
    asked = deltas > 0
    if not asked.any():
        return 0.0
    if (deltas >= 1).any():
        return math.inf
    targets, at = np.log(deltas[asked]), epsilons[asked]
    low, high = np.full_like(at, -30.0), np.full_like(at, 30.0)
    # Bisection on log mu for all points at once; the upper end is returned, which is the safe side.
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        enough = log_gdp_delta(np.exp(middle), at) >= targets
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        if float(np.max(high - low)) < 1e-12:
            break
    return float(np.exp(high.max()))


@dataclass(frozen=True, kw_only=True)
class CentralLimitFigure:
    """The mu of the central limit theorem of Gaussian DP: an approximation, never a guarantee.

    It can be several times too small (a published epsilon was four times too small). It is only for comparison with a
    guarantee, and no part of the library accepts it as one.
    """

    mu: float
    is_upper_bound: bool = False
    note: str = "central-limit approximation, not a bound"

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of a mu-GDP mechanism; also an approximation, not a bound."""
        return gdp_epsilon(self.mu, delta)


def clt_mu(*, rate: float, noise_multiplier: float, num_steps: int) -> CentralLimitFigure:
    """Return the central-limit figure for Poisson sampling, add-or-remove: ``q sqrt(T (exp(1/z^2) - 1))``.

    Not a guarantee. Edge cases: rate 0 or no steps gives 0; multipliers near zero give inf.
    """
    q = checks.probability("rate", rate, allow_zero=True, allow_one=True)
    z = checks.positive("noise_multiplier", noise_multiplier)
    steps = checks.count("num_steps", num_steps, minimum=0)
    if q == 0 or steps == 0:
        return CentralLimitFigure(mu=0.0)
    growth = math.inf if z < _OVERFLOWING_MULTIPLIER else math.expm1(z**-2)
    return CentralLimitFigure(mu=q * math.sqrt(steps * growth))


def _mu(value: float) -> float:
    mu = checks.number("mu", value)
    if mu < 0:
        raise ArgumentError(f"mu must be zero or more, got {mu!r}.")
    return mu
