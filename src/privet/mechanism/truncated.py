"""Poisson sampling with a limit on the batch size, for hardware that needs batches of one shape."""

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
from privet.mechanism.sampling_defaults import DeclaredBatches, check_numbers, checked_sizes, counted

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Truncation(StrEnum):
    """The method that charges truncation.

    TIGHT: inside the event (Ganesh, 2025): an overflowing batch is a sample of fixed size. It requires that the kept
        records are chosen uniformly at random, which this library does.
    TOTAL_VARIATION: as ``(1 + exp(epsilon)) * probability`` of delta for each step (Chua et al., 2024, Theorem 3.3).
        It holds for every truncation rule and costs more; it is the cross-check of the tight method.
    """

    TIGHT = "tight"
    TOTAL_VARIATION = "total_variation"


def overflow_probability(*, dataset_size: int, rate: float, max_batch_size: int) -> float:
    """Return the probability that Poisson sampling from ``dataset_size`` records exceeds ``max_batch_size``.

    Edge cases: a limit of ``dataset_size`` or more gives 0; rate 0 gives 0. The tail is computed directly and is
    accurate down to the smallest floats.
    """
    rate = checks.probability("rate", rate, allow_zero=True, allow_one=True)
    if max_batch_size >= dataset_size:
        return 0.0
    return float(betainc(max_batch_size + 1, dataset_size - max_batch_size, rate))


def expected_kept(*, dataset_size: int, rate: float, max_batch_size: int) -> float:
    """Return the mean number of records of a truncated sample."""
    everyone = dataset_size * rate
    if max_batch_size >= dataset_size:
        return everyone
    # E min(K, B) = n q P[Bin(n-1, q) < B] + B P[Bin(n, q) > B], because k C(n, k) = n C(n-1, k-1).
    full = overflow_probability(dataset_size=dataset_size - 1, rate=rate, max_batch_size=max_batch_size - 1)
    over = overflow_probability(dataset_size=dataset_size, rate=rate, max_batch_size=max_batch_size)
    return everyone * (1 - full) + max_batch_size * over


@dataclass(frozen=True, kw_only=True)
class TruncatedPoisson(DeclaredBatches):
    """Poisson sampling, truncated to at most ``max_batch_size`` records, which are chosen uniformly at random.

    The sample is drawn from ``dataset_size`` slots; slots beyond the real data are blank. The real number of records
    only decides which slots are blank, so adding or removing one record is filling or blanking one slot, and the charge
    holds under every adjacency.

    Attributes:
        rate: Probability that a record is sampled in a step, before truncation.
        steps: Number of steps.
        dataset_size: Public number of slots. The data may hold fewer records, never more.
        max_batch_size: The largest number of records of a step, usually the physical batch size.
        truncation: The method that charges truncation.
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
        """Derive rate and steps from a *declared, public* data set size; epochs are rounded up to whole steps.

        Raises:
            ArgumentError: ``batch_size`` exceeds ``max_batch_size``. The constructor accepts such a sampler: its charge
                is correct, but most steps drop records.
        """
        dataset_size, batch_size = checked_sizes(dataset_size, batch_size)
        if batch_size > checks.count("max_batch_size", max_batch_size):
            raise ArgumentError(
                f"batch_size ({batch_size:g}) is larger than max_batch_size ({max_batch_size}): most steps would drop "
                "sampled records and still pay for them. Lower batch_size or raise max_batch_size."
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
    def expected_batch_size(self) -> float:
        """The expected number of sampled slots before truncation; the divisor of every sum."""
        return self.rate * self.dataset_size

    @property
    def overflow_probability(self) -> float:
        """Probability that a step samples more than ``max_batch_size`` slots."""
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
            Exactly Poisson sampling of the slots, truncated to a uniformly random subset of ``max_batch_size``: a
            uniform subset of a uniform subset is uniform among all subsets of its size. Blank slots count against the
            limit and are not yielded. The set may be empty.
        """
        if num_examples > self.dataset_size:
            raise DataError(
                f"The data set holds more records than the {self.dataset_size} slots of the plan. Declare a larger "
                "dataset_size, for instance a number rounded up."
            )
        size = min(int(rng.binomial(self.dataset_size, self.rate)), self.max_batch_size)
        slots = np.sort(rng.choice(self.dataset_size, size=size, replace=False, shuffle=False)).astype(np.int64)
        yield slots[: np.searchsorted(slots, num_examples)]

    def amplify(self, event: dp_event.DpEvent) -> dp_event.DpEvent:
        sampled = event if self.rate == 1 else dp_event.PoissonSampledDpEvent(self.rate, event)
        if self.max_batch_size >= self.dataset_size:
            return sampled
        if self.truncation is Truncation.TOTAL_VARIATION:
            return dp_event.ComposedDpEvent([sampled, TotalVariationDpEvent(distance=self.overflow_probability)])
        parts = list(flatten(event))
        if not all(isinstance(part, dp_event.GaussianDpEvent) for part, _ in parts):
            raise AccountingError(
                f"The tight charge of truncation is proven for Gaussian noise, not for {type(event).__name__}. "
                "Use Truncation.TOTAL_VARIATION."
            )
        return dp_event.TruncatedSubsampledGaussianDpEvent(
            dataset_size=self.dataset_size,
            sampling_probability=self.rate,
            truncated_batch_size=self.max_batch_size,
            # Several Gaussian releases on the same sample are one joint Gaussian release.
            noise_multiplier=fuse_gaussians([part.noise_multiplier / math.sqrt(count) for part, count in parts]),
        )
