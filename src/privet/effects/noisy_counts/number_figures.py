"""R2 and errors of predicted numbers, from noisy moments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privet.effects.noisy_counts import intervals
from privet.effects.noisy_counts.intervals import Interval, Quadratic, ratio
from privet.effects.noisy_counts.terms import MOMENT_SCALE, Array, EvaluationTerms


@dataclass(frozen=True, kw_only=True, eq=False)
class NumberFigures:
    """Figures in units of the clipped error, and of half the range of the target.

    Attributes:
        explained: R2: one less the squared errors over those of always saying the mean.
        absolute: Mean absolute error.
        root: Root mean squared error.
        constant: Root mean squared error of always saying the mean.
    """

    explained: Interval
    absolute: Interval
    root: Interval
    constant: Interval


def number_figures(moments: Array, *, std: float, terms: EvaluationTerms) -> NumberFigures:
    """Return the figures of the noisy moments ``1, e, e^2, t, t^2`` and, scaled, ``e^4, t^3, t^4, e^2 t, e^2 t^2``.

    ``e`` is the clipped absolute error and ``t`` the target from -1 to 1. The moments may have further axes in front.
    """
    n, e1, e2, t1, t2 = np.moveaxis(np.asarray(moments, dtype=np.float64)[..., :5], -1, 0)
    e4, t3, t4, e2t, e2t2 = np.moveaxis(np.asarray(moments, dtype=np.float64)[..., 5:], -1, 0) / MOMENT_SCALE
    number = np.maximum(n, 1.0)
    absolute = intervals.mean(e1, e2, n, total_std=std, count_std=std)
    squared = intervals.mean(e2, e4, n, total_std=std, count_std=std)
    # R2 = 1 - scale * sum e^2 / sum (t - mean)^2: the interval of the ratio of the two sums.
    middle = np.clip(t1 / number, -1.0, 1.0)
    around = t2 - 2 * middle * t1 + middle**2 * n
    around4 = t4 - 4 * middle * t3 + 6 * middle**2 * t2 - 4 * middle**3 * t1 + middle**4 * n
    mixed = e2t2 - 2 * middle * e2t + middle**2 * e2
    noise_around = std**2 * (1 + 4 * middle**2 + middle**4)
    # the choice of records: number times the variances and the covariance of e^2 and (t - mean)^2
    var_e = np.maximum(e4 - e2**2 / number, 0.0)
    var_t = np.maximum(around4 - around**2 / number, 0.0)
    cov = np.clip(mixed - e2 * around / number, -np.sqrt(var_e * var_t), np.sqrt(var_e * var_t))
    variance = Quadratic(constant=std**2 + var_e, linear=-2 * (cov + std**2 * middle**2), square=noise_around + var_t)
    scale = (terms.error_clip / ((terms.high - terms.low) / 2)) ** 2
    unexplained = ratio(e2, around, variance, least=0.0, most=1e6)
    spread = ratio(around, n, Quadratic(constant=noise_around + var_t, linear=-2 * std**2 * middle**2, square=std**2))
    return NumberFigures(
        explained=Interval(
            value=1 - scale * unexplained.value, low=1 - scale * unexplained.high, high=1 - scale * unexplained.low
        ),
        absolute=absolute,
        root=_root(squared),
        constant=_root(spread),
    )


def _root(found: Interval) -> Interval:
    return Interval(value=np.sqrt(found.value), low=np.sqrt(found.low), high=np.sqrt(found.high))
