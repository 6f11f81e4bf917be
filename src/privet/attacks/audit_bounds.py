"""Lower bounds on epsilon from an attacker's hits, which hold with a stated confidence.

From rates of errors: Kairouz, Oh and Viswanath (2015) for (epsilon, delta), Nasr et al. (2023) for Gaussian DP. From
right guesses about many canaries of one single run: Steinke, Nasr and Jagielski (2023), and for trade-off functions
Mahloujifar, Melis and Chaudhuri (2024). All bounds are exact: no normal approximation, no simulated quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, expit, ndtr, ndtri

from privet import checks
from privet.attacks.intervals import lower_limit, upper_limit
from privet.errors import ArgumentError

Array = NDArray[np.float64]
_LARGEST = 64.0
_BISECTIONS = 60


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Error counts of one fixed test: on canaries that were out, and on canaries that were in.

    Attributes:
        false_positives: Canaries that were out and were called in.
        num_out: Canaries that were out.
        false_negatives: Canaries that were in and were called out.
        num_in: Canaries that were in.
    """

    false_positives: int
    num_out: int
    false_negatives: int
    num_in: int

    def upper_rates(self, confidence: float) -> tuple[float, float]:
        """Return rates of false positives and negatives that are both too high, with this confidence.

        Edge cases: a side without canaries has the rate 1, which proves nothing.
        """
        each = 1 - (1 - checks.probability("confidence", confidence)) / 2
        return (
            upper_limit(self.false_positives, self.num_out, confidence=each),
            upper_limit(self.false_negatives, self.num_in, confidence=each),
        )


def mu_bound(errors: Errors, *, confidence: float) -> float:
    """Return a mu below which the mechanism is surely not mu-GDP (Nasr et al. 2023); 0 where nothing is proven.

    Guarantee: with probability at most ``1 - confidence`` over coins and noise, the bound exceeds the mu of a mechanism
    that is mu-GDP, if the test was fixed before the scores were seen.
    """
    false_positive, false_negative = errors.upper_rates(confidence)
    if false_positive + false_negative >= 1:
        return 0.0
    return max(0.0, float(-ndtri(false_positive) - ndtri(false_negative)))


def epsilon_bound(errors: Errors, *, delta: float, confidence: float) -> float:
    """Return an epsilon below which the mechanism is surely not (epsilon, delta)-DP, without any other assumption.

    Guarantee: as in :func:`mu_bound`. It grows with the logarithm of the number of canaries at best, so it says little
    about large epsilons. Both directions are tried, each with its part of the error.
    """
    delta = checks.probability("delta", delta, allow_zero=True)
    each = 1 - (1 - checks.probability("confidence", confidence)) / 4
    pairs = (
        (errors.num_in - errors.false_negatives, errors.num_in, errors.false_positives, errors.num_out),
        (errors.num_out - errors.false_positives, errors.num_out, errors.false_negatives, errors.num_in),
    )
    best = 0.0
    for right, of_right, wrong, of_wrong in pairs:
        gain = lower_limit(right, of_right, confidence=each) - delta
        if gain > 0:
            best = max(best, math.log(gain / upper_limit(wrong, of_wrong, confidence=each)))
    return best


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """Guesses of an attacker about the canaries of one run, each in or out by its own fair coin.

    Attributes:
        num_canaries: How many coins were tossed.
        num_guesses: On how many of them the attacker committed himself.
        num_right: How many of those guesses were right.
    """

    num_canaries: int
    num_guesses: int
    num_right: int

    def __post_init__(self) -> None:
        """Refuse numbers that do not nest."""
        if not 0 <= self.num_right <= self.num_guesses <= self.num_canaries:
            raise ArgumentError(
                f"There cannot be {self.num_right} right ones among {self.num_guesses} guesses about "
                f"{self.num_canaries} canaries."
            )


def one_run_p_value(guesses: Guesses, *, epsilon: float, delta: float) -> float:
    """Bound the probability of this many right guesses under (epsilon, delta)-DP (Steinke et al. 2023, theorem 5.2).

    Guarantee: an upper bound for every mechanism and every attacker; canaries may depend on each other in any way.
    Edge cases: no guess gives 1; epsilon = inf gives 1.
    """
    epsilon, delta = checks.number("epsilon", epsilon), checks.probability("delta", delta, allow_zero=True)
    if epsilon < 0:
        raise ArgumentError(f"epsilon must be zero or more, got {epsilon!r}.")
    right = guesses.num_right
    if right == 0:
        return 1.0
    chance = float(expit(epsilon))
    # the probability of at least k successes, for k from 0 to the number seen
    tails = np.concatenate([[1.0], bdtrc(np.arange(right), guesses.num_guesses, chance)])
    beta = float(tails[right])
    steps = np.arange(1, right + 1)
    slope = float(((tails[right - steps] - beta) / steps).max())
    return min(1.0, beta + 2 * guesses.num_canaries * delta * slope)


def one_run_epsilon(guesses: Guesses, *, delta: float, confidence: float) -> float:
    """Return the epsilon below which this many right guesses are less likely than ``1 - confidence``.

    Guarantee: as in :func:`one_run_p_value`. Edge cases: 0 where even epsilon = 0 is not refuted.
    """
    allowed = 1 - checks.probability("confidence", confidence)
    return _largest_refuted(lambda epsilon: one_run_p_value(guesses, epsilon=epsilon, delta=delta) < allowed)


def one_run_refutes(guesses: Guesses, inverse: Callable[[float], float], *, confidence: float) -> bool:
    """Whether this many right guesses refute a trade-off function (Mahloujifar et al. 2024, algorithm 3).

    Args:
        guesses: What was guessed.
        inverse: The smallest rate of false positives that the trade-off function allows at a rate of true positives.
        confidence: A true claim is refuted with probability at most one minus this.

    Edge cases: no right guess refutes nothing.
    """
    allowed = 1 - checks.probability("confidence", confidence)
    canaries, made, right = guesses.num_canaries, guesses.num_guesses, guesses.num_right
    if right == 0:
        return False
    hit, missed = allowed * right / canaries, allowed * (made - right) / canaries
    for place in range(right - 1, -1, -1):
        grown = max(missed, inverse(hit))
        # at the last place of a full score the quotient is never reached: place < made
        hit = min(1.0, hit + place / (made - place) * (grown - missed))
        missed = grown
    return hit + missed > made / canaries


def one_run_mu(guesses: Guesses, *, confidence: float) -> float:
    """Return the mu below which this many right guesses refute mu-GDP; 0 where nothing is refuted.

    Guarantee: as in :func:`one_run_refutes`, for mechanisms that are mu-GDP, such as Gaussian noise without sampling.
    """

    def refutes(mu: float) -> bool:
        return one_run_refutes(guesses, lambda rate: float(ndtr(ndtri(rate) - mu)), confidence=confidence)

    return _largest_refuted(refutes)


def _largest_refuted(is_refuted: Callable[[float], bool]) -> float:
    """Return the end of the refuted stretch [0, x), from below."""
    if not is_refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < _LARGEST and is_refuted(high):
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if high - low <= 1e-6 * high:
            break
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low
