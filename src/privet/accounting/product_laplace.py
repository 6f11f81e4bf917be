"""Upper bounds on the Renyi divergences of independent Laplace noise of different scales under an l2 bound.

No direction of the contribution is always the worst. For a pure guarantee it is proportional to the inverse scales; for
many releases it lies in the coordinate of the smallest scale. At every order the divergence is a sum of terms, concave
in the squared share of each coordinate, so its maximum over the ball is a water-filling problem. Its dual gives an
upper bound at every price, and the smallest of these bounds is the maximum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from privet.accounting.dominating_pairs import LossPair
from privet.accounting.mechanisms import PoissonSampled, neighbour_distance
from privet.errors import AccountingError
from privet.vocabulary import Adjacency

Array = NDArray[np.float64]

_LARGEST_EXPANDED = 128
_OUTER, _NEWTON = 34, 14


def one_coordinate(orders: Array, x: Array) -> Array:
    """Return the Renyi divergences of unit Laplace distributions ``x`` apart (Mironov, 2017)."""
    first = np.log(orders / (2 * orders - 1)) + (orders - 1) * x
    second = np.log((orders - 1) / (2 * orders - 1)) - orders * x
    return np.asarray(np.maximum(np.logaddexp(first, second), 0.0) / (orders - 1))


def slope(orders: Array, x: Array) -> Array:
    """Return the derivative of :func:`one_coordinate` by the square of ``x``; it falls from ``order / 2`` to zero."""
    decay = np.exp(-(2 * orders - 1) * x)
    fall = -np.expm1(-(2 * orders - 1) * x)
    return np.asarray(orders * fall / ((orders + (orders - 1) * decay) * 2 * x))


def worst_divergences(orders: Array, scales: Array, counts: Array, *, reach: float) -> Array:
    """Return the largest divergence over all contributions of length ``reach``, from above, at every order.

    Guarantee: by weak duality every price gives an upper bound, also one that is not optimal.
    """
    column, squares = orders[:, None], (scales * scales)[None, :]
    high = np.log(orders / 2 / squares.min())
    low = high - 60.0
    best = np.full(len(orders), np.inf)
    for _ in range(_OUTER):
        log_price = (low + high) / 2
        x, gains = _best_share(column, np.exp(log_price)[:, None] * squares)
        best = np.minimum(best, np.exp(log_price) * reach * reach + (counts * gains).sum(1))
        is_too_much = (counts * squares * x * x).sum(1) > reach * reach
        low, high = np.where(is_too_much, log_price, low), np.where(is_too_much, high, log_price)
    return best * (1 + 1e-12)


def _best_share(orders: Array, cost: Array) -> tuple[Array, Array]:
    """Return the shift at which a divergence less ``cost`` times its square is largest, and a bound on that maximum.

    Newton's method on logarithms, started on the right, cannot overshoot because the logarithm of the slope is concave.
    The tangent bounds the gap to the maximum after the last iteration, since the divergence is concave in the square of
    the shift.
    """
    most = 1 / (2 * cost)  # the slope is below 1 / (2 x)
    log_x = np.log(most)
    for _ in range(_NEWTON):
        x = np.exp(log_x)
        decay, fall = np.exp(-(2 * orders - 1) * x), -np.expm1(-(2 * orders - 1) * x)
        bend = x * (2 * orders - 1) * decay * (1 / fall + (orders - 1) / (orders + (orders - 1) * decay)) - 1
        log_x = log_x - np.log(slope(orders, x) / cost) / np.minimum(bend, -1e-9)
        log_x = np.clip(log_x, -80.0, np.log(most))
    x = np.exp(log_x)
    tilt = slope(orders, x) - cost
    missing = np.maximum(tilt * (most * most - x * x), -tilt * x * x)
    gains = one_coordinate(orders, x) - cost * x * x + missing
    idle = cost >= orders / 2
    return np.where(idle, 0.0, x), np.where(idle, 0.0, gains)


@dataclass(frozen=True, kw_only=True)
class SampledProductLaplace(PoissonSampled):
    """Independent Laplace noise over an l2 bound, on a Poisson sample or, at rate 1, on all records.

    Attributes:
        rate: Sampling probability.
        scales: The different scales over the bound.
        counts: The number of coordinates of each scale.
    """

    rate: float
    scales: tuple[float, ...]
    counts: tuple[int, ...]
    label: ClassVar[str] = "ProductLaplace"

    @property
    def noise_ratio(self) -> float:
        return min(self.scales)

    @property
    def pure_epsilon(self) -> float:
        """The largest loss, which a contribution proportional to the inverse scales reaches."""
        return math.sqrt(math.fsum(n / b / b for b, n in zip(self.scales, self.counts, strict=True)))

    def losses(self, adjacency: Adjacency) -> tuple[LossPair, LossPair]:
        raise AccountingError("Independent Laplace noise under an l2 bound has no single dominating pair. Use RDP.")

    def divergences(self, orders: Array, adjacency: Adjacency) -> Array:
        """Return the divergences; see :meth:`Mechanism.divergences`.

        Sampling enters by the binomial expansion at whole orders (Mironov, Talwar and Zhang, 2019; a reflection
        exchanges the two distributions, so removal is the worse direction). Another order gets the bound of the next
        whole one.
        """
        reach = neighbour_distance(adjacency)
        scales, counts = np.array(self.scales), np.array(self.counts, dtype=np.float64)
        most = reach * self.pure_epsilon
        if self.rate == 1:
            return np.minimum(worst_divergences(orders, scales, counts, reach=reach), most)
        whole = np.arange(2, _LARGEST_EXPANDED + 1, dtype=np.float64)
        plain = np.minimum(worst_divergences(whole, scales, counts, reach=reach), most)
        expanded = np.array([self._expanded(int(order), plain) for order in whole])
        index = np.ceil(orders).astype(np.int64) - 2
        largest = float(np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + most))
        bounded = expanded[np.clip(index, 0, len(whole) - 1)]
        return np.minimum(np.where(orders > _LARGEST_EXPANDED, largest, bounded), largest)

    def _expanded(self, order: int, plain: Array) -> float:
        j = np.arange(order + 1, dtype=np.float64)
        log_binomial = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
        log_chance = (order - j) * math.log1p(-self.rate) + j * math.log(self.rate)
        moments = np.concatenate([[0.0, 0.0], (j[2:] - 1) * plain[: order - 1]])
        return max(0.0, float(logsumexp(log_binomial + log_chance + moments))) / (order - 1) + 1e-14
