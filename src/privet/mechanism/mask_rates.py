"""Schedules of a mask rate: functions of the progress of the run, without state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from privet import checks


@runtime_checkable
class RateSchedule(Protocol):
    """The rate of a mask during a run."""

    def rate(self, progress: float) -> float:
        """Return the rate at ``progress``, which is 0 in the first mask period of the run and 1 in the last; public."""
        ...


def _check_rates(piece: Any, *names: str) -> None:
    for name in names:
        object.__setattr__(piece, name, checks.probability(name, getattr(piece, name), allow_zero=True))


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A constant rate.

    Attributes:
        value: The rate, in [0, 1).
    """

    value: float

    def __post_init__(self) -> None:
        _check_rates(self, "value")

    def rate(self, progress: float) -> float:
        return self.value


@dataclass(frozen=True, kw_only=True)
class _FirstToLast:
    """Fields of schedules between two rates.

    Attributes:
        first: The rate at the start, in [0, 1).
        last: The rate at the end, in [0, 1).
    """

    first: float
    last: float

    def __post_init__(self) -> None:
        _check_rates(self, "first", "last")


@dataclass(frozen=True, kw_only=True)
class Linear(_FirstToLast):
    """Linear from ``first`` to ``last``, both in [0, 1)."""

    def rate(self, progress: float) -> float:
        return self.first + (self.last - self.first) * progress


@dataclass(frozen=True, kw_only=True)
class Cosine(_FirstToLast):
    """Half a cosine from ``first`` to ``last``, both in [0, 1): slow at both ends."""

    def rate(self, progress: float) -> float:
        return self.first + (self.last - self.first) * (1 - math.cos(math.pi * progress)) / 2


@dataclass(frozen=True, kw_only=True)
class GradualCooling:
    """From zero to ``final`` in equal steps (Zhu and Blaschko 2023, Algorithm 1, line 3).

    A run with a single mask period has the final rate.

    Attributes:
        final: The rate of the last mask period, in [0, 1).
    """

    final: float

    def __post_init__(self) -> None:
        _check_rates(self, "final")

    def rate(self, progress: float) -> float:
        return self.final * progress
