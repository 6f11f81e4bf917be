"""The exponential noise of least cost for coordinates of different weight.

The cost is the mean of ``sum_i weight_i |noise_i|`` at a given pure guarantee. Independent noise is optimal with rates
proportional to the cube root of the weights. Block norms are at least as good: coordinates of similar weight share a
block. In the order of weights the best partition has consecutive blocks; dynamic programming finds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from privet import checks
from privet.errors import ArgumentError
from privet.mechanism.laplace import BlockL2, ProductLaplace

Array = NDArray[np.float64]
MAX_EXACT = 4096
# Smaller weights are raised to this share of the largest weight: a coordinate of weight zero still needs finite noise.
_LEAST_SHARE = 1e-12


def optimal_product_laplace(weights: Sequence[float], *, epsilon: float) -> ProductLaplace:
    """Return the independent Laplace noise of least weighted cost at a pure epsilon per release.

    Edge cases: zero weights are raised to 1e-12 of the largest; negative, NaN, infinite or all-zero ones are refused.
    """
    roots = np.cbrt(_checked(weights))
    piece = ProductLaplace(sizes=tuple((roots.max() / roots).tolist()), noise_multiplier=1.0)
    return piece.with_multiplier(piece.pure_epsilon / checks.positive("epsilon", epsilon))


def optimal_block_l2(weights: Sequence[float], *, epsilon: float, max_exact: int = MAX_EXACT) -> BlockL2:
    """Return the block noise of least weighted cost at a pure epsilon per release.

    Args:
        weights: The weight of each coordinate in the cost, in the flat order; zero or more.
        epsilon: The pure guarantee of one release.
        max_exact: Up to this many coordinates the optimal partition is found, in quadratic time. For more coordinates
            the blocks begin and end at this many candidate positions, evenly spaced by rank and by logarithm of weight.

    Guarantee: the guarantee holds for every partition; only the cost depends on the partition.
    Edge cases: as in :func:`optimal_product_laplace`.
    """
    values = _checked(weights)
    order = np.argsort(-values, kind="stable")
    ends = _block_ends(values[order], checks.count("max_exact", max_exact, minimum=2))
    block_of = np.empty(len(values), dtype=np.int64)
    costs = np.empty(len(ends))
    start = 0
    for index, end in enumerate(ends):
        block_of[order[start:end]] = index
        costs[index] = math.exp(float(_log_means(np.array([end - start]))[0])) * values[order[start:end]].sum()
        start = end
    return BlockL2(
        block_of=tuple(block_of.tolist()),
        coefficients=_unit(np.cbrt(costs)),
        noise_multiplier=1 / checks.positive("epsilon", epsilon),
    )


def _checked(weights: Sequence[float]) -> Array:
    values = np.asarray(weights, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise ArgumentError(
            "weights must be a vector of finite numbers of zero or more, at least one of them positive; got "
            f"shape {values.shape}."
        )
    return np.asarray(np.maximum(values, _LEAST_SHARE * values.max()))


def _unit(values: Array) -> tuple[float, ...]:
    # Rounded down: a sum of squares above one would mean too little noise.
    return tuple((values / np.linalg.norm(values) * (1 - 1e-14)).tolist())


def _log_means(sizes: NDArray[np.int64]) -> Array:
    """Return the logarithm of the mean absolute coordinate for every block size."""
    half = sizes / 2
    return np.asarray(np.log(sizes) + gammaln(half) - gammaln(half + 0.5) - math.log(math.pi) / 2)


def _block_ends(ordered: Array, max_exact: int) -> list[int]:
    """Return the ends of the blocks of the best partition of decreasing weights."""
    places = _places(ordered, max_exact)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])[places]
    best, before = np.zeros(len(places)), np.zeros(len(places), dtype=np.int64)
    for at in range(1, len(places)):
        sizes = places[at] - places[:at]
        # With optimal coefficients the cost is (sum of these terms)^(3/2).
        terms = np.exp((2 / 3) * (_log_means(sizes) + np.log(sums[at] - sums[:at])))
        totals = best[:at] + terms
        before[at] = int(np.argmin(totals))
        best[at] = totals[before[at]]
    ends, at = [], len(places) - 1
    while at > 0:
        ends.append(int(places[at]))
        at = int(before[at])
    return ends[::-1]


def _places(ordered: Array, max_exact: int) -> NDArray[np.int64]:
    count = len(ordered)
    if count <= max_exact:
        return np.arange(count + 1)
    by_rank = np.unique(np.geomspace(1, count, max_exact // 4).astype(np.int64))
    levels = np.geomspace(ordered[0], ordered[-1], max_exact // 4)
    by_weight = np.searchsorted(-ordered, -levels)
    even = np.linspace(0, count, max_exact // 8).astype(np.int64)
    return np.unique(np.concatenate([[0, count], by_rank, by_weight, even]))
