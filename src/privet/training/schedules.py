"""Learning rates that follow a course fixed in advance: functions of how far the run is, with no state to lose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from torch.optim import Optimizer

from privet import checks
from privet.errors import ArgumentError


@runtime_checkable
class Schedule(Protocol):
    """The course of a learning rate."""

    def factor(self, progress: float) -> float:
        """Return the factor on the learning rate after this share of the run, in [0, 1)."""
        ...


@dataclass(frozen=True, kw_only=True)
class LinearDecay:
    """Rise from zero during the warm-up, then fall in a straight line to ``final``.

    Attributes:
        warm_up: Share of the run that is spent rising.
        final: Factor at the end of the run.
    """

    warm_up: float = 0.0
    final: float = 0.0

    def __post_init__(self) -> None:
        checks.fields(self, partial(checks.probability, allow_zero=True), "warm_up")
        checks.fields(self, partial(checks.probability, allow_zero=True, allow_one=True), "final")

    def factor(self, progress: float) -> float:
        is_rising = progress < self.warm_up
        rising = progress / self.warm_up if is_rising else 1.0
        left = 1.0 if is_rising else (1 - progress) / (1 - self.warm_up)
        return rising * (self.final + (1 - self.final) * self._height(left))

    def _height(self, left: float) -> float:
        """Return the height of the curve from 1 to 0 when this share of the fall is left."""
        return left


@dataclass(frozen=True, kw_only=True)
class CosineDecay(LinearDecay):
    """Rise from zero during the warm-up, then fall along half a cosine to ``final`` (Loshchilov and Hutter 2017).

    The attributes are those of :class:`LinearDecay`.
    """

    def _height(self, left: float) -> float:
        return (1 - math.cos(math.pi * left)) / 2


@dataclass(frozen=True, kw_only=True)
class StepDecay:
    """Multiply by ``factor_per_drop`` at each of the given shares of the run.

    Attributes:
        drops: Shares of the run at which the learning rate drops.
        factor_per_drop: The factor of each drop.
    """

    drops: tuple[float, ...]
    factor_per_drop: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "drops", tuple(checks.probability("drops", share) for share in self.drops))
        checks.fields(self, checks.positive, "factor_per_drop")

    def factor(self, progress: float) -> float:
        return self.factor_per_drop ** sum(progress >= share for share in self.drops)


class LearningRate:
    """Sets an optimizer's learning rates before each step. Make it before entering the session.

    Torch's own schedulers work as well. They count their calls, so their state must be saved and restored, and a run
    that lost steps to a crash would end with the wrong rate. This one is a function of the step's number, and a resumed
    run goes on where it was without having saved anything.

    Example:
        >>> import torch, privet as pv
        >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5)
        >>> rate = pv.optim.LearningRate(optimizer, pv.optim.CosineDecay(), num_steps=100)
        >>> rate.set(50)
        >>> round(optimizer.param_groups[0]["lr"], 3)
        0.246
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule, *, num_steps: int) -> None:
        """Remember the optimizer's present rates as the ones to multiply."""
        if isinstance(schedule, type) or not isinstance(schedule, Schedule):
            raise ArgumentError(f"schedule must be a Schedule such as CosineDecay(warm_up=0.05), got {schedule!r}.")
        self._optimizer, self._schedule = optimizer, schedule
        self._num_steps = checks.count("num_steps", num_steps)
        self._rates = [group["lr"] for group in optimizer.param_groups]

    def set(self, step: int) -> None:
        """Set the rates of step number ``step``, counted from 0."""
        # the middle of the step, so that neither the first rate of a warm-up nor the last of a decay is zero
        factor = self._schedule.factor(min((step + 0.5) / self._num_steps, 1.0))
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
