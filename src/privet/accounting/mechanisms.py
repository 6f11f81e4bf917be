"""Releases other than the sampled Gaussian, with their dominating pairs and their Renyi divergences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

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
from privet.errors import ArgumentError
from privet.mechanism.truncated import overflow_probability
from privet.vocabulary import Adjacency

Array = NDArray[np.float64]
Losses: TypeAlias = LossPair | Mixture


class Mechanism(Protocol):
    """A release that needs numerical composition.

    Attributes:
        noise_ratio: Noise over the largest change by one unit. A grid fits only if this is not far from 1.
    """

    @property
    def noise_ratio(self) -> float: ...

    def refusal(self, adjacency: Adjacency) -> str | None:
        """Return the reason why there is no bound under this adjacency; None if there is one."""
        ...

    def losses(self, adjacency: Adjacency) -> tuple[Losses, Losses]:
        """Return the dominating pair for a removed unit and the one for an added unit."""
        ...

    def divergences(self, orders: Array, adjacency: Adjacency) -> Array:
        """Return the Renyi divergence at every order, the larger of the two directions."""
        ...


def neighbour_distance(adjacency: Adjacency) -> float:
    """Return the distance of two neighbouring sums, at most, over the bound of one unit: 2 for an exchange, else 1."""
    if not isinstance(adjacency, Adjacency):
        raise ArgumentError(f"adjacency must be a privet Adjacency, got {adjacency!r} ({type(adjacency).__name__}).")
    return 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0


class NoiseOverBound:
    """A release whose multiplier is its noise over the largest change by one unit."""

    noise_multiplier: float

    @property
    def noise_ratio(self) -> float:
        return self.noise_multiplier


@dataclass(frozen=True, kw_only=True)
class _Sampled:
    """Noise of a multiple of the bound, on a share ``rate`` of the records."""

    rate: float
    noise_multiplier: float


class PoissonSampled:
    """A release on a Poisson sample or, at rate 1, on all records. Its exchange on a sample has no proven bound."""

    rate: float
    label: ClassVar[str]

    def refusal(self, adjacency: Adjacency) -> str | None:
        if adjacency is not Adjacency.REPLACE_ONE or self.rate == 1:
            return None
        return f"{self.label} on Poisson samples is not supported under Adjacency.REPLACE_ONE. Account it unsampled."


@dataclass(frozen=True, kw_only=True)
class TruncatedGaussian:
    """Gaussian noise on a Poisson sample that is truncated to ``max_batch_size`` random records.

    Guarantee: let w be the probability that the other records alone fill the batch. If they do not, the release is a
    sampled Gaussian. If they do, the record enters with a probability a that does not depend on it and replaces another
    record, so each sum differs by at most twice the bound from a common third sum (Ganesh, 2025).
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
        """Probability a that the record is in a batch that the others alone fill."""
        too_many = overflow_probability(
            dataset_size=self.dataset_size, rate=self.rate, max_batch_size=self.max_batch_size
        )
        return min(1.0, self.max_batch_size / self.dataset_size * too_many / self.full_probability)

    @property
    def noise_ratio(self) -> float:
        return self.noise_multiplier / 2

    def refusal(self, adjacency: Adjacency) -> None:
        return  # the pair of a full batch covers every change of one record

    def losses(self, adjacency: Adjacency) -> tuple[Losses, Losses]:
        removed, added = sampled_pairs(self.rate, self.noise_multiplier, adjacency)
        weight = self.full_probability
        if weight == 0 or self.full_rate == 0:
            return removed, added
        full, _ = sampled_pairs(self.full_rate, self.noise_multiplier / 2, Adjacency.REPLACE_ONE)
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
class FixedSizeGaussian(_Sampled):
    """Gaussian noise on a sample of fixed size without replacement."""

    @property
    def noise_ratio(self) -> float:
        return self.noise_multiplier / 2

    def refusal(self, adjacency: Adjacency) -> str | None:
        if adjacency is Adjacency.REPLACE_ONE:
            return None
        return "Samples of fixed size are accounted under Adjacency.REPLACE_ONE only."

    def losses(self, adjacency: Adjacency) -> tuple[Losses, Losses]:
        pair = FixedSizeExchange(rate=self.rate, noise_multiplier=self.noise_multiplier)
        return pair, pair

    def divergences(self, orders: Array, adjacency: Adjacency) -> Array:
        return renyi.fixed_size_divergences(orders, rate=self.rate, noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True, kw_only=True)
class SampledLaplace(NoiseOverBound, _Sampled):
    """Laplace noise over an l1 bound, on a Poisson sample or, at rate 1, on all records."""

    def refusal(self, adjacency: Adjacency) -> str | None:
        return adjacency.refused_exchange(
            "Laplace noise under Adjacency.REPLACE_ONE is not supported: state the noise over the sensitivity of an "
            "exchange (twice the bound of one unit) and account it under another adjacency."
        )

    def losses(self, adjacency: Adjacency) -> tuple[Losses, Losses]:
        removed = LaplaceRemoval(rate=self.rate, noise_multiplier=self.noise_multiplier)
        return removed, Mirrored(pair=removed)

    def divergences(self, orders: Array, adjacency: Adjacency) -> Array:
        return renyi.laplace_divergences(orders, rate=self.rate, noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True, kw_only=True)
class SampledPure(PoissonSampled):
    """A pure guarantee, on a Poisson sample or, at rate 1, on all records.

    On a sample two atoms dominate only if one of the two data sets lacks the unit, so an exchange is refused.
    """

    label: ClassVar[str] = "A pure release"

    rate: float
    epsilon: float

    @property
    def noise_ratio(self) -> float:
        return 1 / self.epsilon

    def pair(self, adjacency: Adjacency) -> PureRemoval:
        """Return the two atoms for a removed unit; an exchange costs twice the epsilon."""
        return PureRemoval(rate=self.rate, epsilon=neighbour_distance(adjacency) * self.epsilon)

    def losses(self, adjacency: Adjacency) -> tuple[Losses, Losses]:
        removed = self.pair(adjacency)
        return removed, Mirrored(pair=removed)

    def divergences(self, orders: Array, adjacency: Adjacency) -> Array:
        pair = self.pair(adjacency)
        return renyi.pure_divergences(orders, rate=pair.rate, epsilon=pair.epsilon)


def sampled_pairs(rate: float, multiplier: float, adjacency: Adjacency) -> tuple[LossPair, LossPair]:
    """Return the pairs of Gaussian noise on a Poisson sample, for a removed unit and for an added unit."""
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
