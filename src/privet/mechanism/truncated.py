"""Poisson sampling into a batch of limited size, for hardware that wants one shape."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

import numpy as np
from dp_accounting import dp_event
from scipy.special import betainc

from privet import checks
from privet.errors import AccountingError, ArgumentError, DataError
from privet.mechanism.events import TotalVariationDpEvent, flatten, fuse_gaussians
from privet.mechanism.sampling import RandomBatches, check_numbers, checked_sizes, counted

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Truncation(StrEnum):
    """How a full batch is charged.

    TIGHT: inside the event (Ganesh, 2025): an over-full batch is a sample of fixed size. Needs a uniformly
        random choice of who stays, which this library makes.
    TOTAL_VARIATION: as ``(1 + exp(epsilon)) * probability`` of delta for each step (Chua et al., 2024, Theorem 3.3).
        Holds for every rule of truncation, and costs more; the check on the other.
    """

    TIGHT = "tight"
    TOTAL_VARIATION = "total_variation"


def overflow_probability(*, dataset_size: int, rate: float, max_batch_size: int) -> float:
    """Return the probability that Poisson sampling from ``dataset_size`` records exceeds ``max_batch_size``.

    Edge cases: no limit below the data set gives 0; rate 0 gives 0; the tail is computed directly, so it is accurate
    down to the smallest floats.
    """
    rate = checks.probability("rate", rate, allow_zero=True, allow_one=True)
    if max_batch_size >= dataset_size:
        return 0.0
    return float(betainc(max_batch_size + 1, dataset_size - max_batch_size, rate))


def expected_kept(*, dataset_size: int, rate: float, max_batch_size: int) -> float:
    """Return how many records a truncated sample holds on average."""
    everyone = dataset_size * rate
    if max_batch_size >= dataset_size:
        return everyone
    # E min(K, B) = n q P[Bin(n-1, q) < B] + B P[Bin(n, q) > B], because k C(n, k) = n C(n-1, k-1).
    full = overflow_probability(dataset_size=dataset_size - 1, rate=rate, max_batch_size=max_batch_size - 1)
    over = overflow_probability(dataset_size=dataset_size, rate=rate, max_batch_size=max_batch_size)
    return everyone * (1 - full) + max_batch_size * over


@dataclass(frozen=True, kw_only=True)
class TruncatedPoisson(RandomBatches):
    """Poisson sampling of which at most ``max_batch_size`` records, chosen at random, stay.

    The sample is drawn from ``dataset_size`` slots, of which those beyond the real data are blank. So the real number
    of records decides nothing but which slots are blank, adding or removing one record is the same as filling or
    blanking one slot, and the charge holds under every adjacency.

    Attributes:
        rate: Probability that a record is sampled in a step, before truncation.
        steps: Number of steps.
        dataset_size: Public number of slots. The data may hold fewer records, never more.
        max_batch_size: The most records a step may use: the physical batch.
        truncation: How a full batch is charged.
    """

    rate: float
    steps: int
    dataset_size: int
    max_batch_size: int
    truncation: Truncation = Truncation.TIGHT

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checks.probability("rate", self.rate, allow_one=True))
        check_numbers(self, "steps", "dataset_size", "max_batch_size")
        try:
            object.__setattr__(self, "truncation", Truncation(self.truncation))
        except ValueError:
            known = ", ".join(str(member) for member in Truncation)
            raise ArgumentError(f"truncation must be one of {known}; got {self.truncation!r}.") from None

    @classmethod
    def for_dataset(
        cls,
        *,
        dataset_size: int,
        batch_size: float,
        max_batch_size: int,
        epochs: int,
        truncation: Truncation = Truncation.TIGHT,
    ) -> Self:
        """Derive rate and steps from a *declared, public* data set size; an epoch is rounded up to whole steps.

        Raises:
            ArgumentError: an average batch does not fit into ``max_batch_size``. Written out by its fields such a
                sampling is allowed: its charge is right, and it is a waste.
        """
        dataset_size, batch_size = checked_sizes(dataset_size, batch_size)
        if batch_size > checks.count("max_batch_size", max_batch_size):
            raise ArgumentError(
                f"batch_size ({batch_size:g}) is larger than max_batch_size ({max_batch_size}): most steps would throw "
                "sampled records away and still pay for them. Lower batch_size or raise max_batch_size."
            )
        return cls(
            rate=batch_size / dataset_size,
            steps=math.ceil(checks.count("epochs", epochs) * dataset_size / batch_size),
            dataset_size=dataset_size,
            max_batch_size=max_batch_size,
            truncation=truncation,
        )

    @property
    def inclusion(self) -> float:
        return self.rate

    @property
    def batch_limit(self) -> int | None:
        return self.max_batch_size

    @property
    def declared_size(self) -> int | None:
        return self.dataset_size

    @property
    def expected_batch_size(self) -> float:
        """The expected number of sampled slots before truncation; the divisor stays this when a batch is full."""
        return self.rate * self.dataset_size

    @property
    def overflow_probability(self) -> float:
        """Probability that a step samples more slots than fit."""
        return overflow_probability(dataset_size=self.dataset_size, rate=self.rate, max_batch_size=self.max_batch_size)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            "each step includes every record independently by a secret coin (Poisson sampling)",
            f"of more than {self.max_batch_size} sampled records as many stay, chosen at random",
            f"the data hold at most {self.dataset_size} records, whatever one record is changed",
        )

    def described(self, num_steps: int) -> str:
        joins = f"every record joins each of {counted(num_steps, 'step')} with probability {self.rate:.4g}"
        return f"Poisson: {joins}; at most {self.max_batch_size:,} stay"

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield one index set.

        Guarantee:
            Exactly Poisson sampling of the slots, cut to a uniformly random subset of ``max_batch_size``: a random
            subset of a random subset is itself uniform among those of its size. Blank slots count against the limit and
            are left out of what is yielded. The set may be empty.
        """
        if num_examples > self.dataset_size:
            raise DataError(
                f"The data set holds more records than the {self.dataset_size} slots of the plan. Declare a larger "
                "dataset_size; a rounded-up number is a good choice."
            )
        size = min(int(rng.binomial(self.dataset_size, self.rate)), self.max_batch_size)
        slots = np.sort(rng.choice(self.dataset_size, size=size, replace=False, shuffle=False)).astype(np.int64)
        yield slots[: np.searchsorted(slots, num_examples)]

    def amplify(self, event: dp_event.DpEvent) -> dp_event.DpEvent:
        """Charge the subsampled mechanism together with what truncation adds."""
        sampled = event if self.rate == 1 else dp_event.PoissonSampledDpEvent(self.rate, event)
        if self.max_batch_size >= self.dataset_size:
            return sampled
        if self.truncation is Truncation.TOTAL_VARIATION:
            return dp_event.ComposedDpEvent([sampled, TotalVariationDpEvent(distance=self.overflow_probability)])
        parts = list(flatten(event))
        if not all(isinstance(part, dp_event.GaussianDpEvent) for part, _ in parts):
            raise AccountingError(
                f"The tight charge of truncation is known for Gaussian noise, not for {type(event).__name__}. "
                "Use Truncation.TOTAL_VARIATION."
            )
        return dp_event.TruncatedSubsampledGaussianDpEvent(
            dataset_size=self.dataset_size,
            sampling_probability=self.rate,
            truncated_batch_size=self.max_batch_size,
            # Several Gaussian releases on one and the same sample are one joint Gaussian release on it.
            noise_multiplier=fuse_gaussians([part.noise_multiplier / math.sqrt(count) for part, count in parts]),
        )
