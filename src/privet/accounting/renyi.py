"""Renyi divergences of the Poisson-sampled Gaussian, by direct integration.

Independent of the loss-distribution engine in every line: no grid of losses, no Fourier transform. The divergence of
order a is ``log E_Q[(P/Q)^a] / (a - 1)``, an integral of one smooth function over the real line, for which the plain
trapezoid rule converges geometrically (Trefethen and Weideman, 2014).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privet.accounting.releases import SampledGaussian

Array = NDArray[np.float64]

# Dense where the optimum of small losses lies (near 1), up to 1024 for tiny delta.
ORDERS: tuple[float, ...] = (
    *(1 + x / 200 for x in (3, 4, 5, 6, 8)),
    *(1 + x / 20 for x in range(1, 20)),
    *(2 + x / 10 for x in range(100)),
    *(float(x) for x in range(12, 64)),
    *(float(round(64 * 2 ** (x / 8))) for x in range(33)),
)
_TAIL_STDS = 12.0
_MAX_POINTS = 60_000
# Rounding of the sum, added on the safe side: it stays far below what any report prints, even after 1e9 steps.
_ROUNDING = 1e-14


def gaussian_divergences(orders: Array, signal_to_noise: float) -> Array:
    """Return the Renyi divergences of unit-variance Gaussians ``signal_to_noise`` apart: ``order * mu^2 / 2``."""
    return orders * (signal_to_noise * signal_to_noise / 2)


def sampled_divergences(orders: Array, release: SampledGaussian, *, replace: bool) -> Array:
    """Return the Renyi divergence of one step at every order, the larger of the two directions.

    Guarantee: for ``replace=False`` the pair is N(0, z^2) against (1-q) N(0, z^2) + q N(1, z^2); for ``replace=True``
    it is (1-q) N(0, z^2) + q N(-1, z^2) against (1-q) N(0, z^2) + q N(1, z^2). Both dominate Poisson sampling with
    norm bound 1. Orders whose integral would need too many points (multipliers below about 0.05) get the divergence
    without sampling, which is larger. Rounding is added, never subtracted.
    """
    q, z = release.rate, release.noise_multiplier
    # The integrand is analytic only within pi z^2 of the real line (zeros of the mixture), which limits the spacing.
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
