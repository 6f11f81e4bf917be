"""Learning rates that follow a course fixed in advance: functions of how far the run is, with no state to lose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch.optim import Optimizer

from privet import checks
from privet.errors import ArgumentError


@runtime_checkable
class Schedule(Protocol):
    """The course of a learning rate."""

    def factor(self, progress: float) -> float:
        """Return what the learning rate is multiplied by when this share of the run, in [0, 1), is done."""
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
        """Refuse shares out of range."""
        _check(self)

    def factor(self, progress: float) -> float:
        """Return the factor."""
        rising, left = _course(progress, self.warm_up)
        return rising * (self.final + (1 - self.final) * left)


@dataclass(frozen=True, kw_only=True)
class CosineDecay:
    """Rise from zero during the warm-up, then fall along half a cosine to ``final`` (Loshchilov and Hutter 2017).

    Attributes:
        warm_up: Share of the run that is spent rising.
        final: Factor at the end of the run.
    """

    warm_up: float = 0.0
    final: float = 0.0

    def __post_init__(self) -> None:
        """Refuse shares out of range."""
        _check(self)

    def factor(self, progress: float) -> float:
        """Return the factor."""
        rising, left = _course(progress, self.warm_up)
        return rising * (self.final + (1 - self.final) * (1 - math.cos(math.pi * left)) / 2)


@dataclass(frozen=True, kw_only=True)
class StepDecay:
    """Multiply by ``factor_per_drop`` at each of the given shares of the run.

    Attributes:
        drops: Shares of the run at which the learning rate drops.
        factor_per_drop: What it is multiplied by each time.
    """

    drops: tuple[float, ...]
    factor_per_drop: float = 0.1

    def __post_init__(self) -> None:
        """Refuse shares and factors out of range."""
        object.__setattr__(self, "drops", tuple(checks.probability("drops", share) for share in self.drops))
        object.__setattr__(self, "factor_per_drop", checks.positive("factor_per_drop", self.factor_per_drop))

    def factor(self, progress: float) -> float:
        """Return the factor."""
        return self.factor_per_drop ** sum(progress >= share for share in self.drops)


def _check(schedule: LinearDecay | CosineDecay) -> None:
    object.__setattr__(schedule, "warm_up", checks.probability("warm_up", schedule.warm_up, allow_zero=True))
    object.__setattr__(schedule, "final", checks.probability("final", schedule.final, allow_zero=True, allow_one=True))


def _course(progress: float, warm_up: float) -> tuple[float, float]:
    """Return how far the warm-up is, and which share of the rest is left; both in [0, 1]."""
    if progress < warm_up:
        return progress / warm_up, 1.0
    return 1.0, (1 - progress) / (1 - warm_up)


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
