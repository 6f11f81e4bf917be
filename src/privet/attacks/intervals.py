"""Exact intervals around shares (Clopper and Pearson, 1934)."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.special import betaincinv

from privet import checks
from privet.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Proportion:
    """A share of trials, with an interval that holds the true rate at least as often as promised.

    Attributes:
        value: The share that was seen; 0 without trials.
        low: Lower end of the interval.
        high: Upper end of the interval.
        num_trials: How many trials it rests on.
        confidence: The level of the interval.
    """

    value: float
    low: float
    high: float
    num_trials: int
    confidence: float


def clopper_pearson(successes: int, trials: int, *, confidence: float = 0.95) -> Proportion:
    """Return the two-sided exact interval of a share: each end is missed with at most half of what is left.

    Edge cases: no successes give the lower end 0, no failures the upper end 1, no trials the interval from 0 to 1.
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
