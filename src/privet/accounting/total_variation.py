"""The cost of a difference in total variation, added to a privacy curve."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.accounting.curves import PrivacyCurve, checked, covering_mu

Array = NDArray[np.float64]
_POINTS = 2049
_BISECTIONS = 60


@dataclass(frozen=True, kw_only=True)
class SurchargedCurve:
    """A curve plus ``(1 + exp(epsilon)) * total_variation``, for runs that may differ from the described run.

    The sum decreases and then increases. A delta at some epsilon also holds at every larger epsilon, so the curve stays
    constant from its minimum on. For a delta below the minimum, epsilon is infinite.

    Attributes:
        base: The curve of the described run.
        total_variation: Probability of a difference, over the whole run.
    """

    base: PrivacyCurve
    total_variation: float

    @property
    def accountant(self) -> str:
        return f"{self.base.accountant} + total variation"

    def _sums(self, epsilons: Array) -> Array:
        extra = self.total_variation * (1 + np.exp(np.minimum(epsilons, 700.0)))
        return np.asarray(np.minimum(1.0, self.base.deltas(epsilons) + extra))

    def _lowest(self) -> tuple[float, float]:
        # Above log(1 / total_variation) the added term alone is 1.
        grid = np.linspace(0.0, max(1.0, -math.log(self.total_variation)), _POINTS)
        sums = self._sums(grid)
        at = int(sums.argmin())
        return float(grid[at]), float(sums[at])

    def epsilon(self, delta: float) -> float:
        delta = checks.probability("delta", delta)
        high, lowest = self._lowest()
        if lowest > delta:
            return math.inf
        low = 0.0
        if float(self._sums(np.array([low]))[0]) <= delta:
            return 0.0
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if float(self._sums(np.array([middle]))[0]) > delta else (low, middle)
        return high

    def deltas(self, epsilons: Array) -> Array:
        at = checked(epsilons)
        turn, lowest = self._lowest()
        return np.where(at >= turn, lowest, self._sums(np.minimum(at, turn)))

    def mu(self, delta: float) -> float | None:
        return covering_mu(self, delta)


def surcharged(base: PrivacyCurve, total_variation: float) -> PrivacyCurve:
    """Return ``base`` with the cost of a difference in total variation; ``base`` itself for a difference of zero."""
    return base if total_variation == 0 else SurchargedCurve(base=base, total_variation=total_variation)
