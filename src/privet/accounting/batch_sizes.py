"""Waste of each sampler in an epoch, and the best expected batch size for a physical batch size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

from dp_accounting import dp_event

from privet import checks
from privet.accounting.calibration import calibrate_noise, quick_noise
from privet.errors import ArgumentError
from privet.mechanism.events import DpEvent
from privet.mechanism.truncated import TruncatedPoisson, expected_kept, overflow_probability
from privet.vocabulary import Adjacency

# Golden-section search on whole numbers; it ends when the bracket has this share of the physical batch.
_GOLDEN = (math.sqrt(5) - 1) / 2
_SEARCH_WIDTH = 0.02


@dataclass(frozen=True, kw_only=True)
class Waste:
    """One row of the table; all shares lie between 0 and 1.

    Attributes:
        sampler: Name of the sampling piece.
        steps: Steps per epoch.
        physical_batches: Expected number of physical batches per epoch.
        never_seen: Expected share of the records that no step of an epoch uses.
        stragglers: Share of the steps whose batch does not fit into one physical batch.
        dropped: Share of the sampled records that truncation drops.
        padding: Share of empty slots in the physical batches.
    """

    sampler: str
    steps: int
    physical_batches: float
    never_seen: float
    stragglers: float
    dropped: float
    padding: float

    def to_dict(self) -> dict[str, str | float]:
        return asdict(self)


def never_seen_share(*, rate: float, steps: float) -> float:
    """Return the probability that a record is in none of ``steps`` independent draws: ``(1 - rate)^steps``."""
    rate = checks.probability("rate", rate, allow_zero=True, allow_one=True)
    return 0.0 if rate == 1 else math.exp(checks.positive("steps", steps) * math.log1p(-rate))


def waste_table(*, dataset_size: int, batch_size: int, physical_batch_size: int) -> list[Waste]:
    """Compare the samplers at one logical batch size on hardware with a fixed physical batch size.

    Every figure is exact, from binomial tails. The steps of an epoch are the data set size over the batch size, rounded
    up.

    Edge cases: batches larger than the data are refused. If the physical batch is smaller than the logical one, a step
    runs several physical batches, except under truncated sampling, which drops the rest.
    """
    size, batch = checks.count("dataset_size", dataset_size), checks.count("batch_size", batch_size)
    physical = checks.count("physical_batch_size", physical_batch_size)
    if batch > size:
        raise ArgumentError(f"batch_size ({batch}) is larger than the dataset_size ({size}).")
    steps = -(-size // batch)
    return [
        _poisson(size, batch / size, steps, physical),
        _truncated(size, batch / size, steps, physical),
        _fixed("FixedSize", [(batch, steps)], physical, never_seen_share(rate=batch / size, steps=steps)),
        _fixed("Shuffle", _level(size, steps), physical, 0.0),
        _fixed("Cyclic", _level(size, steps), physical, 0.0),
        _fixed("FullBatch", [(size, 1)], physical, 0.0),
    ]


def _tail(size: int, rate: float) -> Callable[[int], float]:
    return lambda limit: overflow_probability(dataset_size=size, rate=rate, max_batch_size=limit)


def _poisson(size: int, rate: float, steps: int, physical: int) -> Waste:
    over = _tail(size, rate)
    # The expected number of passes is the sum over k of the probability that a k-th pass is needed.
    some = 1.0 if rate == 1 else -math.expm1(size * math.log1p(-rate))
    passes = some
    for limit in range(physical, size, physical):
        chance = over(limit)
        passes += chance
        if chance < 1e-18:
            break
    return Waste(
        sampler="Poisson",
        steps=steps,
        physical_batches=steps * passes,
        never_seen=never_seen_share(rate=rate, steps=steps),
        stragglers=over(physical),
        dropped=0.0,
        padding=max(0.0, 1 - size * rate / (physical * passes)),
    )


def _truncated(size: int, rate: float, steps: int, physical: int) -> Waste:
    expected = expected_kept(dataset_size=size, rate=rate, max_batch_size=physical)
    return Waste(
        sampler="TruncatedPoisson",
        steps=steps,
        physical_batches=float(steps),
        never_seen=never_seen_share(rate=min(1.0, expected / size), steps=steps),
        stragglers=0.0,
        dropped=max(0.0, 1 - expected / (size * rate)),
        padding=max(0.0, 1 - expected / physical),
    )


def _level(size: int, steps: int) -> list[tuple[int, int]]:
    """Return the sizes of equal batches, up to one record, each with its count."""
    return [(size // steps + 1, size % steps), (size // steps, steps - size % steps)]


def _fixed(sampler: str, sizes: list[tuple[int, int]], physical: int, never_seen: float) -> Waste:
    steps = sum(count for _, count in sizes)
    passes = sum(count * -(-size // physical) for size, count in sizes)
    return Waste(
        sampler=sampler,
        steps=steps,
        physical_batches=float(passes),
        never_seen=never_seen,
        stragglers=sum(count for size, count in sizes if size > physical) / steps,
        dropped=0.0,
        padding=1 - sum(count * size for size, count in sizes) / (passes * physical),
    )


@dataclass(frozen=True, kw_only=True)
class BatchSuggestion:
    """The best expected batch size for a fixed physical batch size.

    Attributes:
        sampling: The sampling piece with that batch size.
        noise_multiplier: The least noise that reaches the target guarantee.
        noise_over_signal: Noise multiplier over the expected number of kept records: the noise on their mean gradient
            over the clipping bound.
        overflow_probability: Probability that a step samples more records than fit.
    """

    sampling: TruncatedPoisson
    noise_multiplier: float
    noise_over_signal: float
    overflow_probability: float


def suggest_batch(
    *, physical: int, dataset_size: int, steps: int, epsilon: float, delta: float, adjacency: Adjacency
) -> BatchSuggestion:
    """Find the expected batch size with the least noise on the mean gradient, for steps of one physical batch.

    The running time of a step does not depend on the number of filled slots. A larger expected batch divides the noise
    by more, until truncation needs more additional noise than the division gains.

    Args:
        physical: Slots of the physical batch.
        dataset_size: Public number of records.
        steps: Number of steps.
        epsilon: The budget.
        delta: In (0, 1).
        adjacency: The neighbouring relation of data sets.

    Guarantee: the returned noise multiplier was accounted with the returned sampling and fits the budget. The batch
    size is accurate to about two percent of the physical batch; the cost is flat there.
    Edge cases: a physical batch as large as the data holds all records.
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
    """Return a whole number near the minimum of a unimodal function."""
    width = max(1, round(_SEARCH_WIDTH * high))
    while high - low > max(2, width):
        left = high - round(_GOLDEN * (high - low))
        right = low + round(_GOLDEN * (high - low))
        if left >= right:
            break
        low, high = (low, right) if cost(left) <= cost(right) else (left, high)
    return min({low, (low + high) // 2, high}, key=cost)
