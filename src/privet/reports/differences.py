"""The difference of two measured figures with an interval, and when it may be said in words."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privet.effects.reliability import Interval


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number with what it rests on.

    Attributes:
        value: The number.
        low: Lower end of its 95 % interval.
        high: Upper end.
        num_examples: How many examples it rests on.
    """

    value: float
    low: float
    high: float
    num_examples: int


def difference(first: Figure, second: Figure) -> Interval:
    """Return second minus first with an interval made of both intervals (Zou and Donner, 2008).

    The two are taken as independent. Runs that are measured on the same test examples usually agree on which are hard,
    so for them the interval is rather too wide: a difference is missed sooner than invented.

    Edge cases: an infinite end of an interval gives an infinite end.
    """
    value = second.value - first.value
    return Interval(
        value=value,
        low=value - math.hypot(second.value - second.low, first.high - first.value),
        high=value + math.hypot(second.high - second.value, first.value - first.low),
    )


def is_supported(found: Interval) -> bool:
    """Whether the interval leaves no doubt which of the two is larger: it does not hold zero."""
    return found.low > 0 or found.high < 0


def points(value: float) -> str:
    """Return a difference of shares in percentage points."""
    return f"{100 * value:+.1f} points"


def shown_difference(found: Interval, *, is_share: bool) -> tuple[str, str]:
    """Return a difference and its interval as text, shares in percentage points."""
    if is_share:
        return points(found.value), f"{100 * found.low:+.1f} to {100 * found.high:+.1f} points"
    return f"{found.value:+.4g}", f"{found.low:+.4g} to {found.high:+.4g}"
