"""Exact composition of equal pure guarantees.

The worst mechanism of a pure guarantee is randomised response, with two outcomes. The number of losses of its product
grows linearly with the releases, so delta is a finite sum (Kairouz, Oh and Viswanath, 2015, for every real epsilon).
Poisson sampling only changes the probabilities of the two outcomes. All terms are logarithms, so nothing overflows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from privet import checks
from privet.accounting.curves import checked, covering_mu

Array = NDArray[np.float64]
MOST_RELEASES = 10**7
_BISECTIONS = 100


@dataclass(frozen=True, kw_only=True)
class PureCurve:
    """The exact curve of equal pure releases, each on an independent Poisson sample or, at rate 1, on all records.

    Attributes:
        rate: Probability that a unit joins a release; in (0, 1].
        epsilon_each: The pure guarantee of one release, positive and finite.
        num_releases: Number of releases, from one to ten million.
    """

    rate: float
    epsilon_each: float
    num_releases: int
    accountant: str = "exact pure composition"

    def _log_probabilities(self) -> tuple[Array, Array]:
        """Return the log-probabilities of each count of the rarer outcome, with the unit and without it."""
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
        at = checked(epsilons)
        present, absent = self._log_probabilities()
        return np.array([max(_excess(present, absent, e), _excess(absent, present, e)) for e in at.tolist()])

    def epsilon(self, delta: float) -> float:
        delta = checks.probability("delta", delta)
        present, absent = self._log_probabilities()

        def fits(epsilon: float) -> bool:
            return max(_excess(present, absent, epsilon), _excess(absent, present, epsilon)) <= delta

        if fits(0.0):
            return 0.0
        # No outcome has a loss above the largest total loss of all releases.
        low, high = 0.0, self.num_releases * float(np.logaddexp(0.0, self.epsilon_each))
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
            if high - low <= 1e-14 * high:
                break
        return high

    def mu(self, delta: float) -> float | None:
        return covering_mu(self, delta)


def _excess(upper: Array, lower: Array, epsilon: float) -> float:
    gap = epsilon + lower - upper
    return float(np.sum(np.exp(upper) * -np.expm1(np.minimum(gap, 0.0))))
