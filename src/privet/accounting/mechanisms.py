"""Releases beside the sampled Gaussian, each with the pairs that dominate it and their Renyi divergences.

An event states noise over the bound of one unit. What an adjacency makes of that is decided here and in
``accountants``, and nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privet.accounting import renyi
from privet.accounting.dominating_pairs import (
    FixedSizeExchange,
    LaplaceRemoval,
    LossPair,
    Mirrored,
    Mixture,
    PureRemoval,
    Removal,
    Replacement,
    Reversed,
)
from privet.accounting.renyi import SampledGaussian
from privet.mechanism.truncated import overflow_probability
from privet.vocabulary import Adjacency

Array = NDArray[np.float64]
Losses: TypeAlias = LossPair | Mixture


class Mechanism(Protocol):
    """One kind of release that needs numerical composition."""

    @property
    def noise_ratio(self) -> float:
        """Noise over the largest difference that one unit can make; what is far from 1 fits on no grid."""
        ...

    def refusal(self, adjacency: Adjacency) -> str | None:
        """Say why there is no bound under this adjacency, or None if there is."""
        ...

    def losses(self, adjacency: Adjacency) -> tuple[Losses, Losses]:
        """Return the dominating pair when the unit is removed, and when it is added."""
        ...

    def divergences(self, orders: Array, adjacency: Adjacency) -> Array:
        """Return the Renyi divergence at every order, the larger of the two directions."""
        ...


@dataclass(frozen=True, kw_only=True)
class TruncatedGaussian:
    """Gaussian noise on a Poisson sample of which at most ``max_batch_size`` records stay, chosen at random.

    Guarantee: let w be the probability that the other records alone fill the batch. If they do not, the release is a
    sampled Gaussian. If they do, the record enters with a probability a that does not depend on it and takes the place
    of another, so the sums differ by at most twice the bound from a common third one (Ganesh, 2025).
    """

    dataset_size: int
    rate: float
    max_batch_size: int
    noise_multiplier: float

    @property
    def full_probability(self) -> float:
        """Probability w that the other records alone fill the batch."""
        if self.max_batch_size > self.dataset_size - 1:
            return 0.0
        return overflow_probability(
            dataset_size=self.dataset_size - 1, rate=self.rate, max_batch_size=self.max_batch_size - 1
        )

    @property
    def full_rate(self) -> float:
        """Probability a that the record is in a batch which the others alone fill."""
        too_many = overflow_probability(
            dataset_size=self.dataset_size, rate=self.rate, max_batch_size=self.max_batch_size
        )
        return min(1.0, self.max_batch_size / self.dataset_size * too_many / self.full_probability)

    @property
    def noise_ratio(self) -> float:
        return self.noise_multiplier / 2

    def refusal(self, adjacency: Adjacency) -> None:
        """The pair of a full batch covers every change of one record."""
        return

    def losses(self, adjacency: Adjacency) -> tuple[Losses, Losses]:
        removed, added = _sampled_pairs(self.rate, self.noise_multiplier, adjacency)
        weight = self.full_probability
        if weight == 0 or self.full_rate == 0:
            return removed, added
        full, _ = _sampled_pairs(self.full_rate, self.noise_multiplier / 2, Adjacency.REPLACE_ONE)
        return (
            Mixture(branches=((1 - weight, removed), (weight, full))),
            Mixture(branches=((1 - weight, added), (weight, full))),
        )

    def divergences(self, orders: Array, adjacency: Adjacency) -> Array:
        replace = adjacency is Adjacency.REPLACE_ONE
        free = _sampled_divergences(orders, self.rate, self.noise_multiplier, replace=replace)
        weight = self.full_probability
        if weight == 0 or self.full_rate == 0:
            return free
        full = _sampled_divergences(orders, self.full_rate, self.noise_multiplier / 2, replace=True)
        away = -math.inf if weight == 1 else math.log1p(-weight)
        power = orders - 1
        return np.asarray(np.logaddexp(away + power * free, math.log(weight) + power * full) / power)


@dataclass(frozen=True, kw_only=True)
class FixedSizeGaussian:
    """Gaussian noise on a sample of fixed size without replacement."""

    rate: float
    noise_multiplier: float

    @property
    def noise_ratio(self) -> float:
        return self.noise_multiplier / 2

    def refusal(self, adjacency: Adjacency) -> str | None:
        """Only the exchange of a record keeps the number of records, on which the sampling rests."""
        if adjacency is Adjacency.REPLACE_ONE:
            return None
        return "Samples of fixed size are accounted under Adjacency.REPLACE_ONE only."

    def losses(self, adjacency: Adjacency) -> tuple[Losses, Losses]:
        pair = FixedSizeExchange(rate=self.rate, noise_multiplier=self.noise_multiplier)
        return pair, pair

    def divergences(self, orders: Array, adjacency: Adjacency) -> Array:
        return renyi.fixed_size_divergences(orders, rate=self.rate, noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True, kw_only=True)
class SampledLaplace:
    """Laplace noise over an l1 bound, on a Poisson sample or, at rate 1, on all the data."""

    rate: float
    noise_multiplier: float

    @property
    def noise_ratio(self) -> float:
        return self.noise_multiplier

    def refusal(self, adjacency: Adjacency) -> str | None:
        """An exchange has no pair here: its l1 sensitivity must be stated by whoever releases."""
        if adjacency is not Adjacency.REPLACE_ONE:
            return None
        return (
            "Laplace noise under Adjacency.REPLACE_ONE is not supported: state the noise over the sensitivity of an "
            "exchange (twice the bound of one unit) and account it under another adjacency."
        )

    def losses(self, adjacency: Adjacency) -> tuple[Losses, Losses]:
        removed = LaplaceRemoval(rate=self.rate, noise_multiplier=self.noise_multiplier)
        return removed, Mirrored(pair=removed)

    def divergences(self, orders: Array, adjacency: Adjacency) -> Array:
        return renyi.laplace_divergences(orders, rate=self.rate, noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True, kw_only=True)
class SampledPure:
    """A pure guarantee, on a Poisson sample or, at rate 1, on all the data."""

    rate: float
    epsilon: float

    @property
    def noise_ratio(self) -> float:
        return 1 / self.epsilon

    def refusal(self, adjacency: Adjacency) -> str | None:
        """Sampled pure releases are dominated by two atoms only when the unit's absence is one of the two worlds."""
        if adjacency is not Adjacency.REPLACE_ONE or self.rate == 1:
            return None
        return "Pure releases on Poisson samples are not supported under Adjacency.REPLACE_ONE. Account them unsampled."

    def pair(self, adjacency: Adjacency) -> PureRemoval:
        """Return the two atoms when the unit is removed; an exchange of units costs twice the epsilon."""
        factor = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
        return PureRemoval(rate=self.rate, epsilon=factor * self.epsilon)

    def losses(self, adjacency: Adjacency) -> tuple[Losses, Losses]:
        removed = self.pair(adjacency)
        return removed, Mirrored(pair=removed)

    def divergences(self, orders: Array, adjacency: Adjacency) -> Array:
        pair = self.pair(adjacency)
        return renyi.pure_divergences(orders, rate=pair.rate, epsilon=pair.epsilon)


def _sampled_pairs(rate: float, multiplier: float, adjacency: Adjacency) -> tuple[LossPair, LossPair]:
    if adjacency is Adjacency.REPLACE_ONE:
        both: LossPair = (
            Removal(rate=1.0, noise_multiplier=multiplier / 2)
            if rate == 1
            else Replacement(rate=rate, noise_multiplier=multiplier)
        )
        return both, both
    removed = Removal(rate=rate, noise_multiplier=multiplier)
    return (removed, removed) if rate == 1 else (removed, Reversed(pair=removed))


def _sampled_divergences(orders: Array, rate: float, multiplier: float, *, replace: bool) -> Array:
    if rate == 1:
        return renyi.gaussian_divergences(orders, (2.0 if replace else 1.0) / multiplier)
    step = SampledGaussian(rate=rate, noise_multiplier=multiplier, num_steps=1)
    return renyi.sampled_divergences(orders, step, replace=replace)
