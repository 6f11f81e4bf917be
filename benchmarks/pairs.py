"""The difference in time of two functions, measured in turns in one process."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Seconds of two functions, and their difference.

    Attributes:
        one: Median seconds of the first function.
        other: Median seconds of the second function.
        difference: Median of the differences of pairs.
        low: Lower end of a 95 % interval for that median.
        high: Upper end of that interval.
        rounds: Number of pairs.
    """

    one: float
    other: float
    difference: float
    low: float
    high: float
    rounds: int

    @property
    def share(self) -> dict[str, float]:
        """The difference and its interval over the time of the second function."""
        named = {"median": self.difference, "low": self.low, "high": self.high}
        return {name: value / self.other for name, value in named.items()}


def paired(one: Callable[[], None], other: Callable[[], None], device: torch.device, *, rounds: int) -> Paired:
    """Call both functions in turns; each is first in every second round, so that a drift of the machine cancels.

    The interval is that of order statistics: the number of differences below the median is binomial, whatever their
    distribution.
    """
    first, second, differences = [], [], []
    for number in range(rounds):
        if number % 2:
            late, early = seconds(other, device), seconds(one, device)
        else:
            early, late = seconds(one, device), seconds(other, device)
        first.append(early)
        second.append(late)
        differences.append(early - late)
    differences.sort()
    away = math.ceil(1.96 * math.sqrt(rounds) / 2)
    middle = (rounds - 1) / 2
    low, high = max(0, math.floor(middle - away)), min(rounds - 1, math.ceil(middle + away))
    return Paired(
        one=statistics.median(first), other=statistics.median(second), difference=statistics.median(differences),
        low=differences[low], high=differences[high], rounds=rounds,
    )  # fmt: skip


def seconds(work: Callable[[], None], device: torch.device) -> float:
    """Return the duration of a call, including its work on the device."""
    start = now(device)
    work()
    return now(device) - start


def now(device: torch.device) -> float:
    """Wait for the device and return the time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
