"""Privacy curves of composed mechanisms: computed once, evaluated at any epsilon or delta."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.accounting import gaussian_dp
from privet.accounting.loss_distribution import LossCurve
from privet.errors import AccountingError, ArgumentError

Array = NDArray[np.float64]
SMALLEST_PLD_DELTA = 1e-12
_SMALLEST_DIVERGENCE = 1e-15
_MU_POINTS = 2048


class PrivacyCurve(Protocol):
    """An upper bound on delta for every epsilon >= 0.

    Attributes:
        accountant: Name of the accountant that computed the curve.
    """

    @property
    def accountant(self) -> str: ...

    def epsilon(self, delta: float) -> float:
        """Return an epsilon >= 0 with delta(epsilon) <= delta, for delta in (0, 1); inf if there is none."""
        ...

    def deltas(self, epsilons: Array) -> Array:
        """Return the delta at each epsilon >= 0."""
        ...

    def mu(self, delta: float) -> float | None:
        """Return a mu such that delta(e) <= max(delta of mu-GDP at e, delta) for all e >= 0, or None."""
        ...


@dataclass(frozen=True, kw_only=True)
class GaussianCurve:
    """The exact curve of Gaussian releases; ``total_mu`` of 0 reveals nothing, inf reveals everything."""

    total_mu: float
    accountant: str = "exact Gaussian"

    def epsilon(self, delta: float) -> float:
        return gaussian_dp.gdp_epsilon(self.total_mu, delta)

    def deltas(self, epsilons: Array) -> Array:
        return gaussian_dp.gdp_deltas(self.total_mu, checked(epsilons))

    def mu(self, delta: float) -> float | None:
        return self.total_mu  # exact, for every delta


@dataclass(frozen=True, kw_only=True)
class LossCurves:
    """The curve of a privacy-loss distribution: the larger of its directions (unit removed, unit added)."""

    directions: tuple[LossCurve, ...]
    accountant: str = "PLD"

    def epsilon(self, delta: float) -> float:
        """Return epsilon; a delta below 1e-12 is refused, because rounding errors dominate there."""
        delta = checks.probability("delta", delta)
        if delta < SMALLEST_PLD_DELTA:
            raise AccountingError(
                f"Loss distributions are accurate down to delta = {SMALLEST_PLD_DELTA}, got {delta!r}. Use RDP."
            )
        return finite_or_infinite(max(direction.epsilon(delta) for direction in self.directions))

    def deltas(self, epsilons: Array) -> Array:
        """Return delta at each epsilon; values below 1e-12 are rounded up to 1e-12."""
        at = checked(epsilons)
        highest = np.max([direction.delta(at) for direction in self.directions], axis=0)
        return np.asarray(np.maximum(highest, SMALLEST_PLD_DELTA))

    def mu(self, delta: float) -> float | None:
        return covering_mu(self, delta)


@dataclass(frozen=True, kw_only=True)
class RenyiCurve:
    """The curve from Renyi divergences: always an upper bound, typically 5 to 20 percent too high."""

    orders: Array
    divergences: Array
    accountant: str = "RDP"

    def epsilon(self, delta: float) -> float:
        """Return epsilon by the conversion of Canonne, Kamath and Steinke (2020, Proposition 12)."""
        delta = checks.probability("delta", delta)
        a, r = self.orders, np.maximum(self.divergences, _SMALLEST_DIVERGENCE)
        if float(self._log_total_variation()) <= math.log(delta):
            return 0.0
        bounds = r + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
        return finite_or_infinite(max(0.0, float(bounds.min())))

    def deltas(self, epsilons: Array) -> Array:
        at = checked(epsilons)[:, None]
        a, r = self.orders, np.maximum(self.divergences, _SMALLEST_DIVERGENCE)
        with np.errstate(invalid="ignore"):
            logs = (a - 1) * (r - at + np.log1p(-1 / a)) - np.log(a)
        # An infinite epsilon with an infinite divergence gives no bound: delta 1.
        lowest = np.nan_to_num(logs, nan=0.0, posinf=0.0).min(axis=1)
        return np.asarray(np.exp(np.minimum(np.minimum(lowest, self._log_total_variation()), 0.0)))

    def mu(self, delta: float) -> float | None:
        return None  # Renyi divergences bound small epsilons too loosely for a useful mu

    def _log_total_variation(self) -> float:
        # Bretagnolle and Huber: total variation is at most sqrt(1 - exp(-KL)), and KL is at most every divergence.
        smallest = max(float(self.divergences.min()), _SMALLEST_DIVERGENCE)
        return 0.5 * math.log(-math.expm1(-smallest))


def covering_mu(curve: PrivacyCurve, delta: float) -> float:
    """Return a mu such that delta(e) <= max(delta of mu-GDP at e, delta) for all e >= 0, for any decreasing curve."""
    top = curve.epsilon(delta)
    if math.isinf(top):
        return math.inf
    grid = np.linspace(0.0, top, _MU_POINTS + 1)
    # If delta at the left end of a cell is below the Gaussian curve at its right end, the whole cell is below it.
    return gaussian_dp.smallest_mu(grid[1:], curve.deltas(grid[:-1]))


def checked(epsilons: Array) -> Array:
    """Return epsilons as a one-dimensional float array; refuse NaN and negative ones."""
    try:
        result = np.atleast_1d(np.asarray(epsilons, dtype=np.float64))
    except (TypeError, ValueError):
        raise ArgumentError(f"Epsilons must be numbers, got {type(epsilons).__name__}.") from None
    if result.ndim != 1 or not (result >= 0).all():
        raise ArgumentError("Epsilons must be a flat list of numbers of zero or more, without NaN.")
    return result


def finite_or_infinite(epsilon: float) -> float:
    """Return the result of an accountant; refuse NaN and negative values, which must never reach a report."""
    if not epsilon >= 0:
        raise AccountingError(
            f"The accountant returned {epsilon!r}, which is no epsilon. This is a bug of privet; please report it."
        )
    return float(epsilon)
