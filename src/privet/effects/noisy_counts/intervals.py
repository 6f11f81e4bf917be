"""Intervals for shares, means and areas under curves that are computed from noisy counts.

A figure is a ratio of two released numbers, ``total / count``. Its interval holds every value ``x`` for which
``total - x * count`` lies within so many standard deviations of zero, where the variance has the noise of both numbers
and the choice of records (Fieller 1954; for a share this is Wilson's interval widened by the noise). All of it is
quadratic in ``x``, so that the ends are two roots. Nothing here reads records: it is post-processing of a release.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from privet.effects.noisy_counts.terms import Array

CONFIDENCE = 0.95
INTERVAL = "95 %, with the noise and the choice of records"
_QUANTILE = float(ndtri((1 + CONFIDENCE) / 2))


@dataclass(frozen=True, kw_only=True)
class Quadratic:
    """``constant + linear * x + square * x^2``, elementwise."""

    constant: ArrayLike = 0.0
    linear: ArrayLike = 0.0
    square: ArrayLike = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Interval:
    """A figure with its ends; arrays of equal shape."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def ratio(
    total: ArrayLike, count: ArrayLike, variance: Quadratic, *, least: float = 0.0, most: float = 1.0
) -> Interval:
    """Return ``total / count`` with its interval.

    Args:
        total: The released sum.
        count: The released number of units.
        variance: Of ``total - x * count``, as a function of ``x``.
        least: The smallest value that the figure can have.
        most: The largest.

    Edge cases: where the count is not clearly above its noise, every value is possible, and the interval says so.
    """
    t, n = np.asarray(total, dtype=np.float64), np.asarray(count, dtype=np.float64)
    z2 = _QUANTILE**2
    a = n**2 - z2 * np.asarray(variance.square)
    b = -2 * t * n - z2 * np.asarray(variance.linear)
    c = t**2 - z2 * np.asarray(variance.constant)
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(b**2 - 4 * a * c)
        low, high = (-b - root) / (2 * a), (-b + root) / (2 * a)
        value = t / n
    is_known = (a > 0) & (n > 0) & np.isfinite(root)
    value = np.clip(np.where(np.isfinite(value) & (n > 0), value, (least + most) / 2), least, most)
    low = np.where(is_known, np.clip(low, least, most), least)
    high = np.where(is_known, np.clip(high, least, most), most)
    return Interval(value=value, low=np.minimum(low, value), high=np.maximum(high, value))


def share(hits: ArrayLike, misses: ArrayLike, *, std: float, hit_cells: int = 1, miss_cells: int = 1) -> Interval:
    """Return the share of hits among hits and misses, each the sum of so many noisy cells."""
    k, m = np.asarray(hits, dtype=np.float64), np.asarray(misses, dtype=np.float64)
    n, noise = np.maximum(k + m, 0.0), std**2
    # hits - x (hits + misses) = (1 - x) hits - x misses; the choice of records adds n x (1 - x)
    variance = Quadratic(
        constant=noise * hit_cells, linear=n - 2 * noise * hit_cells, square=noise * (hit_cells + miss_cells) - n
    )
    return ratio(k, k + m, variance)


def mean(
    total: ArrayLike,
    squares: ArrayLike,
    count: ArrayLike,
    *,
    total_std: float,
    count_std: float,
    least: float = 0.0,
) -> Interval:
    """Return the mean of values from ``least`` to 1, from their noisy sum, sum of squares and number."""
    t, q, n = (np.asarray(each, dtype=np.float64) for each in (total, squares, count))
    number = np.maximum(n, 1.0)
    m = np.clip(t / number, least, 1.0)
    spread = np.clip(q / number - m**2, 0.0, (m - least) * (1 - m))
    return ratio(t, n, Quadratic(constant=total_std**2 + number * spread, square=count_std**2), least=least)


def contrast(cells: Array, coefficients: Array, *, std: float) -> Interval:
    """Return the mean of a coefficient over the cells of one noisy table, such as a difference of two shares.

    Args:
        cells: The table, flat, along the last axis.
        coefficients: One number from -1 to 1 per cell.
        std: Standard deviation of the noise of a cell.
    """
    n, t = cells.sum(-1), cells @ coefficients
    number, noise = np.maximum(n, 0.0), std**2
    m = np.clip(t / np.maximum(n, 1.0), -1.0, 1.0)
    spread = np.clip(cells @ coefficients**2 / np.maximum(n, 1.0) - m**2, 0.0, 1.0)
    variance = Quadratic(
        constant=noise * float(coefficients @ coefficients) + number * spread,
        linear=-2 * noise * float(coefficients.sum()),
        square=noise * len(coefficients),
    )
    return ratio(t, n, variance, least=-1.0, most=1.0)


def area_under_curve(negatives: Array, positives: Array, *, std: float) -> Interval:
    """Return the area under the ROC curve of binned scores, from the noisy counts of both kinds in every bin.

    Two records of one bin count as a tie. The area is ``p'Kq / (sum p sum q)``, and the variance of ``p'Kq - x p'1q``
    has the noise of both histograms and the choice of records of both kinds.
    """
    p, q = np.asarray(positives, dtype=np.float64), np.asarray(negatives, dtype=np.float64)
    bins = p.shape[-1]
    above = np.tril(np.ones((bins, bins)), -1) + 0.5 * np.eye(bins)
    of_positive, of_negative = q @ above.T, p @ above
    num_positive, num_negative = p.sum(-1), q.sum(-1)
    noise = std**2

    def spread(values: Array, counts: Array) -> Array:
        """Return number times variance of a value over the records of a histogram."""
        number = np.maximum(counts.sum(-1), 1.0)
        middle = (values * counts).sum(-1) / number
        return np.asarray(np.maximum((counts * (values - middle[..., None]) ** 2).sum(-1), 0.0))

    chosen = spread(of_positive, p) + spread(of_negative, q)
    constant = noise * ((of_positive**2).sum(-1) + (of_negative**2).sum(-1)) + chosen
    linear = -2 * noise * (num_negative * of_positive.sum(-1) + num_positive * of_negative.sum(-1))
    square = noise * bins * (num_negative**2 + num_positive**2)
    found = ratio(
        (p * of_positive).sum(-1),
        num_positive * num_negative,
        Quadratic(constant=constant, linear=linear, square=square),
    )
    # one kind of which there may be none has no curve
    is_known = np.minimum(num_positive, num_negative) > _QUANTILE * std * bins**0.5
    return Interval(
        value=np.where(is_known, found.value, 0.5),
        low=np.where(is_known, found.low, 0.0),
        high=np.where(is_known, found.high, 1.0),
    )
