"""The privacy curve of an event and the trade-off of its attackers, at any number of points from one composition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.accounting.accountants import curve
from privet.accounting.curves import SMALLEST_PLD_DELTA
from privet.errors import ArgumentError
from privet.mechanism.events import DpEvent
from privet.vocabulary import Adjacency

Array = NDArray[np.float64]
_TRADE_OFF_POINTS = 2000


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """Points of a privacy curve: the event is (epsilons[i], deltas[i])-DP for every i."""

    epsilons: Array
    deltas: Array
    accountant: str


def privacy_profile(
    event: DpEvent,
    *,
    adjacency: Adjacency,
    epsilons: Sequence[float] | Array | None = None,
    deltas: Sequence[float] | Array | None = None,
) -> Profile:
    """Return delta at each epsilon, or epsilon at each delta: give exactly one of the two.

    Guarantee: every returned point is an upper bound.
    Edge cases: epsilons must be zero or more (inf is allowed); deltas must lie in (0, 1), and in [1e-12, 1) for sampled
    releases; loss distributions never report a delta below 1e-12.
    """
    if (epsilons is None) == (deltas is None):
        raise ArgumentError("Give exactly one of epsilons and deltas.")
    drawn = curve(event, adjacency)
    if epsilons is not None:
        at = np.array([checks.number("epsilon", epsilon) for epsilon in epsilons])
        return Profile(epsilons=at, deltas=drawn.deltas(at), accountant=drawn.accountant)
    asked = [] if deltas is None else [checks.probability("delta", delta) for delta in deltas]
    found = np.array([drawn.epsilon(delta) for delta in asked])
    return Profile(epsilons=found, deltas=np.array(asked), accountant=drawn.accountant)


def trade_off(event: DpEvent, *, adjacency: Adjacency, false_positive_rates: Sequence[float] | Array) -> Array:
    """Return a lower bound on the false-negative rate of every attacker at each false-positive rate.

    Guarantee: no test between two neighbouring data sets is better, also with any side information.
    Edge cases: rates 0 and 1 are allowed; without noise the bound is 0 everywhere.
    """
    rates = np.array(
        [
            checks.probability("false_positive_rate", rate, allow_zero=True, allow_one=True)
            for rate in false_positive_rates
        ]
    )
    drawn = curve(event, adjacency)
    top = drawn.epsilon(SMALLEST_PLD_DELTA)
    epsilons = np.linspace(0.0, min(top, 700.0), _TRADE_OFF_POINTS)
    deltas = drawn.deltas(epsilons)
    # Every (epsilon, delta) gives two lines below the trade-off of every attacker (Wasserman and Zhou, 2010).
    best = np.zeros_like(rates)
    growth = np.exp(epsilons)
    for index, rate in enumerate(rates):
        steep = 1 - deltas - growth * rate
        flat = (1 - deltas - rate) / growth
        best[index] = max(0.0, float(steep.max()), float(flat.max()))
    return best


def delta_at(event: DpEvent, *, epsilon: float, adjacency: Adjacency) -> float:
    """Return the delta at which an event is (epsilon, delta)-DP: an upper bound, from the tightest accountant."""
    return float(curve(event, adjacency).deltas(np.array([checks.number("epsilon", epsilon)]))[0])


def true_positive_bound(epsilon: float, delta: float, false_positive_rate: float) -> float:
    """Return the largest true-positive rate that (epsilon, delta)-DP allows at a false-positive rate; at most 1."""
    steep = math.inf if epsilon > 700 else math.exp(epsilon) * false_positive_rate + delta
    flat = 1 - math.exp(-epsilon) * (1 - delta - false_positive_rate)
    return min(1.0, steep, flat)
