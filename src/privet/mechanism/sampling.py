"""Sampling: which examples form a logical batch, and what that is worth.

The loader, the accountant and the audits read the same object, so a run cannot be sampled in one way and accounted or
audited in another. Every field is public; the size of the private data set is an argument and never changes a constant
of the plan.

A *round* is what one charged event covers: one step for Poisson, fixed-size and full batches, one epoch for batches
that are dealt out (:mod:`privet.mechanism.epoch_sampling`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from dp_accounting import DpEvent, NonPrivateDpEvent, PoissonSampledDpEvent, SampledWithoutReplacementDpEvent

from privet import checks
from privet.errors import ArgumentError, DataError
from privet.vocabulary import Adjacency

if TYPE_CHECKING:
    from numpy.typing import NDArray


@runtime_checkable
class Sampling(Protocol):
    """A sampling piece of a plan. Nothing about a piece is guessed: one that lacks a member is refused by name."""

    @property
    def num_rounds(self) -> int:
        """Number of events the whole run is charged."""
        ...

    @property
    def steps_per_round(self) -> int:
        """Number of logical steps one charged event covers."""
        ...

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps after which every example was used once, or once on average; from public constants."""
        ...

    @property
    def inclusion(self) -> float:
        """Probability that a given record is in the batch of a given step, before any batch is cut to a limit."""
        ...

    @property
    def expected_batch_size(self) -> float:
        """The public constant by which every noisy sum is divided."""
        ...

    @property
    def batch_limit(self) -> int | None:
        """The most examples that a step uses; None where nothing limits it."""
        ...

    @property
    def declared_size(self) -> int | None:
        """The public number of records that the data may not exceed; None where the piece declares none."""
        ...

    @property
    def has_exact_size(self) -> bool:
        """Whether the data must hold exactly ``declared_size`` records."""
        ...

    @property
    def has_independent_coins(self) -> bool:
        """Whether every record joins a step by a coin of its own, so that parties can sample their records apart."""
        ...

    @property
    def fixed_batches(self) -> int | None:
        """The number of disjoint batches that every epoch walks through in the same order; None for random batches."""
        ...

    @property
    def same_batches_after_restart(self) -> bool:
        """Whether a run continued by another process meets the same batches again."""
        ...

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must be true of the run for the charge to be right, in words."""
        ...

    def described(self, num_steps: int) -> str:
        """Say in words how records were drawn in this many steps."""
        ...

    def refusal(self, adjacency: Adjacency) -> str | None:
        """Say why this sampling gives no guarantee under ``adjacency``, or None if it does."""
        ...

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield the index sets of one round's logical batches; a batch may be empty and is a step all the same."""
        ...

    def amplify(self, event: DpEvent) -> DpEvent:
        """Return the cost of one round, given the cost of one release that uses every example."""
        ...


def amplified(sampling: Sampling, event: DpEvent) -> DpEvent:
    """Return the cost of one round, given that of one release which uses every example.

    Guarantee:
        As :meth:`Sampling.amplify`. A release that hides nothing hides nothing of the examples it was drawn from
        either: no sampling makes it private.
    """
    return event if isinstance(event, NonPrivateDpEvent) else sampling.amplify(event)


class SamplingDefaults:
    """The answers that claim nothing: no limit, no declared size, no coins of its own, no batches that come back."""

    @property
    def batch_limit(self) -> int | None:
        return None

    @property
    def declared_size(self) -> int | None:
        return None

    has_exact_size: ClassVar[bool] = False
    has_independent_coins: ClassVar[bool] = False

    @property
    def fixed_batches(self) -> int | None:
        return None

    @property
    def same_batches_after_restart(self) -> bool:
        return False


class RandomBatches(SamplingDefaults, ABC):
    """A sampler that draws every step afresh, with one event per step, for every adjacency."""

    steps: int

    @property
    @abstractmethod
    def inclusion(self) -> float: ...

    @property
    def num_rounds(self) -> int:
        return self.steps

    @property
    def steps_per_round(self) -> int:
        return 1

    @property
    def steps_per_epoch(self) -> int:
        return max(1, round(1 / self.inclusion))

    def refusal(self, adjacency: Adjacency) -> str | None:
        return None


@dataclass(frozen=True, kw_only=True)
class Poisson(RandomBatches):
    """Each example joins each step's batch by its own coin, with probability ``rate``.

    Attributes:
        rate: Probability that an example joins a step.
        steps: Number of steps.
        expected_batch_size: Public constant by which the noisy sum is divided; usually rate times the declared size of
            the data set. It never changes the guarantee.
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
        """Derive rate and steps from a *declared, public* data set size; an epoch is rounded up to whole steps.

        The declared size is part of the public plan. Declare a rounded number: the exact size of a private data set is
        itself private when one record may be added or removed.
        """
        dataset_size, batch_size = checked_sizes(dataset_size, batch_size)
        num_steps = _steps(dataset_size=dataset_size, batch_size=batch_size, steps=steps, epochs=epochs)
        return cls(rate=batch_size / dataset_size, steps=num_steps, expected_batch_size=batch_size)

    @property
    def inclusion(self) -> float:
        return self.rate

    has_independent_coins: ClassVar[bool] = True

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("each step includes every record independently by a secret coin (Poisson sampling)",)

    def described(self, num_steps: int) -> str:
        return f"Poisson: every record joins each of {counted(num_steps, 'step')} with probability {self.rate:.4g}"

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield one index set: a binomial count, then a uniform subset of that size.

        Guarantee:
            This is exactly Poisson sampling: given its size, an independent-coin sample is uniform among all subsets
            of that size. The set may be empty.
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
class FixedSize(RandomBatches):
    """Every step draws exactly ``batch_size`` of ``dataset_size`` records, uniformly and without replacement.

    No batch is ever padded or cut, but a record that leaves the batch makes room for another: the charge is that of an
    exchange, and at small noise far above that of Poisson sampling (four times its epsilon at a multiplier of 1).

    Attributes:
        dataset_size: Public number of records, exactly.
        batch_size: Records per step; also the divisor of every noisy sum.
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
        """Take as many steps as cover the data ``epochs`` times, rounded up."""
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

    @property
    def declared_size(self) -> int | None:
        return self.dataset_size

    has_exact_size: ClassVar[bool] = True

    @property
    def assumptions(self) -> tuple[str, ...]:
        draw = f"each step draws {self.batch_size} of exactly {self.dataset_size} records"
        return (f"{draw}, secretly, uniformly and without replacement",)

    def refusal(self, adjacency: Adjacency) -> str | None:
        """Accept only the exchange of one record: every other change moves the sampling of all records."""
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
        """Yield one uniformly random index set of exactly ``batch_size``; another number of records is refused."""
        if num_examples != self.dataset_size:
            raise DataError(
                f"FixedSize was planned for exactly {self.dataset_size} records, and the data set has another number. "
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


def counted(number: int, word: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def check_numbers(piece: object, *counts: str) -> None:
    """Check the named counts of a frozen piece and, where it is a field, its divisor; keep them as plain numbers."""
    for name in counts:
        object.__setattr__(piece, name, checks.count(name, getattr(piece, name)))
    if "expected_batch_size" in vars(piece):
        size = checks.positive("expected_batch_size", vars(piece)["expected_batch_size"])
        object.__setattr__(piece, "expected_batch_size", size)


def checked_sizes(dataset_size: int, batch_size: float) -> tuple[int, float]:
    """Return a declared data set size and an average batch that is not larger."""
    dataset_size = checks.count("dataset_size", dataset_size)
    batch_size = checks.positive("batch_size", batch_size)
    if batch_size > dataset_size:
        raise ArgumentError(f"batch_size ({batch_size:g}) is larger than the declared dataset_size ({dataset_size}).")
    return dataset_size, batch_size


def _steps(*, dataset_size: int, batch_size: float, steps: int | None, epochs: int | None) -> int:
    if (steps is None) == (epochs is None):
        raise ArgumentError("Give either steps= or epochs=, not both and not neither.")
    if steps is not None:
        return checks.count("steps", steps)
    return math.ceil(checks.count("epochs", epochs) * dataset_size / batch_size)
