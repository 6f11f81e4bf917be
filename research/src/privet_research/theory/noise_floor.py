"""A lower bound on the cost of any noise with pure epsilon, for the problem that Xiang, Yang and Li (2019) pose.

They minimise the mean of ``sum_i weight_i |noise_i|`` over densities with ``p(z) <= exp(epsilon) p(z + u)`` for every
``|u| <= 1``. Privet solves it within two families; this bound says how far any other noise could be better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln

from privet import checks
from privet.errors import ArgumentError


def least_noise_cost(weights: Sequence[float], *, epsilon: float) -> float:
    """Return a lower bound on the mean weighted absolute noise of every permitted density.

    Guarantee: from its largest value ``P`` a density falls by at most ``exp(epsilon)`` in a step of length one, so
    ``1 >= P exp(-epsilon)`` times the integral of ``exp(-epsilon |z|)``, which bounds ``P``. Among all densities of at
    most ``P`` the cost is least for the uniform one on ``sum_i weight_i |z_i| <= R``, where it is ``d / (d + 1) R``.
    The noise of some coordinates alone is permitted too, so the largest bound over the heaviest coordinates counts.

    Args:
        weights: Of the coordinates; zero or more, at least one of them positive.
        epsilon: The pure guarantee at sensitivity one in the Euclidean norm.
    """
    bound = checks.positive("epsilon", epsilon)
    values = np.sort(np.asarray(weights, dtype=np.float64))[::-1]
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all() or values[-1] < 0 or not values[0]:
        raise ArgumentError(
            "weights must be a vector of finite numbers of zero or more, at least one of them positive."
        )
    values = values[values > 0]
    sizes = np.arange(1, len(values) + 1)
    # Logarithms: of the volume of the unit ball, of 1 / P at least, and of (2 R)^d.
    ball = sizes / 2 * math.log(math.pi) - gammaln(sizes / 2 + 1)
    spread = ball + gammaln(sizes + 1) - sizes * math.log(bound) - bound
    twice = (spread + gammaln(sizes + 1) + np.cumsum(np.log(values))) / sizes
    return float(np.max(sizes / (sizes + 1) * np.exp(twice) / 2))
