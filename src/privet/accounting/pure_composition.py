"""Composition of pure guarantees: exact, and the classical closed bounds beside it.

The worst mechanism of a pure guarantee is randomised response, with two outcomes. Its product has as many losses as
releases, so delta is a finite sum (Kairouz, Oh and Viswanath, 2015, for every real epsilon); with Poisson sampling the
two outcomes only change their probabilities. All terms are logarithms until the last step: nothing overflows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from privet import checks
from privet.accounting.curves import checked, covering_mu
from privet.errors import ArgumentError

Array = NDArray[np.float64]
MOST_RELEASES = 10**7
_BISECTIONS = 100


@dataclass(frozen=True, kw_only=True)
class PureCurve:
    """The exact curve of equal pure releases, each on its own Poisson sample or, at rate 1, on all the data.

    Attributes:
        rate: Probability that a unit joins a release; in (0, 1].
        epsilon_each: The pure guarantee of one release, positive and finite.
        num_releases: How many there are, at least one and at most ten million.
    """

    rate: float
    epsilon_each: float
    num_releases: int
    accountant: str = "exact pure composition"

    def _log_probabilities(self) -> tuple[Array, Array]:
        """Return the log-probabilities of every number of rarer outcomes, with the unit and without it."""
        log_wrong = -float(np.logaddexp(0.0, self.epsilon_each))
        log_right = log_wrong + self.epsilon_each
        away = -math.inf if self.rate == 1 else math.log1p(-self.rate)
        into = math.log(self.rate)
        rarer = float(np.logaddexp(away + log_wrong, into + log_right))
        commoner = float(np.logaddexp(away + log_right, into + log_wrong))
        k = float(self.num_releases)
        places = np.arange(k + 1)
        ways = gammaln(k + 1) - gammaln(places + 1) - gammaln(k - places + 1)
        return ways + places * rarer + (k - places) * commoner, ways + places * log_wrong + (k - places) * log_right

    def deltas(self, epsilons: Array) -> Array:
        """See ``PrivacyCurve``; exact up to rounding, the larger of the two directions."""
        at = checked(epsilons)
        present, absent = self._log_probabilities()
        return np.array([max(_excess(present, absent, e), _excess(absent, present, e)) for e in at.tolist()])

    def epsilon(self, delta: float) -> float:
        """See ``PrivacyCurve``."""
        delta = checks.probability("delta", delta)
        present, absent = self._log_probabilities()

        def fits(epsilon: float) -> bool:
            return max(_excess(present, absent, epsilon), _excess(absent, present, epsilon)) <= delta

        if fits(0.0):
            return 0.0
        # Beyond the largest loss of all releases together no outcome is left.
        low, high = 0.0, self.num_releases * float(np.logaddexp(0.0, self.epsilon_each))
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
            if high - low <= 1e-14 * high:
                break
        return high

    def mu(self, delta: float) -> float | None:
        """See ``PrivacyCurve``."""
        return covering_mu(self, delta)


def _excess(upper: Array, lower: Array, epsilon: float) -> float:
    gap = epsilon + lower - upper
    return float(np.sum(np.exp(upper) * -np.expm1(np.minimum(gap, 0.0))))


def composed_delta(
    *, epsilon_each: float, num_releases: int, epsilon: float, rate: float = 1.0, delta_each: float = 0.0
) -> float:
    """Return the delta of equal releases, each (epsilon_each, delta_each)-DP, at a total epsilon.

    Guarantee: exact for the worst such mechanism, adaptively composed; no smaller delta is possible.
    Edge cases: epsilon_each 0 gives what delta_each alone costs; delta_each needs rate 1.
    """
    pure = _curve(rate, epsilon_each, num_releases)
    delta_each = checks.probability("delta_each", delta_each, allow_zero=True)
    if delta_each > 0 and rate != 1:
        raise ArgumentError("delta_each is supported without sampling only: rate must be 1.")
    total = 0.0 if pure is None else float(pure.deltas(np.array([epsilon]))[0])
    # 1 - (1 - delta_each)^k (1 - total), without cancellation for tiny deltas.
    return -math.expm1(num_releases * math.log1p(-delta_each) + math.log1p(-min(total, 1 - 1e-16)))


def composed_epsilon(*, epsilon_each: float, num_releases: int, delta: float, rate: float = 1.0) -> float:
    """Return the smallest total epsilon of equal pure releases at delta: optimal composition.

    Guarantee: exact for the worst such mechanism, adaptively composed. Edge cases: epsilon_each 0 gives 0.
    """
    pure = _curve(rate, epsilon_each, num_releases)
    delta = checks.probability("delta", delta)
    return 0.0 if pure is None else pure.epsilon(delta)


def _curve(rate: float, epsilon_each: float, num_releases: int) -> PureCurve | None:
    each = checks.non_negative("epsilon_each", epsilon_each)
    count = checks.count("num_releases", num_releases)
    if count > MOST_RELEASES:
        raise ArgumentError(f"num_releases must be at most {MOST_RELEASES}, got {count}.")
    q = checks.probability("rate", rate, allow_one=True)
    return None if each == 0 else PureCurve(rate=q, epsilon_each=each, num_releases=count)


def advanced_epsilon(*, epsilon_each: float, num_releases: int, delta: float) -> float:
    """Return the bound of advanced composition (Dwork, Rothblum and Vadhan, 2010): valid, and loose.

    ``e sqrt(2 k log(1/delta)) + k e (exp(e) - 1)``, never above ``k e``.
    """
    e, k, spread = _advanced(epsilon_each, num_releases, delta)
    growth = math.expm1(e) if e < 700 else math.inf
    return min(k * e, spread + k * e * growth) if e > 0 else 0.0


def sharper_advanced_epsilon(*, epsilon_each: float, num_releases: int, delta: float) -> float:
    """Return advanced composition with the exact mean of the loss: ``k e tanh(e/2) + e sqrt(2 k log(1/delta))``."""
    e, k, spread = _advanced(epsilon_each, num_releases, delta)
    return min(k * e, k * e * math.tanh(e / 2) + spread)


def closed_optimal_epsilon(*, epsilon_each: float, num_releases: int, delta: float) -> float:
    """Return the closed bound of Kairouz, Oh and Viswanath (2015, Theorem 3.4): the least of three expressions."""
    e, k, spread = _advanced(epsilon_each, num_releases, delta)
    mean = k * e * math.tanh(e / 2)
    small = e * math.sqrt(2 * k * math.log(math.e + math.sqrt(k) * e / delta))
    return min(k * e, mean + small, mean + spread)


def _advanced(epsilon_each: float, num_releases: int, delta: float) -> tuple[float, int, float]:
    e = checks.non_negative("epsilon_each", epsilon_each)
    k = checks.count("num_releases", num_releases)
    return e, k, e * math.sqrt(2 * k * -math.log(checks.probability("delta", delta)))
