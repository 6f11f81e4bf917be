"""The pairs of distributions that dominate one release, and their masses between given privacy losses.

Losses are ``L(x) = log P(x) / Q(x)``. Every pair here has one increasing loss function on the real line, so the masses
of P and Q between two losses are differences of normal distribution functions: closed forms, nothing estimated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]


class LossPair(Protocol):
    """Two distributions P (upper) and Q (lower) and the loss between them."""

    def loss(self, x: Array) -> Array:
        """Return the loss at outcomes x; increasing."""
        ...

    def outcome(self, losses: Array) -> Array:
        """Return the outcome at which each loss is reached; minus or plus infinity beyond the range of losses."""
        ...

    def upper_mass(self, left: Array, right: Array) -> Array:
        """Return P's mass between outcomes."""
        ...

    def lower_mass(self, left: Array, right: Array) -> Array:
        """Return Q's mass between outcomes."""
        ...

    def ends(self, stds: float) -> tuple[float, float]:
        """Return outcomes outside which P has mass at most 2 Phi(-stds)."""
        ...


def normal_mass(left: Array, right: Array) -> Array:
    """Return the standard normal mass of intervals, accurate in both tails."""
    flip = left + right > 0
    return np.asarray(ndtr(np.where(flip, -left, right)) - ndtr(np.where(flip, -right, left)))


@dataclass(frozen=True, kw_only=True)
class Removal:
    """P = (1-q) N(0, z^2) + q N(1, z^2) against Q = N(0, z^2): one unit is removed. With rate 1: a plain Gaussian."""

    rate: float
    noise_multiplier: float

    def loss(self, x: Array) -> Array:
        """See ``LossPair``."""
        ratio = (2 * x - 1) / (2 * self.noise_multiplier * self.noise_multiplier)
        if self.rate == 1:
            return ratio
        return np.asarray(np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + ratio))

    def outcome(self, losses: Array) -> Array:
        """See ``LossPair``."""
        q = self.rate
        if q == 1:
            ratio = losses
        else:
            with np.errstate(divide="ignore", over="ignore"):
                small = np.log(np.maximum((np.expm1(np.minimum(losses, 1.0)) + q) / q, 0.0))
            large = losses - math.log(q) + np.log1p(-(1 - q) * np.exp(-np.maximum(losses, 1.0)))
            ratio = np.where(losses > 1, large, small)
        return self.noise_multiplier * self.noise_multiplier * ratio + 0.5

    def upper_mass(self, left: Array, right: Array) -> Array:
        """See ``LossPair``."""
        z, q = self.noise_multiplier, self.rate
        shifted = normal_mass((left - 1) / z, (right - 1) / z)
        return shifted if q == 1 else (1 - q) * self.lower_mass(left, right) + q * shifted

    def lower_mass(self, left: Array, right: Array) -> Array:
        """See ``LossPair``."""
        return normal_mass(left / self.noise_multiplier, right / self.noise_multiplier)

    def ends(self, stds: float) -> tuple[float, float]:
        """See ``LossPair``."""
        z = self.noise_multiplier
        return (1.0 if self.rate == 1 else 0.0) - stds * z, 1 + stds * z


@dataclass(frozen=True, kw_only=True)
class Reversed:
    """The same pair with the roles exchanged (one unit is added), on the mirrored line so that the loss increases."""

    pair: Removal

    def loss(self, x: Array) -> Array:
        """See ``LossPair``."""
        return -self.pair.loss(-x)

    def outcome(self, losses: Array) -> Array:
        """See ``LossPair``."""
        return -self.pair.outcome(-losses)

    def upper_mass(self, left: Array, right: Array) -> Array:
        """See ``LossPair``."""
        return self.pair.lower_mass(-right, -left)

    def lower_mass(self, left: Array, right: Array) -> Array:
        """See ``LossPair``."""
        return self.pair.upper_mass(-right, -left)

    def ends(self, stds: float) -> tuple[float, float]:
        """See ``LossPair``."""
        z = self.pair.noise_multiplier
        return -stds * z, stds * z


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """P = (1-q) N(0, z^2) + q N(1, z^2) against Q = (1-q) N(0, z^2) + q N(-1, z^2): one unit is replaced.

    Opposite contributions of full norm are the worst case; the pair equals its own reverse.
    """

    rate: float
    noise_multiplier: float

    def loss(self, x: Array) -> Array:
        """See ``LossPair``."""
        z2, away, into = self.noise_multiplier * self.noise_multiplier, math.log1p(-self.rate), math.log(self.rate)
        above = np.logaddexp(away, into + (2 * x - 1) / (2 * z2))
        below = np.logaddexp(away, into - (2 * x + 1) / (2 * z2))
        return np.asarray(above - below)

    def outcome(self, losses: Array) -> Array:
        """See ``LossPair``; solves the quadratic in exp(x / z^2) with hyperbolic functions, which cannot overflow."""
        z2 = self.noise_multiplier * self.noise_multiplier
        half = np.abs(losses) / 2
        with np.errstate(divide="ignore"):
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
        scaled = math.log1p(-self.rate) - math.log(self.rate) + 1 / (2 * z2) + log_sinh
        large = np.logaddexp(scaled, 0.5 * np.logaddexp(2 * scaled, 0.0))
        arcsinh = np.where(scaled < 0, np.arcsinh(np.exp(np.minimum(scaled, 0.0))), large)
        return np.asarray(np.sign(losses) * z2 * (half + arcsinh))

    def upper_mass(self, left: Array, right: Array) -> Array:
        """See ``LossPair``."""
        return self._mass(left, right, 1.0)

    def lower_mass(self, left: Array, right: Array) -> Array:
        """See ``LossPair``."""
        return self._mass(left, right, -1.0)

    def _mass(self, left: Array, right: Array, mean: float) -> Array:
        z, q = self.noise_multiplier, self.rate
        return (1 - q) * normal_mass(left / z, right / z) + q * normal_mass((left - mean) / z, (right - mean) / z)

    def ends(self, stds: float) -> tuple[float, float]:
        """See ``LossPair``."""
        return -stds * self.noise_multiplier, 1 + stds * self.noise_multiplier
