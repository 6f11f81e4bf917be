"""Lower bounds on epsilon from an attacker's correct guesses, at a stated confidence.

Bounds from correct guesses about many canaries of one run: Steinke, Nasr and Jagielski (2023), and for trade-off
functions Mahloujifar, Melis and Chaudhuri (2024). All bounds are exact: no normal approximation, no simulated
quantiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc, expit

from privet import checks
from privet.attacks.intervals import upper_limit
from privet.errors import ArgumentError

_LARGEST = 64.0
_BISECTIONS = 60


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Error counts of one fixed test, on canaries outside and inside the training data.

    Attributes:
        false_positives: Canaries outside that the test called members.
        num_out: Canaries outside.
        false_negatives: Canaries inside that the test called non-members.
        num_in: Canaries inside.
    """

    false_positives: int
    num_out: int
    false_negatives: int
    num_in: int

    def upper_rates(self, confidence: float) -> tuple[float, float]:
        """Return upper limits of the false-positive and the false-negative rate that hold together at this confidence.

        Edge cases: a side without canaries has the limit 1, which proves nothing.
        """
        each = 1 - (1 - checks.probability("confidence", confidence)) / 2
        return (
            upper_limit(self.false_positives, self.num_out, confidence=each),
            upper_limit(self.false_negatives, self.num_in, confidence=each),
        )


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """Guesses of an attacker about the canaries of one run. A fair coin per canary decides its membership.

    Attributes:
        num_canaries: Number of canaries.
        num_guesses: Number of canaries about which the attacker guesses.
        num_right: Number of correct guesses.
    """

    num_canaries: int
    num_guesses: int
    num_right: int

    def __post_init__(self) -> None:
        if not 0 <= self.num_right <= self.num_guesses <= self.num_canaries:
            raise ArgumentError(
                f"Guesses needs num_right <= num_guesses <= num_canaries, got {self.num_right}, {self.num_guesses} and "
                f"{self.num_canaries}."
            )


def one_run_p_value(guesses: Guesses, *, epsilon: float, delta: float) -> float:
    """Bound the probability of this many correct guesses under (epsilon, delta)-DP (Steinke et al. 2023, theorem 5.2).

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
    # entry k: the probability of at least k correct guesses
    tails = np.concatenate([[1.0], bdtrc(np.arange(right), guesses.num_guesses, chance)])
    beta = float(tails[right])
    steps = np.arange(1, right + 1)
    slope = float(((tails[right - steps] - beta) / steps).max())
    return min(1.0, beta + 2 * guesses.num_canaries * delta * slope)


def one_run_epsilon(guesses: Guesses, *, delta: float, confidence: float) -> float:
    """Return the epsilon below which this many correct guesses are less likely than ``1 - confidence``.

    Guarantee: as in :func:`one_run_p_value`. Edge cases: 0 if epsilon = 0 is not refuted.
    """
    allowed = 1 - checks.probability("confidence", confidence)
    return _largest_refuted(lambda epsilon: one_run_p_value(guesses, epsilon=epsilon, delta=delta) < allowed)


def one_run_refutes(guesses: Guesses, inverse: Callable[[float], float], *, confidence: float) -> bool:
    """Whether this many correct guesses refute a trade-off function (Mahloujifar et al. 2024, algorithm 3).

    Args:
        guesses: The attacker's guesses.
        inverse: Maps a true-positive rate to the smallest false-positive rate that the trade-off function allows.
        confidence: A true claim is refuted with probability at most one minus this.

    Edge cases: zero correct guesses refute nothing.
    """
    allowed = 1 - checks.probability("confidence", confidence)
    canaries, made, right = guesses.num_canaries, guesses.num_guesses, guesses.num_right
    if right == 0:
        return False
    hit, missed = allowed * right / canaries, allowed * (made - right) / canaries
    for place in range(right - 1, -1, -1):
        grown = max(missed, inverse(hit))
        # place < made, so the divisor is positive
        hit = min(1.0, hit + place / (made - place) * (grown - missed))
        missed = grown
    return hit + missed > made / canaries


def _largest_refuted(is_refuted: Callable[[float], bool]) -> float:
    """Return a lower bound of x, where [0, x) is the refuted interval."""
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
