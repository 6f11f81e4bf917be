"""Noise of density ``exp(-length / scale)``: its privacy loss in closed form, in any dimension.

Let the sum move by ``s`` scales. The loss at a point is the difference of its distances to the two centres, so it is
constant on hyperboloids with these foci. In prolate spheroidal coordinates the angle ``t`` (the loss is ``s sin t``)
separates from the other coordinates, whose integral is a Bessel function. Up to a constant, the density of ``t`` is

    ``exp(s sin(t) / 2) * cos(t)^(d - 2) * (a + cos(t)^2)``,   ``a = (2 (d - 1) / s) * K_{d/2}(s/2) / K_{d/2-1}(s/2)``.

Under the other centre ``t`` has the mirrored density. The noise is log-concave and isotropic, so this single pair, at
full sensitivity, dominates every other one. In one dimension it is the ordinary Laplace mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import kve, logsumexp

from privet.accounting.dominating_pairs import Mirrored, Removal, SampledPair
from privet.accounting.mechanisms import NoiseOverBound, PoissonSampled, neighbour_distance
from privet.vocabulary import Adjacency

Array = NDArray[np.float64]

_RIGHT = math.pi / 2
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
_ROUNDING = 1e-13
_MOST_NODES = 1 << 21
# A density below exp(-700) of the largest one underflows in double precision and counts as zero.
_UNDERFLOW = 700.0
_RECURRED = 4096


def bessel_ratio(order: float, z: float) -> float:
    """Return ``K_order(z) / K_{order-1}(z)`` for whole and half orders of one half and more.

    The upward recurrence is stable. For a large order it starts a few thousand steps below, from a bound (Amos, 1974)
    whose error it contracts.
    """
    first = 0.5 if order % 1 else 1.0
    steps = round(order - first)
    if steps > _RECURRED:
        first = order - _RECURRED
        ratio = (first - 0.5 + math.hypot(first - 0.5, z)) / z
    else:
        ratio = 1.0 if order % 1 else float(kve(1, z) / kve(0, z))
    at = first
    while at < order - 0.25:
        ratio = 2 * at / z + 1 / ratio
        at += 1
    return ratio


@dataclass(frozen=True, kw_only=True)
class Angle:
    """The densities of the angle under both centres, for a shift of ``shift`` scales in ``dimension`` >= 2."""

    shift: float
    dimension: int

    @cached_property
    def _constant(self) -> float:
        return bessel_ratio(self.dimension / 2, self.shift / 2) * 2 * (self.dimension - 1) / self.shift

    def log_shape(self, t: Array) -> Array:
        """Return the logarithm of the common factor of both densities, up to a constant."""
        cosine = np.maximum(np.cos(t), 1e-300)
        return np.asarray((self.dimension - 2) * np.log(cosine) + np.log1p(cosine * cosine / self._constant))

    def peak(self, tilt: float) -> float:
        """Return the angle at which ``exp(tilt sin t)`` times the shape has its only maximum."""
        if tilt < 0:
            return -self.peak(-tilt)
        low, high = 0.0, 1.0
        for _ in range(60):
            u = (low + high) / 2
            rest = max((1 - u) * (1 + u), 1e-300)
            slope = tilt - (self.dimension - 2) * u / rest - 2 * u / (self._constant + rest)
            low, high = (u, high) if slope > 0 else (low, u)
        return math.asin(min(1.0, low))

    def reach(self, tilt: float, drop: float) -> tuple[float, float]:
        """Return angles outside which the tilted density is below ``exp(-drop)`` of its peak."""
        top = self.peak(tilt)

        def log_density(t: float) -> float:
            cosine = max(math.cos(t), 1e-300)
            shape = (self.dimension - 2) * math.log(cosine) + math.log1p(cosine * cosine / self._constant)
            return tilt * math.sin(t) + shape

        floor = log_density(top) - drop
        return tuple(_edge(log_density, top, side * _RIGHT, floor) for side in (-1, 1))  # type: ignore[return-value]

    def width(self, tilt: float) -> float:
        """Return a panel width at which the eight-point rule resolves the tilted density."""
        return 0.5 / math.sqrt(self.dimension + 2 * abs(tilt))

    @cached_property
    def log_total(self) -> float:
        """The logarithm of the integral of the density under the shifted centre."""
        low, high = self.reach(self.shift / 2, _UNDERFLOW)
        t, log_weights = panels(low, high, self.width(self.shift / 2))
        return float(logsumexp(self.shift / 2 * np.sin(t) + self.log_shape(t) + log_weights))

    def mass(self, left: Array, right: Array) -> Array:
        """Return the mass between angles under the centre that favours large angles."""
        tilt = self.shift / 2
        low, high = self.reach(tilt, _UNDERFLOW)
        left, right = np.clip(left, low, high), np.clip(right, low, high)
        half = (right - left) / 2
        t = (left + half)[..., None] + half[..., None] * _NODES
        density = np.exp(tilt * np.sin(t) + self.log_shape(t) - self.log_total)
        masses = np.atleast_1d(np.asarray((density @ _WEIGHTS) * half))
        lefts, rights = np.broadcast_to(left, masses.shape), np.broadcast_to(right, masses.shape)
        for index in np.flatnonzero(2 * np.atleast_1d(half) > self.width(tilt)):
            t, log_weights = panels(float(lefts[index]), float(rights[index]), self.width(tilt))
            masses[index] = math.exp(
                float(logsumexp(tilt * np.sin(t) + self.log_shape(t) + log_weights)) - self.log_total
            )
        return masses.reshape(np.shape(half))


def _edge(log_density: Callable[[float], float], top: float, end: float, floor: float) -> float:
    if log_density(end) >= floor:
        return end
    inside, outside = top, end
    for _ in range(50):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if log_density(middle) < floor else (middle, outside)
    return outside


def panels(low: float, high: float, width: float) -> tuple[Array, Array]:
    """Return Gauss-Legendre nodes and the logarithms of their weights on panels of at most ``width``."""
    edges = np.linspace(low, high, max(1, math.ceil((high - low) / width)) + 1)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (1 + _NODES)).ravel(), np.log(np.maximum(half * _WEIGHTS, 1e-300)).ravel()


@dataclass(frozen=True, kw_only=True)
class RadialRemoval(SampledPair):
    """The dominating pair for a removed unit; P' and Q are the two distributions of the angle, which is the outcome.

    Attributes:
        rate: Sampling probability q.
        scale: Scale of the noise over the sensitivity.
        dimension: Number of coordinates, 2 or more.
    """

    rate: float
    scale: float
    dimension: int

    @cached_property
    def _angle(self) -> Angle:
        return Angle(shift=1 / self.scale, dimension=self.dimension)

    def unsampled_loss(self, x: Array) -> Array:
        return np.asarray(np.sin(np.clip(x, -_RIGHT, _RIGHT)) / self.scale)

    def outcome(self, losses: Array) -> Array:
        # Sampling changes the loss as it changes that of a Gaussian pair with unit noise.
        plain = Removal(rate=self.rate, noise_multiplier=1.0).outcome(losses) - 0.5
        sine = plain * self.scale
        inside = np.arcsin(np.clip(sine, -1.0, 1.0))
        return np.where(sine <= -1, -np.inf, np.where(sine >= 1, np.inf, inside))

    def unsampled_mass(self, left: Array, right: Array) -> Array:
        return self._angle.mass(left, right)

    def lower_mass(self, left: Array, right: Array) -> Array:
        return self._angle.mass(-np.asarray(right), -np.asarray(left))

    def ends(self, stds: float) -> tuple[float, float]:
        # these ends hold for both distributions
        tilt = 1 / (2 * self.scale)
        top = self._angle.peak(tilt)
        largest = tilt * math.sin(top) + float(self._angle.log_shape(np.array(top))) - self._angle.log_total
        # Outside the ends the density is below exp(-drop) of the largest, over a length of at most pi.
        high = self._angle.reach(tilt, stds * stds / 2 + math.log(8 * stds) + max(0.0, largest))[1]
        return -high, high


@dataclass(frozen=True, kw_only=True)
class SampledRadialLaplace(NoiseOverBound, PoissonSampled):
    """Noise of density ``exp(-length / scale)`` on a Poisson sample or, at rate 1, on all records.

    Attributes:
        rate: Sampling probability.
        noise_multiplier: Standard deviation of a coordinate over the bound: ``sqrt(dimension + 1)`` scales.
        dimension: Number of coordinates, 2 or more.
    """

    rate: float
    noise_multiplier: float
    dimension: int
    label: ClassVar[str] = "L2Laplace"

    def pair(self, adjacency: Adjacency) -> RadialRemoval:
        """Return the dominating pair; an exchange moves the sum twice as far."""
        scale = self.noise_multiplier / math.sqrt(self.dimension + 1)
        return RadialRemoval(rate=self.rate, scale=scale / neighbour_distance(adjacency), dimension=self.dimension)

    def losses(self, adjacency: Adjacency) -> tuple[RadialRemoval, RadialRemoval | Mirrored]:
        removed = self.pair(adjacency)  # at rate 1 the pair equals its own reverse
        return (removed, removed) if self.rate == 1 else (removed, Mirrored(pair=removed))

    def divergences(self, orders: Array, adjacency: Adjacency) -> Array:
        """Return the divergences; an order that needs too many nodes gets the largest loss, which bounds all orders."""
        pair = self.pair(adjacency)
        shift = 1 / pair.scale
        angle = Angle(shift=shift, dimension=self.dimension)
        away, into = (-math.inf if self.rate == 1 else math.log1p(-self.rate)), math.log(self.rate)
        result = np.full_like(orders, float(np.logaddexp(away, into + shift)))
        for index, order in enumerate(orders.tolist()):
            tilt = (order - 0.5) * shift
            width = angle.width(tilt)
            # the shape is symmetric, so the lower end is the mirror image of the upper end
            end = angle.reach(tilt, 60.0)[1]
            if 2 * end / width * len(_NODES) > _MOST_NODES:
                continue
            t, log_weights = panels(-end, end, width)
            plain = shift * np.sin(t)
            losses = np.logaddexp(away, into + plain)
            base = log_weights - plain / 2 + angle.log_shape(t) - angle.log_total
            moments = [float(logsumexp(power * losses + base)) for power in (order, 1 - order)]
            result[index] = min(result[index], (max(0.0, *moments) + _ROUNDING) / (order - 1))
        return result
