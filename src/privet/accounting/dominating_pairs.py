"""Dominating pairs of single releases, and their masses between given privacy losses.

The privacy loss is ``L(x) = log P(x) / Q(x)``. Every pair except a mixture has a non-decreasing loss on the real line,
so the masses of P and Q between two losses are differences of distribution functions, in closed form. An interval of
constant loss is an atom of the loss distribution; the discretisation puts it between the two neighbouring grid points.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
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
        """Return the outcome of each loss; minus or plus infinity outside the range of losses."""
        ...

    def upper_mass(self, left: Array, right: Array) -> Array:
        """Return the mass of P between outcomes."""
        ...

    def lower_mass(self, left: Array, right: Array) -> Array:
        """Return the mass of Q between outcomes."""
        ...

    def ends(self, stds: float) -> tuple[float, float]:
        """Return outcomes outside which P has mass at most 2 Phi(-stds)."""
        ...


def normal_mass(left: Array, right: Array) -> Array:
    """Return the standard normal mass of intervals, accurate in both tails."""
    flip = left + right > 0
    return np.asarray(ndtr(np.where(flip, -left, right)) - ndtr(np.where(flip, -right, left)))


class SampledPair(ABC):
    """P = (1-q) Q + q P' against Q, for a release with the pair (P', Q) on a Poisson sample of rate q."""

    rate: float

    @abstractmethod
    def unsampled_loss(self, x: Array) -> Array:
        """Return the loss between P' and Q."""

    @abstractmethod
    def unsampled_mass(self, left: Array, right: Array) -> Array:
        """Return the mass of P' between outcomes."""

    @abstractmethod
    def lower_mass(self, left: Array, right: Array) -> Array: ...

    def loss(self, x: Array) -> Array:
        plain = np.asarray(self.unsampled_loss(x))
        if self.rate == 1:
            return plain
        return np.asarray(np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + plain))

    def upper_mass(self, left: Array, right: Array) -> Array:
        with_unit = self.unsampled_mass(left, right)
        return with_unit if self.rate == 1 else (1 - self.rate) * self.lower_mass(left, right) + self.rate * with_unit


@dataclass(frozen=True, kw_only=True)
class Removal(SampledPair):
    """P = (1-q) N(0, z^2) + q N(1, z^2) against Q = N(0, z^2): one unit is removed. With rate 1: a plain Gaussian."""

    rate: float
    noise_multiplier: float

    def unsampled_loss(self, x: Array) -> Array:
        return (2 * x - 1) / (2 * self.noise_multiplier * self.noise_multiplier)

    def outcome(self, losses: Array) -> Array:
        q = self.rate
        if q == 1:
            ratio = losses
        else:
            with np.errstate(divide="ignore", over="ignore"):
                small = np.log(np.maximum((np.expm1(np.minimum(losses, 1.0)) + q) / q, 0.0))
            large = losses - math.log(q) + np.log1p(-(1 - q) * np.exp(-np.maximum(losses, 1.0)))
            ratio = np.where(losses > 1, large, small)
        return self.noise_multiplier * self.noise_multiplier * ratio + 0.5

    def unsampled_mass(self, left: Array, right: Array) -> Array:
        return normal_mass((left - 1) / self.noise_multiplier, (right - 1) / self.noise_multiplier)

    def lower_mass(self, left: Array, right: Array) -> Array:
        return normal_mass(left / self.noise_multiplier, right / self.noise_multiplier)

    def ends(self, stds: float) -> tuple[float, float]:
        z = self.noise_multiplier
        return (1.0 if self.rate == 1 else 0.0) - stds * z, 1 + stds * z


@dataclass(frozen=True, kw_only=True)
class Mirrored:
    """The pair (Q, P), on the mirrored line so that the loss increases."""

    pair: LossPair

    def loss(self, x: Array) -> Array:
        return -self.pair.loss(-x)

    def outcome(self, losses: Array) -> Array:
        return -self.pair.outcome(-losses)

    def upper_mass(self, left: Array, right: Array) -> Array:
        return self.pair.lower_mass(-right, -left)

    def lower_mass(self, left: Array, right: Array) -> Array:
        return self.pair.upper_mass(-right, -left)

    def ends(self, stds: float) -> tuple[float, float]:
        """Return the mirrored ends; correct for pairs whose ends hold for both distributions."""
        low, high = self.pair.ends(stds)
        return -high, -low


class NormalPair(LossPair, Protocol):
    """A pair whose second distribution is normal around zero."""

    @property
    def noise_multiplier(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Reversed(Mirrored):
    """The mirrored pair of a removal such as :class:`Removal`: one unit is added."""

    pair: NormalPair

    def ends(self, stds: float) -> tuple[float, float]:
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
        z2, away, into = self.noise_multiplier * self.noise_multiplier, math.log1p(-self.rate), math.log(self.rate)
        above = np.logaddexp(away, into + (2 * x - 1) / (2 * z2))
        below = np.logaddexp(away, into - (2 * x + 1) / (2 * z2))
        return np.asarray(above - below)

    def outcome(self, losses: Array) -> Array:
        """Solve the quadratic in exp(x / z^2) with hyperbolic functions, which cannot overflow."""
        z2 = self.noise_multiplier * self.noise_multiplier
        half = np.abs(losses) / 2
        with np.errstate(divide="ignore"):
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
        scaled = math.log1p(-self.rate) - math.log(self.rate) + 1 / (2 * z2) + log_sinh
        large = np.logaddexp(scaled, 0.5 * np.logaddexp(2 * scaled, 0.0))
        arcsinh = np.where(scaled < 0, np.arcsinh(np.exp(np.minimum(scaled, 0.0))), large)
        return np.asarray(np.sign(losses) * z2 * (half + arcsinh))

    def upper_mass(self, left: Array, right: Array) -> Array:
        return self._mass(left, right, 1.0)

    def lower_mass(self, left: Array, right: Array) -> Array:
        return self._mass(left, right, -1.0)

    def _mass(self, left: Array, right: Array, mean: float) -> Array:
        z, q = self.noise_multiplier, self.rate
        return (1 - q) * normal_mass(left / z, right / z) + q * normal_mass((left - mean) / z, (right - mean) / z)

    def ends(self, stds: float) -> tuple[float, float]:
        return -stds * self.noise_multiplier, 1 + stds * self.noise_multiplier


@dataclass(frozen=True, kw_only=True)
class FixedSizeExchange:
    """One record is exchanged, under Gaussian noise on samples of a fixed size drawn without replacement.

    The profile is ``q * delta_G(log(1 + (e^eps - 1) / q))`` for eps >= 0 with the Gaussian of twice the signal, closed
    by symmetry for eps < 0 (Balle, Barthe and Gaboardi, 2018; Dong, Roth and Su, 2019). As a pair on the line it is the
    sampled Gaussian above its point of loss zero, its reverse on the mirrored side, and between them the remaining
    mass, which is equal in both distributions. The pair equals its own reverse.

    Attributes:
        rate: Batch size over data set size.
        noise_multiplier: Noise over the norm bound of one record (not over the sensitivity of an exchange).
    """

    rate: float
    noise_multiplier: float

    @property
    def _half(self) -> Removal:
        return Removal(rate=self.rate, noise_multiplier=self.noise_multiplier / 2)

    def loss(self, x: Array) -> Array:
        return np.asarray(np.sign(x) * self._half.loss(np.maximum(np.abs(x), 0.5)))

    def outcome(self, losses: Array) -> Array:
        return np.asarray(np.where(losses < 0, -1.0, 1.0) * self._half.outcome(np.abs(losses)))

    def upper_mass(self, left: Array, right: Array) -> Array:
        half = self._half
        above = half.upper_mass(np.maximum(left, 0.5), np.maximum(right, 0.5))
        below = half.lower_mass(np.maximum(-right, 0.5), np.maximum(-left, 0.5))
        return np.asarray(above + below + self._common_mass(left, right))

    def lower_mass(self, left: Array, right: Array) -> Array:
        return self.upper_mass(-right, -left)

    def _common_mass(self, left: Array, right: Array) -> Array:
        half, tail = self._half, (np.array(0.5), np.array(np.inf))
        mass = max(0.0, 1.0 - float(half.upper_mass(*tail)) - float(half.lower_mass(*tail)))
        return np.asarray(mass * (np.clip(right, -0.5, 0.5) - np.clip(left, -0.5, 0.5)))

    def ends(self, stds: float) -> tuple[float, float]:
        end = 1 + stds * self.noise_multiplier / 2
        return -end, end


def laplace_mass(left: Array, right: Array) -> Array:
    """Return the standard Laplace mass of intervals, accurate in both tails."""
    with np.errstate(invalid="ignore"):
        flip = left + right > 0
    return _laplace_cdf(np.where(flip, -left, right)) - _laplace_cdf(np.where(flip, -right, left))


def _laplace_cdf(x: Array) -> Array:
    tail = 0.5 * np.exp(-np.abs(x))
    return np.where(x < 0, tail, 1.0 - tail)


@dataclass(frozen=True, kw_only=True)
class LaplaceRemoval(SampledPair):
    """P = (1-q) Lap(0, b) + q Lap(1, b) against Q = Lap(0, b): one unit is removed, noise ``b`` over the l1 bound."""

    rate: float
    noise_multiplier: float

    def unsampled_loss(self, x: Array) -> Array:
        return np.asarray(np.clip(2 * x - 1, -1.0, 1.0) / self.noise_multiplier)

    def outcome(self, losses: Array) -> Array:
        # The loss is that of a Gaussian pair with another scale, constant beyond both centres.
        ratio = Removal(rate=self.rate, noise_multiplier=1.0).outcome(losses) - 0.5
        x = (self.noise_multiplier * ratio + 1) / 2
        return np.where(x <= 0, -np.inf, np.where(x >= 1, np.inf, x))

    def unsampled_mass(self, left: Array, right: Array) -> Array:
        return laplace_mass((left - 1) / self.noise_multiplier, (right - 1) / self.noise_multiplier)

    def lower_mass(self, left: Array, right: Array) -> Array:
        return laplace_mass(left / self.noise_multiplier, right / self.noise_multiplier)

    def ends(self, stds: float) -> tuple[float, float]:
        # an exponential tail reaches as far as the square of a normal one
        reach = self.noise_multiplier * (stds * stds / 2 + 3)
        return -reach, 1 + reach


@dataclass(frozen=True, kw_only=True)
class PureRemoval:
    """Randomised response, the worst mechanism of a pure guarantee, on a Poisson sample: two atoms of loss.

    Without sampling P answers right with odds exp(epsilon) and Q answers wrong with the same odds; with sampling P is
    ``(1-q) Q + q P`` (Kairouz, Oh and Viswanath, 2015). The atoms are at outcomes 0.25 and 0.75.
    """

    rate: float
    epsilon: float

    @property
    def losses(self) -> tuple[float, float]:
        """The losses of the two outcomes, the smaller first."""
        q, e = self.rate, self.epsilon
        if q == 1:
            return -e, e
        away, into = math.log1p(-q), math.log(q)
        return float(np.logaddexp(away, into - e)), float(np.logaddexp(away, into + e))

    def loss(self, x: Array) -> Array:
        low, high = self.losses
        return np.where(x < 0.5, low, high)

    def outcome(self, losses: Array) -> Array:
        low, high = self.losses
        return np.where(losses <= low, -np.inf, np.where(losses >= high, np.inf, 0.5))

    def upper_mass(self, left: Array, right: Array) -> Array:
        wrong = 1 / (1 + math.exp(self.epsilon)) if self.epsilon < 700 else 0.0
        up = (1 - self.rate) * wrong + self.rate * (1 - wrong)
        return self._mass(left, right, up)

    def lower_mass(self, left: Array, right: Array) -> Array:
        return self._mass(left, right, 1 / (1 + math.exp(self.epsilon)) if self.epsilon < 700 else 0.0)

    def _mass(self, left: Array, right: Array, up: float) -> Array:
        low, high = (left < 0.25) & (right >= 0.25), (left < 0.75) & (right >= 0.75)
        return np.asarray((1 - up) * low + up * high)

    def ends(self, stds: float) -> tuple[float, float]:
        return 0.0, 1.0


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """A random choice among several pairs, common to both distributions and visible to the observer.

    Attributes:
        branches: The probability and the pair of each branch; the probabilities sum to 1.
    """

    branches: tuple[tuple[float, LossPair], ...]
