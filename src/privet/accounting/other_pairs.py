"""Pairs of distributions beside the sampled Gaussian: fixed-size samples, Laplace noise, pure guarantees, mixtures.

All but the mixture are pairs on the real line with one non-decreasing loss, like those of ``loss_pairs``. Where the
loss is flat, the mass behind it is an atom of the loss, which the discretisation keeps between its two neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privet.accounting.loss_pairs import LossPair, Removal

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Mirrored:
    """A pair with its roles exchanged, on the mirrored line so that the loss increases."""

    pair: LossPair

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
        """See ``LossPair``; the pairs mirrored here have ends that hold for both distributions."""
        low, high = self.pair.ends(stds)
        return -high, -low


@dataclass(frozen=True, kw_only=True)
class FixedSizeExchange:
    """One record is exchanged, under Gaussian noise on samples of a fixed size drawn without replacement.

    The profile is ``q * delta_G(log(1 + (e^eps - 1) / q))`` for eps >= 0 with the Gaussian of twice the signal, closed
    by symmetry for eps < 0 (Balle, Barthe and Gaboardi, 2018; Dong, Roth and Su, 2019). As a pair on the line: the
    sampled Gaussian above its point of loss zero, the reverse of it on the mirrored side, and the mass that is left
    over, alike in both distributions, in between. It equals its own reverse.

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
        """See ``LossPair``."""
        return np.asarray(np.sign(x) * self._half.loss(np.maximum(np.abs(x), 0.5)))

    def outcome(self, losses: Array) -> Array:
        """See ``LossPair``."""
        return np.asarray(np.where(losses < 0, -1.0, 1.0) * self._half.outcome(np.abs(losses)))

    def upper_mass(self, left: Array, right: Array) -> Array:
        """See ``LossPair``."""
        half = self._half
        above = half.upper_mass(np.maximum(left, 0.5), np.maximum(right, 0.5))
        below = half.lower_mass(np.maximum(-right, 0.5), np.maximum(-left, 0.5))
        return np.asarray(above + below + self._alike(left, right))

    def lower_mass(self, left: Array, right: Array) -> Array:
        """See ``LossPair``."""
        return self.upper_mass(-right, -left)

    def _alike(self, left: Array, right: Array) -> Array:
        half, tail = self._half, (np.array(0.5), np.array(np.inf))
        mass = max(0.0, 1.0 - float(half.upper_mass(*tail)) - float(half.lower_mass(*tail)))
        return np.asarray(mass * (np.clip(right, -0.5, 0.5) - np.clip(left, -0.5, 0.5)))

    def ends(self, stds: float) -> tuple[float, float]:
        """See ``LossPair``."""
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
class LaplaceRemoval:
    """P = (1-q) Lap(0, b) + q Lap(1, b) against Q = Lap(0, b): one unit is removed, noise ``b`` over the l1 bound."""

    rate: float
    noise_multiplier: float

    def loss(self, x: Array) -> Array:
        """See ``LossPair``."""
        ratio = np.clip(2 * x - 1, -1.0, 1.0) / self.noise_multiplier
        if self.rate == 1:
            return np.asarray(ratio)
        return np.asarray(np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + ratio))

    def outcome(self, losses: Array) -> Array:
        """See ``LossPair``."""
        # The loss is that of a Gaussian pair with another scale, cut off at both ends.
        ratio = Removal(rate=self.rate, noise_multiplier=1.0).outcome(losses) - 0.5
        x = (self.noise_multiplier * ratio + 1) / 2
        return np.where(x <= 0, -np.inf, np.where(x >= 1, np.inf, x))

    def upper_mass(self, left: Array, right: Array) -> Array:
        """See ``LossPair``."""
        b, q = self.noise_multiplier, self.rate
        return (1 - q) * self.lower_mass(left, right) + q * laplace_mass((left - 1) / b, (right - 1) / b)

    def lower_mass(self, left: Array, right: Array) -> Array:
        """See ``LossPair``."""
        return laplace_mass(left / self.noise_multiplier, right / self.noise_multiplier)

    def ends(self, stds: float) -> tuple[float, float]:
        """See ``LossPair``; exponential tails reach as far as the square of normal ones."""
        reach = self.noise_multiplier * (stds * stds / 2 + 3)
        return -reach, 1 + reach


@dataclass(frozen=True, kw_only=True)
class PureRemoval:
    """Randomised response, the worst mechanism of a pure guarantee, on a Poisson sample: two atoms of loss.

    Without sampling P is right with odds exp(epsilon) and Q wrong with the same odds; with sampling P is
    ``(1-q) Q + q P`` (Kairouz, Oh and Viswanath, 2015). The atoms sit at outcomes 0.25 and 0.75.
    """

    rate: float
    epsilon: float

    @property
    def losses(self) -> tuple[float, float]:
        """The loss of the less and of the more likely outcome."""
        q, e = self.rate, self.epsilon
        if q == 1:
            return -e, e
        away, into = math.log1p(-q), math.log(q)
        return float(np.logaddexp(away, into - e)), float(np.logaddexp(away, into + e))

    def loss(self, x: Array) -> Array:
        """See ``LossPair``."""
        low, high = self.losses
        return np.where(x < 0.5, low, high)

    def outcome(self, losses: Array) -> Array:
        """See ``LossPair``."""
        low, high = self.losses
        return np.where(losses <= low, -np.inf, np.where(losses >= high, np.inf, 0.5))

    def upper_mass(self, left: Array, right: Array) -> Array:
        """See ``LossPair``."""
        wrong = 1 / (1 + math.exp(self.epsilon)) if self.epsilon < 700 else 0.0
        up = (1 - self.rate) * wrong + self.rate * (1 - wrong)
        return self._mass(left, right, up)

    def lower_mass(self, left: Array, right: Array) -> Array:
        """See ``LossPair``."""
        return self._mass(left, right, 1 / (1 + math.exp(self.epsilon)) if self.epsilon < 700 else 0.0)

    def _mass(self, left: Array, right: Array, up: float) -> Array:
        low, high = (left < 0.25) & (right >= 0.25), (left < 0.75) & (right >= 0.75)
        return np.asarray((1 - up) * low + up * high)

    def ends(self, stds: float) -> tuple[float, float]:
        """See ``LossPair``."""
        return 0.0, 1.0


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """One of several pairs, chosen by a coin that both distributions share and that the observer may know.

    Attributes:
        branches: Probability and pair of each branch; the probabilities add up to 1.
    """

    branches: tuple[tuple[float, LossPair], ...]
