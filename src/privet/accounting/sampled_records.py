"""Several records of one unit under Gaussian noise on a Poisson sample: a mixture of Gaussians against one Gaussian.

With rate q, k records and noise z the pair is P = sum_j Bin(k, q)(j) N(j, z^2) against Q = N(0, z^2)
(Choquette-Choo, Ganesh, Steinke and Thakurta 2023, arXiv 2310.15526). The loss increases with the outcome. It has no
inverse in closed form: it is tabulated with its slope and inverted inside the cells of the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaln, ndtr

from privet.accounting import renyi
from privet.accounting.dominating_pairs import Reversed, normal_mass
from privet.vocabulary import Adjacency

Array = NDArray[np.float64]

# The lowest outcome of the table, in standard deviations; a grid of a billion steps reaches down to 11.
_LOWEST = 14.0
# Cells of the table are this small a part of the scale on which the loss bends, unless they would be too many.
_CELLS_PER_SCALE, _MOST_CELLS = 256, 400_000
_NEWTON_STEPS = 4
# Numbers of records with smaller probabilities beyond every outcome of the grid are beyond double precision.
_NEGLIGIBLE = 1e-40


def binomial_weights(num_records: int, rate: float) -> list[float]:
    """Return the probabilities of 0, 1, ... of ``num_records`` records in a sample; at most 1000 records."""
    return [math.comb(num_records, j) * rate**j * (1 - rate) ** (num_records - j) for j in range(num_records + 1)]


@dataclass(frozen=True, kw_only=True)
class RecordsRemoval:
    """The pair for a unit that is removed.

    Attributes:
        rate: Probability of each record, below 1.
        num_records: The number of the unit's records.
        noise_multiplier: Noise over the bound of one record.
    """

    rate: float
    num_records: int
    noise_multiplier: float

    @cached_property
    def _log_weights(self) -> Array:
        """The logarithms of the binomial probabilities."""
        k, j = self.num_records, np.arange(self.num_records + 1)
        ways = gammaln(k + 1) - gammaln(j + 1) - gammaln(k - j + 1)
        return np.asarray(ways + j * math.log(self.rate) + (k - j) * math.log1p(-self.rate))

    @cached_property
    def _weights(self) -> Array:
        return np.exp(self._log_weights)

    def loss(self, x: Array) -> Array:
        return self._loss_and_slope(np.asarray(x, dtype=np.float64))[0]

    def _loss_and_slope(self, x: Array) -> tuple[Array, Array]:
        """Return the loss at outcomes, and its derivative: the mean number of records given the outcome, over z^2."""
        z2 = self.noise_multiplier * self.noise_multiplier
        # the largest term of the sum is subtracted, found in a first pass
        peak = np.full(x.shape, -np.inf)
        for j, weight in enumerate(self._log_weights.tolist()):
            np.maximum(peak, weight + j * (2 * x - j) / (2 * z2), out=peak)
        total, moment = np.zeros(x.shape), np.zeros(x.shape)
        for j, weight in enumerate(self._log_weights.tolist()):
            term = np.exp(weight + j * (2 * x - j) / (2 * z2) - peak)
            total += term
            moment += j * term
        return peak + np.log(total), moment / total / z2

    @cached_property
    def _table(self) -> tuple[Array, Array, Array]:
        z = self.noise_multiplier
        low, high = -_LOWEST * z, self._upper_end(_LOWEST)
        cell = min(z, z * z) / _CELLS_PER_SCALE
        x = np.linspace(low, high, min(_MOST_CELLS, math.ceil((high - low) / cell)) + 1)
        return (x, *self._loss_and_slope(x))

    def outcome(self, losses: Array) -> Array:
        """Return the outcome of each loss, by a cubic through values and slopes of the table.

        Guarantee: the loss at the result differs from the given one by less than 1e-9, an error of second order in the
        masses between two outcomes. Losses below the table give minus infinity, above it plus infinity.
        """
        x, values, slopes = self._table
        wanted = np.asarray(losses, dtype=np.float64)
        cell = np.clip(np.searchsorted(values, wanted, side="right") - 1, 0, len(x) - 2)
        width = x[1] - x[0]
        start, rise = values[cell], values[cell + 1] - values[cell]
        first, last = slopes[cell] * width, slopes[cell + 1] * width
        square, cube = 3 * rise - 2 * first - last, first + last - 2 * rise
        inside = np.where(rise > 0, (wanted - start) / np.where(rise > 0, rise, 1.0), 0.0)
        for _ in range(_NEWTON_STEPS):
            value = ((cube * inside + square) * inside + first) * inside
            slope = (3 * cube * inside + 2 * square) * inside + first
            step = np.where(slope > 0, (value - (wanted - start)) / np.where(slope > 0, slope, 1.0), 0.0)
            inside = np.clip(inside - step, 0.0, 1.0)
        found = x[cell] + inside * width
        return np.where(wanted < values[0], -np.inf, np.where(wanted > values[-1], np.inf, found))

    def upper_mass(self, left: Array, right: Array) -> Array:
        z = self.noise_multiplier
        total = np.zeros(np.broadcast(left, right).shape)
        for j, weight in enumerate(self._weights.tolist()):
            if weight > _NEGLIGIBLE:
                total += weight * normal_mass((left - j) / z, (right - j) / z)
        return total

    def lower_mass(self, left: Array, right: Array) -> Array:
        return normal_mass(left / self.noise_multiplier, right / self.noise_multiplier)

    def ends(self, stds: float) -> tuple[float, float]:
        return -stds * self.noise_multiplier, self._upper_end(stds)

    def _upper_end(self, stds: float) -> float:
        """Return an outcome above which P has mass at most Phi(-stds)."""
        z, k, allowed = self.noise_multiplier, self.num_records, float(ndtr(-stds))
        j = np.arange(k + 1)

        def excess(x: float) -> float:
            return math.log(max(float(self._weights @ ndtr((j - x) / z)), 1e-320)) - math.log(allowed)

        if excess(stds * z) <= 0:
            return stds * z
        found = float(brentq(excess, stds * z, k + stds * z + 1e-9, xtol=1e-6 * z))
        return found + 1e-5 * z


@dataclass(frozen=True, kw_only=True)
class SampledRecords:
    """Gaussian noise on a Poisson sample of records, of which one unit has up to ``num_records``; at least two.

    Guarantee: the pair dominates for a unit that is added, removed or blanked. More records of the unit make it less
    private, so a unit with fewer is covered. An exchange has no proven bound and is refused.
    """

    rate: float
    num_records: int
    noise_multiplier: float

    @property
    def noise_ratio(self) -> float:
        return self.noise_multiplier / self.num_records

    def refusal(self, adjacency: Adjacency) -> str | None:
        return adjacency.refused_exchange(
            "Several sampled records of one unit are not supported under Adjacency.REPLACE_ONE."
        )

    def losses(self, adjacency: Adjacency) -> tuple[RecordsRemoval, Reversed]:
        removed = RecordsRemoval(rate=self.rate, num_records=self.num_records, noise_multiplier=self.noise_multiplier)
        return removed, Reversed(pair=removed)

    def divergences(self, orders: Array, adjacency: Adjacency) -> Array:
        return renyi.records_divergences(
            orders, rate=self.rate, num_records=self.num_records, noise_multiplier=self.noise_multiplier
        )
