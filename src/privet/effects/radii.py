"""Accuracy under attack by radius, and the norm of the weights, as plain values without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from scipy.special import ndtri

from privet import checks
from privet.effects.reliability import Interval
from privet.errors import ArgumentError
from privet.records import Count, Record, Size


def wilson_interval(num_right: int, num_examples: int, *, confidence: float = 0.95) -> Interval:
    """Return a proportion with its score interval (Wilson, 1927), which lies within 0 and 1.

    Edge cases: without examples the value is 0 and the interval is 0 to 1.
    """
    n = checks.count("num_examples", num_examples, minimum=0)
    right = checks.count("num_right", num_right, minimum=0)
    if right > n:
        raise ArgumentError(f"num_right ({right}) is larger than num_examples ({n}).")
    if n == 0:
        return Interval(value=0.0, low=0.0, high=1.0)
    share, z = right / n, float(ndtri((1 + checks.probability("confidence", confidence)) / 2))
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return Interval(value=share, low=max(0.0, middle - half), high=min(1.0, middle + half))


@dataclass(frozen=True, kw_only=True)
class RadiusPoint:
    """Accuracy under attacks of this radius; radius 0 is the accuracy without an attack."""

    radius: Size
    accuracy: Interval


@dataclass(frozen=True, kw_only=True)
class RobustnessReport(Record):
    """Accuracy by radius of an attack.

    The accuracy under one attack is an upper bound: a better attack may succeed on more examples.

    Attributes:
        norm: Name of the norm of the radius.
        num_examples: Number of attacked examples.
        num_steps: Number of steps of the attack.
        num_restarts: Number of random starts of the attack.
        points: One per radius, ascending.
    """

    WHAT: ClassVar[str] = "a robustness report"

    norm: str
    num_examples: Count
    num_steps: Count
    num_restarts: Count
    points: tuple[RadiusPoint, ...]


def noise_walk_length(
    *, learning_rate: float, noise_std: float, num_steps: int, num_parameters: int, momentum: float = 0.0
) -> float:
    """Return the expected norm of the weights' random walk by noise: ``eta sigma sqrt(T d)`` (Xu and Chen, 2026, 4.2).

    The larger the norm of the weights, the more a small change of the input can change the output. With momentum one
    draw changes the weights by ``eta / (1 - momentum)`` in total, so this is the effective learning rate.

    Args:
        learning_rate: Learning rate of SGD.
        noise_std: Standard deviation of the noise on each coordinate of the averaged gradient: noise multiplier times
            sensitivity over batch size.
        num_steps: Number of noisy steps.
        num_parameters: Number of coordinates with noise.
        momentum: Momentum of SGD; exact in the limit of many steps.
    """
    rate = checks.non_negative("learning_rate", learning_rate)
    kept = 1 - checks.probability("momentum", momentum, allow_zero=True)
    steps = checks.count("num_steps", num_steps, minimum=0)
    return (
        rate
        / kept
        * checks.non_negative("noise_std", noise_std)
        * math.sqrt(steps * checks.count("num_parameters", num_parameters, minimum=0))
    )


@dataclass(frozen=True, kw_only=True)
class WeightGrowth:
    """The norm of a model's weights beside the norm that noise alone would give.

    Attributes:
        measured: Norm of all trained weights.
        from_noise: Norm of a random walk with the same noise.
    """

    measured: float
    from_noise: float

    @property
    def noise_share(self) -> float:
        """The fraction of the squared norm that noise explains, at most 1; 0 for weights of norm zero."""
        return min(1.0, (self.from_noise / self.measured) ** 2) if self.measured else 0.0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{name: checks.non_negative(name, data[name]) for name in ("measured", "from_noise")})
