"""What a sampler wastes in an epoch: records never seen, slots left empty, steps that need a second pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

from privet import checks
from privet.errors import ArgumentError
from privet.mechanism.truncated import expected_kept, overflow_probability


@dataclass(frozen=True, kw_only=True)
class Waste:
    """One row of the table; all shares lie between 0 and 1.

    Attributes:
        sampler: Name of the sampling piece.
        steps: Steps per epoch.
        physical_batches: Expected passes of a full physical batch per epoch.
        never_seen: Expected share of the records that no step of an epoch uses.
        stragglers: Share of the steps whose batch does not fit into one physical batch.
        dropped: Share of the sampled records that are thrown away.
        padding: Share of the slots of physical batches that stay empty.
    """

    sampler: str
    steps: int
    physical_batches: float
    never_seen: float
    stragglers: float
    dropped: float
    padding: float

    def to_dict(self) -> dict[str, str | float]:
        """Return plain values."""
        return asdict(self)


def never_seen_share(*, rate: float, steps: float) -> float:
    """Return the chance that independent draws at ``rate`` miss a record in all ``steps``: ``(1 - rate)^steps``."""
    rate = checks.probability("rate", rate, allow_zero=True, allow_one=True)
    return 0.0 if rate == 1 else math.exp(checks.positive("steps", steps) * math.log1p(-rate))


def waste_table(*, dataset_size: int, batch_size: int, physical_batch_size: int) -> list[Waste]:
    """Compare the samplers at one logical batch size on hardware that runs batches of one physical size.

    Every figure is exact: binomial tails, no simulation. An epoch is as many steps as cover the data once, rounded up.

    Edge cases: batches larger than the data are refused; a physical batch smaller than the logical one is run several
    times per step, except by truncated sampling, which throws the rest away.
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
    # The expected number of passes is the sum of the chances that a first, a second, ... is needed.
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
    """Return the sizes of level batches, each with how many there are."""
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
