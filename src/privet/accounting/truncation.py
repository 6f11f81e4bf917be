"""Choosing the sizes of truncated Poisson sampling: how much room a batch needs, and how full it should be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dp_accounting import dp_event

from privet import checks
from privet.accounting.calibration import calibrate_noise, quick_noise
from privet.errors import TruncationError
from privet.mechanism.events import DpEvent
from privet.mechanism.terms import Adjacency
from privet.mechanism.truncated import TruncatedPoisson, expected_kept, overflow_probability

# Golden section on whole numbers; the search ends when the bracket holds this share of the physical batch.
_GOLDEN = (math.sqrt(5) - 1) / 2
_SEARCH_WIDTH = 0.02


@dataclass(frozen=True, kw_only=True)
class BatchSuggestion:
    """The expected batch that wastes least of a fixed physical batch.

    Attributes:
        sampling: The sampling piece with that batch.
        noise_multiplier: The least noise that keeps the asked guarantee with it.
        noise_over_signal: Noise multiplier over the expected number of records that stay: the noise on their mean
            gradient, over the clipping bound.
        overflow_probability: How often a step samples more records than fit.
    """

    sampling: TruncatedPoisson
    noise_multiplier: float
    noise_over_signal: float
    overflow_probability: float


def suggest_batch(
    *, physical: int, dataset_size: int, steps: int, epsilon: float, delta: float, adjacency: Adjacency
) -> BatchSuggestion:
    """Find the expected batch that costs least when every step runs one physical batch of fixed size.

    A step costs the same however full its batch is, so what counts is the noise on the mean gradient. A larger expected
    batch divides the noise by more, until truncation sets in and more noise is needed than the division gains.

    Args:
        physical: Slots of the physical batch.
        dataset_size: Public number of records.
        steps: Number of steps.
        epsilon: The budget.
        delta: In (0, 1).
        adjacency: Which two data sets are meant to look alike.

    Guarantee: the returned noise multiplier was accounted with the returned sampling and fits the budget. The search is
    exact to about two percent of the physical batch, where the curve is flat.
    Edge cases: a physical batch as large as the data is filled entirely.
    """
    physical, size = checks.count("physical", physical), checks.count("dataset_size", dataset_size)
    steps = checks.count("steps", steps)

    def sampling(batch: int) -> TruncatedPoisson:
        return TruncatedPoisson(rate=batch / size, steps=steps, dataset_size=size, max_batch_size=physical)

    def whole(batch: int) -> Callable[[float], DpEvent]:
        piece = sampling(batch)
        return lambda z: dp_event.SelfComposedDpEvent(piece.amplify(dp_event.GaussianDpEvent(z)), steps)

    def kept(batch: int) -> float:
        return expected_kept(dataset_size=size, rate=batch / size, max_batch_size=physical)

    noises: dict[int, float] = {}

    def cost(batch: int) -> float:
        if batch not in noises:
            guess = min(noises.items(), key=lambda known: abs(known[0] - batch))[1] if noises else 1.0
            noises[batch] = quick_noise(whole(batch), guess=guess, epsilon=epsilon, delta=delta, adjacency=adjacency)
        return noises[batch] / kept(batch)

    best = size if physical >= size else _least(cost, max(1, physical // 4), physical)
    multiplier = calibrate_noise(whole(best), epsilon=epsilon, delta=delta, adjacency=adjacency)
    return BatchSuggestion(
        sampling=sampling(best),
        noise_multiplier=multiplier,
        noise_over_signal=multiplier / kept(best),
        overflow_probability=sampling(best).overflow_probability,
    )


def _least(cost: Callable[[int], float], low: int, high: int) -> int:
    """Return a whole number at which a function with one valley is within a small share of its least."""
    width = max(1, round(_SEARCH_WIDTH * high))
    while high - low > max(2, width):
        left = high - round(_GOLDEN * (high - low))
        right = low + round(_GOLDEN * (high - low))
        if left >= right:
            break
        low, high = (low, right) if cost(left) <= cost(right) else (left, high)
    return min({low, (low + high) // 2, high}, key=cost)


def choose_max_batch(
    *, dataset_size: int, rate: float, steps: int, epsilon: float, delta: float, share: float = 0.01
) -> int:
    """Return the smallest physical batch whose overflow costs at most ``share`` of delta by Theorem 3.3.

    That is ``steps * (1 + exp(epsilon)) * overflow probability <= share * delta`` (Chua et al., 2024).

    Edge cases: the data set itself is always large enough; an epsilon so large that its exponential overflows raises
    ``TruncationError``.
    """
    size, steps = checks.count("dataset_size", dataset_size), checks.count("steps", steps)
    rate = checks.probability("rate", rate, allow_one=True)
    allowed = checks.probability("share", share, allow_one=True) * checks.probability("delta", delta)
    if not checks.non_negative("epsilon", epsilon) < 700:
        raise TruncationError(f"No batch is large enough for epsilon = {epsilon:g}: the surcharge overflows.")
    weight = steps * (1 + math.exp(epsilon))
    low, high = 0, size
    while high - low > 1:
        middle = (low + high) // 2
        tail = overflow_probability(dataset_size=size, rate=rate, max_batch_size=middle)
        low, high = (low, middle) if weight * tail <= allowed else (middle, high)
    return high
