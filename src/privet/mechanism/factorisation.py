"""Toeplitz factorisations of a training run: the coefficients of correlated noise, and the error that they leave.

A run releases ``C G + Z`` row by row, where row ``t`` of ``G`` is the clipped sum of step ``t``, ``C`` is a lower
triangular Toeplitz matrix with first column ``c``, and ``Z`` is independent normal noise. The model sees
``G + C^-1 Z``: independent steps for an attacker who multiplies by ``C``, but noise that largely cancels in the sum of
the updates, of which the weights are made.

``c`` is written as a power series, so a product of matrices is a product of series and an inverse is a division. A
*workload* is the series that turns the gradients of all steps into the weights: 1 / ((1 - m x)(1 - w x)) for momentum
``m`` and weights that keep the factor ``w`` in each step; both together are plain prefix sums for ``m = 0, w = 1``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from privet import checks
from privet.errors import ArgumentError

Array = NDArray[np.float64]
# Coefficients of one plan; enough for every run that fits into memory.
MOST_BANDS = 4096
_SEARCH_STEPS = 500


def workload(steps: int, *, momentum: float = 0.0, kept_weight: float = 1.0) -> Array:
    """Return the series that turns gradients into weights, up to the learning rate.

    Args:
        steps: Number of terms.
        momentum: Share of the last update in the next one.
        kept_weight: Factor that weights keep in a step: one minus learning rate times weight decay.
    """
    size = checks.count("steps", steps)
    impulse = np.zeros(size)
    impulse[0] = 1.0
    return _filtered(
        _filtered(impulse, (1.0, -_share("momentum", momentum))), (1.0, -_share("kept_weight", kept_weight))
    )


def square_root(bands: int, *, momentum: float = 0.0, kept_weight: float = 1.0) -> tuple[float, ...]:
    """Return the first coefficients of the square root of a workload (Kalinin and Lampert, 2024).

    For prefix sums this is the closed form ``c_j = c_{j-1} (2 j - 1) / (2 j)``. No coefficient is negative.
    """
    size = _bands(bands)
    roots = np.ones(size)
    for place in range(1, size):
        roots[place] = roots[place - 1] * (2 * place - 1) / (2 * place)
    powers = np.arange(size)
    first = roots * _share("momentum", momentum) ** powers
    second = roots * _share("kept_weight", kept_weight) ** powers
    return tuple(np.convolve(first, second)[:size].tolist())


def inverse_square_root(bands: int, *, momentum: float = 0.0, kept_weight: float = 1.0) -> tuple[float, ...]:
    """Return the first coefficients of the inverse of that square root; all but the first are negative or zero.

    Raises:
        ArgumentError: the momentum makes a later coefficient positive, for which no bound is proven here.
    """
    found = inverse(square_root(bands, momentum=momentum, kept_weight=kept_weight), _bands(bands))
    if (found[1:] > 0).any():
        raise ArgumentError(
            f"The inverse square root for momentum={momentum!r} and kept_weight={kept_weight!r} has positive later "
            "coefficients, for which no sensitivity is proven. Use momentum=0.0."
        )
    return tuple(found.tolist())


def inverse(coefficients: Sequence[float] | Array, steps: int) -> Array:
    """Return the first terms of one over a series, which starts with 1."""
    impulse = np.zeros(checks.count("steps", steps))
    impulse[0] = 1.0
    return _filtered(impulse, coefficients)


def prefix_error(
    coefficients: Sequence[float], steps: int, *, momentum: float = 0.0, kept_weight: float = 1.0
) -> float:
    """Return the root mean squared error of the weights over all steps, for noise Z of size 1 in every coordinate."""
    response = _filtered(workload(steps, momentum=momentum, kept_weight=kept_weight), coefficients)
    return math.sqrt(float(_remaining(steps) @ response**2))


def optimised(bands: int, steps: int, *, momentum: float = 0.0, kept_weight: float = 1.0) -> tuple[float, ...]:
    """Return the banded coefficients with the least error at a given length, by descent from the square root.

    Minimises the length of ``c`` times :func:`prefix_error` over coefficients that are zero or more (McKenna, 2024).
    The length is the noise that the bands cost, so this is the best choice at every noise multiplier.
    """
    size, num_steps = _bands(bands), checks.count("steps", steps)
    terms, weights = workload(num_steps, momentum=momentum, kept_weight=kept_weight), _remaining(num_steps)
    start = np.array(square_root(size, momentum=momentum, kept_weight=kept_weight))[1:]
    if not len(start):
        return (1.0,)

    def objective(rest: Array) -> tuple[float, Array]:
        column = np.append(1.0, rest)
        response = _filtered(terms, column)
        again = _filtered(response, column)
        error, length = float(weights @ response**2), float(column @ column)
        if not (math.isfinite(error) and error > 0):
            return math.inf, np.zeros_like(rest)
        # the derivative of response by c_j is again, delayed by j, with a minus sign
        pulled = np.correlate(weights * response, again, mode="full")[num_steps:][: size - 1]
        slopes = -2 * np.pad(pulled, (0, size - 1 - len(pulled))) / error + 2 * rest / length
        return math.log(error) + math.log(length), slopes

    found = minimize(
        objective, start, jac=True, method="L-BFGS-B", bounds=[(0.0, 1.0)] * len(start),
        options={"maxiter": _SEARCH_STEPS, "maxfun": 4 * _SEARCH_STEPS},
    )  # fmt: skip
    best = found.x if found.fun <= objective(start)[0] else start
    return (1.0, *(float(value) for value in best))


def fixed_order_square(column: Array, *, batches: int, epochs: int) -> float:
    """Return the squared sensitivity of one epoch, for a record that is used once in each of several epochs.

    Args:
        column: The first column of C, non-negative, with at least ``batches * epochs`` terms.
        batches: Steps between two uses of a record.
        epochs: Number of uses.

    Guarantee:
        A run of any ``r <= epochs`` epochs, whole or broken off, has squared sensitivity at most ``r`` times the
        returned number, and exactly that for ``r = epochs``. Inner products of non-negative columns are not negative,
        so the worst contributions are all equal and as long as the bound, and the worst record is in the first batch.
        Its part of the rows of epoch ``e`` is ``u_e = sum_{i <= e} column[i batches : (i + 1) batches]``, which grows
        with ``e``. So the squared sensitivity of ``r`` epochs, ``sum_{e < r} |u_e|^2``, grows at least in proportion
        to ``r``. Independent runs add up, so a run that is begun anew costs no more.
    """
    parts = column[: batches * epochs].reshape(epochs, batches)
    return float(np.square(np.cumsum(parts, axis=0)).sum()) / epochs


def _remaining(steps: int) -> Array:
    """Return the share of the steps whose sums hold a term of each age."""
    return np.arange(steps, 0, -1) / steps


def _filtered(values: Array, coefficients: Sequence[float] | Array) -> Array:
    """Divide a series by another one that starts with 1; Newton's iteration doubles the known terms of the inverse."""
    steps, divisor = len(values), np.asarray(coefficients, dtype=np.float64)
    found = np.ones(1)
    while len(found) < steps:
        size = min(2 * len(found), steps)
        correction = -_product(divisor[:size], found, size)
        correction[0] += 2.0
        found = _product(found, correction, size)
    return _product(values, found, steps)


def _product(first: Array, second: Array, size: int) -> Array:
    """Return the first terms of the product of two series."""
    length = 1 << (len(first) + len(second) - 1).bit_length()
    product = np.fft.irfft(np.fft.rfft(first, length) * np.fft.rfft(second, length), length)
    return np.asarray(np.pad(product[:size], (0, max(0, size - length))))


def _bands(bands: int) -> int:
    size = checks.count("bands", bands)
    if size > MOST_BANDS:
        raise ArgumentError(f"bands must be at most {MOST_BANDS}, got {size}.")
    return size


def _share(name: str, value: float) -> float:
    found = checks.non_negative(name, value)
    if found > 1:
        raise ArgumentError(f"{name} must lie between 0 and 1, got {found!r}.")
    return found
