"""Tests of statistical hypotheses, each answering with the probability of data at least this odd."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

# Seeds are fixed, so a correct piece never alarms by chance; a mutant must be seen far below this level.
ALPHA = 1e-4
CERTAIN = 1e-9


def normal(z: float) -> float:
    """Two-sided p-value of a standard normal."""
    return float(special.erfc(abs(z) / math.sqrt(2)))


def chi_square(value: float, degrees: int) -> float:
    """Two-sided p-value of a sum of squares: too small is as suspicious as too large."""
    return min(1.0, 2 * min(float(special.chdtr(degrees, value)), float(special.chdtrc(degrees, value))))


def binomial(successes: int, trials: int, probability: float) -> float:
    """Two-sided p-value of a count."""
    below = float(special.bdtr(successes, trials, probability))
    above = 1.0 if successes == 0 else float(special.bdtrc(successes - 1, trials, probability))
    return min(1.0, 2 * min(below, above))


def kolmogorov(standardised: NDArray[np.float64]) -> float:
    """P-value of the distance between the empirical and the standard normal distribution."""
    size = len(standardised)
    grid = special.ndtr(np.sort(standardised))
    steps = np.arange(size + 1) / size
    distance = max(np.abs(grid - steps[1:]).max(), np.abs(grid - steps[:-1]).max())
    return float(special.kolmogorov(math.sqrt(size) * distance))


def correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """P-value of the correlation of two samples that should be independent."""
    return normal(float(np.corrcoef(left, right)[0, 1]) * math.sqrt(len(left)))
