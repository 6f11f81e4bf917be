"""Exact confidence intervals of proportions (Clopper and Pearson, 1934)."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.special import betaincinv

from privet import checks
from privet.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Proportion:
    """A proportion of trials, with an interval that contains the true rate with at least the stated confidence.

    Attributes:
        value: The observed proportion; 0 without trials.
        low: Lower end of the interval.
        high: Upper end of the interval.
        num_trials: Number of trials.
        confidence: Confidence level of the interval.
    """

    value: float
    low: float
    high: float
    num_trials: int
    confidence: float


def clopper_pearson(successes: int, trials: int, *, confidence: float = 0.95) -> Proportion:
    """Return the two-sided exact interval of a proportion; each side gets half of the error probability.

    Edge cases: without successes the lower end is 0, without failures the upper end is 1.
    """
    tail = (1 - checks.probability("confidence", confidence)) / 2
    return Proportion(
        value=successes / trials if trials else 0.0,
        low=lower_limit(successes, trials, confidence=1 - tail),
        high=upper_limit(successes, trials, confidence=1 - tail),
        num_trials=trials,
        confidence=confidence,
    )


def lower_limit(successes: int, trials: int, *, confidence: float) -> float:
    """Return a number that the true rate is below with probability at most ``1 - confidence``."""
    k, n = _counts(successes, trials)
    return float(betaincinv(k, n - k + 1, 1 - checks.probability("confidence", confidence))) if k > 0 else 0.0


def upper_limit(successes: int, trials: int, *, confidence: float) -> float:
    """Return a number that the true rate is above with probability at most ``1 - confidence``."""
    k, n = _counts(successes, trials)
    return float(betaincinv(k + 1, n - k, checks.probability("confidence", confidence))) if k < n else 1.0


def _counts(successes: int, trials: int) -> tuple[int, int]:
    n = checks.count("trials", trials, minimum=0)
    k = checks.count("successes", successes, minimum=0)
    if k > n:
        raise ArgumentError(f"successes ({k}) is larger than trials ({n}).")
    return k, n
