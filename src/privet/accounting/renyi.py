"""Renyi divergences of single releases, by direct integration.

This module shares no code with the loss distributions: no grid of losses, no Fourier transform. The divergence of order
a is ``log E_Q[(P/Q)^a] / (a - 1)``. For the Poisson-sampled Gaussian this is an integral of a smooth function over the
real line, for which the trapezoid rule converges geometrically (Trefethen and Weideman, 2014). For a bounded range
Gauss-Legendre panels shorter than the distance to the nearest singularity converge geometrically.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

Array = NDArray[np.float64]

# Dense near 1, where the optimum for small losses lies; up to 1024 for tiny delta.
ORDERS: tuple[float, ...] = (
    *(1 + x / 200 for x in (3, 4, 5, 6, 8)),
    *(1 + x / 20 for x in range(1, 20)),
    *(2 + x / 10 for x in range(100)),
    *(float(x) for x in range(12, 64)),
    *(float(round(64 * 2 ** (x / 8))) for x in range(33)),
)
_TAIL_STDS = 12.0
_MAX_POINTS = 60_000
# Bound on the rounding error of the sum, added for safety; negligible even after 1e9 steps.
_ROUNDING = 1e-14
_PANEL_ROUNDING = 1e-13
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_MAX_PANELS = 4096


@dataclass(frozen=True, kw_only=True)
class SampledGaussian:
    """``num_steps`` Gaussian releases on independent Poisson samples; 0 < rate < 1, 0 < noise_multiplier < inf."""

    rate: float
    noise_multiplier: float
    num_steps: int


def gaussian_divergences(orders: Array, signal_to_noise: float) -> Array:
    """Return the Renyi divergences of unit-variance Gaussians ``signal_to_noise`` apart: ``order * mu^2 / 2``."""
    return orders * (signal_to_noise * signal_to_noise / 2)


def sampled_divergences(orders: Array, release: SampledGaussian, *, replace: bool) -> Array:
    """Return the Renyi divergence of one step at every order, the larger of the two directions.

    Guarantee: for ``replace=False`` the pair is N(0, z^2) against (1-q) N(0, z^2) + q N(1, z^2); for ``replace=True``
    it is (1-q) N(0, z^2) + q N(-1, z^2) against (1-q) N(0, z^2) + q N(1, z^2). Both dominate Poisson sampling with
    norm bound 1. Orders whose integral needs too many points (multipliers below about 0.05) get the divergence without
    sampling, which is larger. A bound on the rounding error is added.
    """
    q, z = release.rate, release.noise_multiplier
    # The zeros of the mixture limit the spacing: the integrand is analytic within pi z^2 of the real line.
    spacing = min(z / 2, z * z / 2)
    reach = 2.0 if replace else 1.0
    feasible = (reach * orders + 2 * _TAIL_STDS * z + 2) / spacing <= _MAX_POINTS
    result = gaussian_divergences(orders, reach / z)
    if not feasible.any():
        return result
    right = reach * float(orders[feasible].max()) + _TAIL_STDS * z
    x = np.arange(-_TAIL_STDS * z - 1, right + spacing, spacing)
    log_p, log_q = _log_mixture(x, q, z, 1.0), _log_mixture(x, q if replace else 0.0, z, -1.0)
    log_dx = math.log(spacing)
    for index in np.flatnonzero(feasible):
        order = float(orders[index])
        upto = np.searchsorted(x, reach * order + _TAIL_STDS * z) + 1
        forward = _log_moment(order, log_p[:upto], log_q[:upto]) + log_dx
        backward = -math.inf if replace else _log_moment(order, log_q[:upto], log_p[:upto]) + log_dx
        result[index] = min(result[index], (max(0.0, forward, backward) + _ROUNDING) / (order - 1))
    return result


def records_divergences(orders: Array, *, rate: float, num_records: int, noise_multiplier: float) -> Array:
    """Return the divergences of Gaussian noise on a sample that has a binomial number of a unit's records.

    Guarantee: the pair is N(0, z^2) against sum_j Bin(k, q)(j) N(j, z^2); the larger of the two directions. As a
    polynomial in exp(x / z^2) the mixture has real zeros only (a binomial polynomial under the multiplier sequence
    exp(-j^2 / 2 z^2)), so the integrand is as smooth as that of one record. Orders that need too many points get the
    divergence without sampling, which is larger.
    """
    z, k = noise_multiplier, num_records
    spacing = min(z / 2, z * z / 2)
    feasible = (k * orders + 2 * _TAIL_STDS * z + 2) / spacing <= _MAX_POINTS
    result = gaussian_divergences(orders, k / z)
    if not feasible.any():
        return result
    x = np.arange(-_TAIL_STDS * z - 1, k * float(orders[feasible].max()) + _TAIL_STDS * z + spacing, spacing)
    log_q = _log_mixture(x, 0.0, z, 0.0)
    ratio = np.full(x.shape, -np.inf)
    for j in range(k + 1):
        ways = math.lgamma(k + 1) - math.lgamma(j + 1) - math.lgamma(k - j + 1)
        weight = ways + j * math.log(rate) + (k - j) * math.log1p(-rate)
        ratio = np.logaddexp(ratio, weight + j * (2 * x - j) / (2 * z * z))
    log_p, log_dx = log_q + ratio, math.log(spacing)
    for index in np.flatnonzero(feasible):
        order = float(orders[index])
        upto = np.searchsorted(x, k * order + _TAIL_STDS * z) + 1
        forward = _log_moment(order, log_p[:upto], log_q[:upto]) + log_dx
        backward = _log_moment(order, log_q[:upto], log_p[:upto]) + log_dx
        moment = max(0.0, forward, backward) + _ROUNDING
        result[index] = min(result[index], moment / (order - 1))
    return result


def _log_mixture(x: Array, q: float, z: float, mean: float) -> Array:
    base = -0.5 * (x / z) ** 2 - math.log(z * math.sqrt(2 * math.pi))
    if q == 0:
        return base
    ratio = (2 * mean * x - mean * mean) / (2 * z * z)
    return np.asarray(base + np.logaddexp(math.log1p(-q), math.log(q) + ratio))


def _log_moment(order: float, log_p: Array, log_q: Array) -> float:
    exponent = order * log_p + (1 - order) * log_q
    peak = float(exponent.max())
    return peak + math.log(float(np.exp(exponent - peak).sum()))


def fixed_size_divergences(orders: Array, *, rate: float, noise_multiplier: float) -> Array:
    """Return the divergences of Gaussian noise on a fixed-size sample when one record is exchanged.

    Guarantee: the divergences of the symmetric closure of the sampled Gaussian with twice the signal. Orders that need
    too many panels (multipliers below about 0.1) get the divergence without sampling, which is larger.
    """
    z = noise_multiplier / 2
    result = gaussian_divergences(orders, 1 / z)
    width = min(z, 3 * z * z)
    feasible = orders[(orders + _TAIL_STDS * z) / width <= _MAX_PANELS]
    if not len(feasible):
        return result
    x, log_weights = _panels(0.5, float(feasible.max()) + _TAIL_STDS * z, width)
    log_p, log_q = _log_mixture(x, rate, z, 1.0), _log_mixture(x, 0.0, z, 1.0)
    low = float(ndtr(-0.5 / z))
    # The remaining mass, at loss zero, is equal in both distributions.
    common = max(0.0, 1 - low - (1 - rate) * low - rate * float(ndtr(0.5 / z)))
    for index, order in enumerate(orders[: len(feasible)].tolist()):
        above = float(logsumexp(order * log_p + (1 - order) * log_q + log_weights))
        below = float(logsumexp(order * log_q + (1 - order) * log_p + log_weights))
        whole = float(logsumexp([above, below, math.log(common) if common > 0 else -math.inf]))
        result[index] = min(result[index], (max(0.0, whole) + _PANEL_ROUNDING) / (order - 1))
    return result


def laplace_divergences(orders: Array, *, rate: float, noise_multiplier: float) -> Array:
    """Return the divergences of Laplace noise on a Poisson sample, the larger of the two directions.

    Guarantee: orders that need too many panels get the largest loss, which bounds every divergence.
    """
    b, q = noise_multiplier, rate
    away, into = (-math.inf if q == 1 else math.log1p(-q)), math.log(q)
    low, high = (float(np.logaddexp(away, into + sign / b)) for sign in (-1, 1))
    result = np.full_like(orders, high)
    for index, order in enumerate(orders.tolist()):
        width = b / (2 + order / 2)
        if 1 / width > _MAX_PANELS:
            continue
        x, log_weights = _panels(0.0, 1.0, width)
        losses = np.logaddexp(away, into + (2 * x - 1) / b)
        inside = log_weights - x / b - math.log(2 * b)
        moments = [
            float(logsumexp([power * low - math.log(2), power * high - 1 / b - math.log(2), logsumexp(each)]))
            for power in (order, 1 - order)
            for each in [power * losses + inside]
        ]
        result[index] = min(high, (max(0.0, *moments) + _PANEL_ROUNDING) / (order - 1))
    return result


def pure_divergences(orders: Array, *, rate: float, epsilon: float) -> Array:
    """Return the divergences of randomised response on a Poisson sample, the larger of the two directions; exact."""
    away, into = (-math.inf if rate == 1 else math.log1p(-rate)), math.log(rate)
    low, high = (float(np.logaddexp(away, into + sign * epsilon)) for sign in (-1, 1))
    log_wrong = -float(np.logaddexp(0.0, epsilon))
    moments = [
        np.logaddexp(log_wrong + epsilon + power * low, log_wrong + power * high) for power in (orders, 1 - orders)
    ]
    return np.minimum(high, (np.maximum(0.0, np.maximum(*moments)) + _ROUNDING) / (orders - 1))


def _panels(low: float, high: float, width: float) -> tuple[Array, Array]:
    """Return Gauss-Legendre nodes and the logarithms of their weights on panels of at most ``width``."""
    edges = np.linspace(low, high, math.ceil((high - low) / width) + 1)
    half = np.diff(edges)[:, None] / 2
    nodes = edges[:-1, None] + half * (1 + _NODES)
    return nodes.ravel(), np.log(half * _WEIGHTS).ravel()
