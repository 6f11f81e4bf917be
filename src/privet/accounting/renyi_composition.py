"""Renyi divergences of composed releases, and of searches that release the best of a random number of runs."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from privet.accounting import renyi
from privet.accounting.curves import RenyiCurve
from privet.accounting.event_reader import Releases, Selection
from privet.vocabulary import Adjacency

Array = NDArray[np.float64]


def total_divergences(orders: Array, releases: Releases, adjacency: Adjacency) -> Array:
    """Return the sum of the divergences of all releases.

    Guarantee: an upper bound at every order. Edge cases: no releases give zeros.
    """
    replace = adjacency is Adjacency.REPLACE_ONE
    total = renyi.gaussian_divergences(orders, (2.0 if replace else 1.0) * releases.signal_to_noise)
    for step in releases.sampled:
        total = total + float(step.num_steps) * renyi.sampled_divergences(orders, step, replace=replace)
    for mechanism, count in releases.others:
        total = total + float(count) * mechanism.divergences(orders, adjacency)
    for selection, count in releases.selections:
        one_run = total_divergences(orders, selection.one_run, adjacency)
        total = total + float(count) * selected_divergences(orders, one_run, selection)
    return total


def selected_divergences(orders: Array, one_run: Array, selection: Selection) -> Array:
    """Return the divergences of a search with a random number of runs that releases only the best run.

    Guarantee: Papernot and Steinke (2022), Theorem 2 for the truncated negative binomial (shape 1: geometric, shape 0:
    logarithmic) and Theorem 6 for the Poisson distribution. The number of runs must be drawn in advance, independent of
    their results, and only the selected run may be released.
    Edge cases: a geometric search of mean 1 is charged up to three runs, although it has one run.
    """
    spread = np.log(selection.mean) / (orders - 1)
    if math.isinf(selection.shape):
        curve = RenyiCurve(orders=orders, divergences=one_run)
        # Theorem 6 uses the delta of one run at exp(epsilon) = 1 + 1 / (order - 1).
        found = one_run + selection.mean * curve.deltas(np.log1p(1 / (orders - 1))) + spread
    else:
        log_gamma = log_stopping_probability(selection.mean, selection.shape)
        constant = (1 + selection.shape) * float(((1 - 1 / orders) * one_run - log_gamma / orders).min())
        found = one_run + spread + constant
    # Divergences increase with the order, so a bound at an order holds at every smaller order.
    return np.minimum.accumulate(found[::-1])[::-1]


def log_stopping_probability(mean: float, shape: float) -> float:
    """Return a lower bound on log gamma of the truncated negative binomial with this mean, tight up to rounding.

    Edge cases: mean 1 gives 0 (one run, always).
    """
    if mean == 1:
        return 0.0
    if shape == 1:
        return -math.log(mean)
    # As a function of u = log(1 / gamma) the mean increases from 1 without bound.
    low, high = 1e-12, 1.0
    if mean <= _mean_length(low, shape):
        return -low
    while _mean_length(high, shape) < mean:
        high *= 2
    root = float(brentq(lambda u: _mean_length(u, shape) - mean, low, high, xtol=1e-300, rtol=1e-13))
    return -root * (1 + 1e-12)


def _mean_length(u: float, shape: float) -> float:
    """Return the mean length for gamma = exp(-u): ``shape (1/gamma - 1) / (1 - gamma^shape)``, or its limit at 0."""
    growth = math.expm1(u) if u < 700 else math.inf
    return growth / u if shape == 0 else shape * growth / -math.expm1(-shape * u)
