"""Rates that follow a course fixed in advance: functions of how far the run is, with no state to lose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from privet import checks


@runtime_checkable
class RateSchedule(Protocol):
    """The course of a rate during a run."""

    def rate(self, progress: float) -> float:
        """Return the rate at ``progress``, 0 for the first stretch of the run and 1 for the last; public."""
        ...


def _check_rates(piece: Any, *names: str) -> None:
    for name in names:
        object.__setattr__(piece, name, checks.probability(name, getattr(piece, name), allow_zero=True))


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same rate from beginning to end.

    Attributes:
        value: The rate, in [0, 1).
    """

    value: float

    def __post_init__(self) -> None:
        _check_rates(self, "value")

    def rate(self, progress: float) -> float:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Linear:
    """In a straight line from ``first`` to ``last``.

    Attributes:
        first: The rate at the start, in [0, 1).
        last: The rate at the end, in [0, 1).
    """

    first: float
    last: float

    def __post_init__(self) -> None:
        _check_rates(self, "first", "last")

    def rate(self, progress: float) -> float:
        return self.first + (self.last - self.first) * progress


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Along half a cosine from ``first`` to ``last``: slow at both ends.

    Attributes:
        first: The rate at the start, in [0, 1).
        last: The rate at the end, in [0, 1).
    """

    first: float
    last: float

    def __post_init__(self) -> None:
        _check_rates(self, "first", "last")

    def rate(self, progress: float) -> float:
        return self.first + (self.last - self.first) * (1 - math.cos(math.pi * progress)) / 2


@dataclass(frozen=True, kw_only=True)
class GradualCooling:
    """From nothing to ``final`` in even steps (Zhu and Blaschko 2023, Algorithm 1, line 3).

    A run of one single stretch is at its end: it gets the final rate.

    Attributes:
        final: The rate of the last stretch, in [0, 1).
    """

    final: float

    def __post_init__(self) -> None:
        _check_rates(self, "final")

    def rate(self, progress: float) -> float:
        return self.final * progress
