"""Sampling: the examples of each logical batch, and the privacy amplification by this choice.

The loader, the accountant and the audits use the same object, so a run cannot be sampled in one way and accounted or
audited in another. Every field is public; the size of the private data set is an argument and never changes a constant
of the plan.

A *round* is the unit of charging: one step for Poisson, fixed-size and full batches, one epoch for samplers that
partition the data (:mod:`privet.mechanism.epoch_sampling`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from dp_accounting import DpEvent, NonPrivateDpEvent, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent

from privet import checks
from privet.errors import ArgumentError, DataError
from privet.mechanism.sampling_defaults import (
    DeclaredBatches,
    RandomBatches,
    check_numbers,
    checked_sizes,
    counted,
    planned_steps,
)
from privet.vocabulary import Adjacency

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privet.mechanism.owners import Contribution


@runtime_checkable
class Sampling(Protocol):
    """A sampling piece of a plan. ``Plan`` refuses a piece that lacks a member and names the member.

    Attributes:
        num_rounds: Number of rounds of the run; each is charged as one event.
        steps_per_round: Number of logical steps of one round.
        steps_per_epoch: Number of steps in which every example is used once, exactly or on average; from public
            constants.
        inclusion: Probability that a given record is in the batch of a given step, before truncation.
        expected_batch_size: The public constant by which every noisy sum is divided.
        batch_limit: The largest number of examples of a step; None without a limit.
        declared_size: The declared public bound on the number of records; None if the piece declares none.
        has_exact_size: Whether the data must hold exactly ``declared_size`` records.
        has_independent_coins: Whether records join a step independently, so that parties can sample their own records.
        independent_rate: The probability with which every record joins every step, independent of all other records
            and steps; None if the coins of different records or steps depend on each other.
        contribution: How the records of a person take part; None if items of the data set are sampled as they are.
        fixed_batches: The number of disjoint batches, used in the same order in every epoch; None for random batches.
        same_batches_after_restart: Whether a run that is resumed by another process has the same batches.
        separation: The least number of steps from one use of a record to the next, in one walk over the steps.
        assumptions: The assumptions about the run under which the charge is correct, in words.
    """

    @property
    def has_exact_size(self) -> bool: ...
    @property
    def has_independent_coins(self) -> bool: ...
    @property
    def independent_rate(self) -> float | None: ...
    @property
    def contribution(self) -> Contribution | None: ...
    @property
    def num_rounds(self) -> int: ...
    @property
    def steps_per_round(self) -> int: ...
    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def inclusion(self) -> float: ...
    @property
    def expected_batch_size(self) -> float: ...
    @property
    def batch_limit(self) -> int | None: ...
    @property
    def declared_size(self) -> int | None: ...
    @property
    def fixed_batches(self) -> int | None: ...
    @property
    def same_batches_after_restart(self) -> bool: ...
    @property
    def separation(self) -> int: ...
    @property
    def assumptions(self) -> tuple[str, ...]: ...

    def described(self, num_steps: int) -> str:
        """Return a sentence about the sampling of this many steps."""
        ...

    def refusal(self, adjacency: Adjacency) -> str | None:
        """Return the reason why this sampling has no guarantee under ``adjacency``; None if it has one."""
        ...

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield the indices of each logical batch of one round; an empty batch is a step, too."""
        ...

    def amplify(self, event: DpEvent) -> DpEvent:
        """Return the cost of one round, given the cost of one release that uses every example."""
        ...


def amplified(sampling: Sampling, event: DpEvent) -> DpEvent:
    """Return the cost of one round, given the cost of one release that uses every example.

    Guarantee:
        As :meth:`Sampling.amplify`. Sampling does not make a non-private release private.
    """
    return event if isinstance(event, NonPrivateDpEvent) else sampling.amplify(event)


@dataclass(frozen=True, kw_only=True)
class Poisson(RandomBatches):
    """Each example joins the batch of each step independently, with probability ``rate``.

    Attributes:
        rate: Probability that an example joins a step.
        steps: Number of steps.
        expected_batch_size: Public constant by which the noisy sum is divided; usually rate times the declared size of
            the data set. It does not change the guarantee.
    """

    rate: float
    steps: int
    expected_batch_size: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checks.probability("rate", self.rate, allow_one=True))
        check_numbers(self, "steps")

    @classmethod
    def for_dataset(
        cls, *, dataset_size: int, batch_size: float, steps: int | None = None, epochs: int | None = None
    ) -> Self:
        """Derive rate and steps from a *declared, public* data set size; epochs are rounded up to whole steps.

        The declared size is part of the public plan. Declare a rounded number: the exact size of a private data set is
        itself private if one record may be added or removed.
        """
        dataset_size, batch_size = checked_sizes(dataset_size, batch_size)
        total = planned_steps(dataset_size=dataset_size, batch_size=batch_size, steps=steps, epochs=epochs)
        return cls(rate=batch_size / dataset_size, steps=total, expected_batch_size=batch_size)

    @property
    def inclusion(self) -> float:
        return self.rate

    has_independent_coins: ClassVar[bool] = True

    @property
    def independent_rate(self) -> float | None:
        return self.rate

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("each step includes every record independently by a secret coin (Poisson sampling)",)

    def described(self, num_steps: int) -> str:
        return f"Poisson: every record joins each of {counted(num_steps, 'step')} with probability {self.rate:.4g}"

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield one index set: a binomial count, then a uniform subset of that size.

        Guarantee:
            This is exactly Poisson sampling: given its size, a Poisson sample is uniform among all subsets of that
            size. The set may be empty.
        """
        size = rng.binomial(num_examples, self.rate)
        yield np.sort(rng.choice(num_examples, size=size, replace=False, shuffle=False)).astype(np.int64)

    def amplify(self, event: DpEvent) -> DpEvent:
        return event if self.rate == 1 else PoissonSampledDpEvent(self.rate, event)


@dataclass(frozen=True, kw_only=True)
class FullBatch(RandomBatches):
    """Every step uses every example.

    Attributes:
        steps: Number of steps.
        expected_batch_size: Public constant by which the noisy sum is divided; usually the declared data set size.
    """

    steps: int
    expected_batch_size: float

    def __post_init__(self) -> None:
        check_numbers(self, "steps")

    @property
    def inclusion(self) -> float:
        return 1.0

    has_independent_coins: ClassVar[bool] = True

    @property
    def independent_rate(self) -> float | None:
        return 1.0

    @property
    def fixed_batches(self) -> int | None:
        return 1

    @property
    def same_batches_after_restart(self) -> bool:
        return True

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ()

    def described(self, num_steps: int) -> str:
        return f"every record in each of {counted(num_steps, 'step')}; no amplification"

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        yield np.arange(num_examples, dtype=np.int64)

    def amplify(self, event: DpEvent) -> DpEvent:
        return event


@dataclass(frozen=True, kw_only=True)
class FixedSize(DeclaredBatches):
    """Every step draws exactly ``batch_size`` of ``dataset_size`` records, uniformly and without replacement.

    No batch is padded or truncated, but a record that leaves a batch is replaced by another one. So the charge is that
    of an exchange: at small noise far above that of Poisson sampling (four times its epsilon at a multiplier of 1).

    Attributes:
        dataset_size: Exact public number of records.
        batch_size: Records per step, and the divisor of every noisy sum.
        steps: Number of steps.
    """

    dataset_size: int
    batch_size: int
    steps: int

    def __post_init__(self) -> None:
        check_numbers(self, "dataset_size", "batch_size", "steps")
        if self.batch_size > self.dataset_size:
            raise ArgumentError(
                f"batch_size ({self.batch_size}) is larger than the public dataset_size ({self.dataset_size})."
            )

    @classmethod
    def for_dataset(cls, *, dataset_size: int, batch_size: int, epochs: int) -> Self:
        """Return a sampler of ``epochs`` epochs, rounded up to whole steps."""
        size, batch = checks.count("dataset_size", dataset_size), checks.count("batch_size", batch_size)
        return cls(dataset_size=size, batch_size=batch, steps=math.ceil(checks.count("epochs", epochs) * size / batch))

    @property
    def expected_batch_size(self) -> float:
        return float(self.batch_size)

    @property
    def inclusion(self) -> float:
        return self.batch_size / self.dataset_size

    @property
    def steps_per_epoch(self) -> int:
        return max(1, round(self.dataset_size / self.batch_size))

    @property
    def batch_limit(self) -> int | None:
        return self.batch_size

    has_exact_size: ClassVar[bool] = True

    @property
    def assumptions(self) -> tuple[str, ...]:
        draw = f"each step draws {self.batch_size} of exactly {self.dataset_size} records"
        return (f"{draw}, secretly, uniformly and without replacement",)

    def refusal(self, adjacency: Adjacency) -> str | None:
        if adjacency is Adjacency.REPLACE_ONE:
            return None
        return (
            "FixedSize draws batches of one size from a public number of records, and its charge is proven for the "
            "exchange of one record. Use Adjacency.REPLACE_ONE, or Poisson sampling, which costs less."
        )

    def described(self, num_steps: int) -> str:
        drawn = f"{self.batch_size:,} of {self.dataset_size:,} records"
        return f"{drawn} in each of {counted(num_steps, 'step')}, without replacement"

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield one uniformly random set of ``batch_size`` indices; a wrong number of records is refused."""
        if num_examples != self.dataset_size:
            raise DataError(
                f"FixedSize was planned for exactly {self.dataset_size} records, but the data set has another number. "
                "Under Adjacency.REPLACE_ONE the size is public: plan with the size of the data."
            )
        drawn = rng.choice(num_examples, size=self.batch_size, replace=False, shuffle=False)
        yield np.sort(drawn).astype(np.int64)

    def amplify(self, event: DpEvent) -> DpEvent:
        if self.batch_size == self.dataset_size:
            return event
        return SampledWithoutReplacementDpEvent(
            source_dataset_size=self.dataset_size, sample_size=self.batch_size, event=event
        )
