"""Differences of two measured figures with intervals, and their text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from privet.effects.reliability import Interval


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number.

    Attributes:
        value: The number.
        low: Lower end of its 95 % interval.
        high: Upper end of its 95 % interval.
        num_examples: Number of examples measured.
    """

    value: float
    low: float
    high: float
    num_examples: int


def difference(first: Figure, second: Figure) -> Interval:
    """Return second minus first with an interval from both intervals (Zou and Donner, 2008).

    The two figures are assumed to be independent. Figures of runs that share test examples are positively correlated,
    so their interval is too wide rather than too narrow.

    Edge cases: an infinite end of an interval gives an infinite end.
    """
    value = second.value - first.value
    return Interval(
        value=value,
        low=value - math.hypot(second.value - second.low, first.high - first.value),
        high=value + math.hypot(second.high - second.value, first.value - first.low),
    )


def is_supported(found: Interval) -> bool:
    """Whether the interval excludes zero."""
    return found.low > 0 or found.high < 0


def shown_numbers(values: Sequence[float], *, sign: str = "") -> tuple[str, ...]:
    """Return the figures of one table row with equally many decimals: four, or more where all are tiny.

    Examples:
        >>> shown_numbers([1.07, 0.92634, 0.5])
        ('1.0700', '0.9263', '0.5000')
        >>> shown_numbers([-0.00001234], sign="+")
        ('-1.234e-05',)
    """
    is_tiny = 0 < max((abs(value) for value in values), default=0.0) < 0.001
    # z: a negative number that is rounded to zero loses its sign.
    return tuple(f"{value:{sign}z.4g}" if is_tiny else f"{value:{sign}z.4f}" for value in values)


def points(value: float) -> str:
    """Return a difference of shares in percentage points."""
    return f"{100 * value:+.1f} points"


def shown_difference(found: Interval, *, is_share: bool) -> tuple[str, str]:
    """Return a difference and its interval as text, shares in percentage points."""
    if is_share:
        return points(found.value), f"{100 * found.low:+.1f} to {100 * found.high:+.1f} points"
    value, low, high = shown_numbers([found.value, found.low, found.high], sign="+")
    return value, f"{low} to {high}"
