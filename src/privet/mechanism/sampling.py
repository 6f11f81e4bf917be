"""Sampling: which examples form a logical batch, and what that is worth.

The loader and the accountant read the same object, so a run cannot be sampled in one way and accounted in another.
Every field is public; the size of the private data set is an argument and never changes a constant of the plan.

A *round* is what one charged event covers: one step for Poisson and full batches, one epoch for shuffled batches (whose
only proven property is that an epoch uses each example once).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import numpy as np
from dp_accounting import DpEvent, PoissonSampledDpEvent

from privet import checks
from privet.errors import ArgumentError
from privet.mechanism.terms import Adjacency

if TYPE_CHECKING:
    from numpy.typing import NDArray


@runtime_checkable
class Sampling(Protocol):
    """A sampling piece of a plan."""

    @property
    def num_rounds(self) -> int:
        """Number of events the whole run is charged."""
        ...

    @property
    def steps_per_round(self) -> int:
        """Number of logical steps one charged event covers."""
        ...

    @property
    def expected_batch_size(self) -> float:
        """The public constant by which every noisy sum is divided."""
        ...

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must be true of the run for the charge to be right, in words."""
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


def _steps(*, dataset_size: int, batch_size: float, steps: int | None, epochs: int | None) -> int:
    if (steps is None) == (epochs is None):
        raise ArgumentError("Give either steps= or epochs=, not both and not neither.")
    if steps is not None:
        return checks.count("steps", steps)
    return math.ceil(checks.count("epochs", epochs) * dataset_size / batch_size)


@dataclass(frozen=True, kw_only=True)
class Poisson:
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
        """Refuse rates outside (0, 1], fractional steps and sizes that are not positive."""
        object.__setattr__(self, "rate", checks.probability("rate", self.rate, allow_one=True))
        object.__setattr__(self, "steps", checks.count("steps", self.steps))
        size = checks.positive("expected_batch_size", self.expected_batch_size)
        object.__setattr__(self, "expected_batch_size", size)

    @classmethod
    def for_dataset(
        cls, *, dataset_size: int, batch_size: float, steps: int | None = None, epochs: int | None = None
    ) -> Self:
        """Derive rate and steps from a *declared, public* data set size; an epoch is rounded up to whole steps.

        The declared size is part of the public plan. Declare a rounded number: the exact size of a private data set is
        itself private when one record may be added or removed.
        """
        dataset_size = checks.count("dataset_size", dataset_size)
        batch_size = checks.positive("batch_size", batch_size)
        if batch_size > dataset_size:
            raise ArgumentError(
                f"batch_size ({batch_size:g}) is larger than the declared dataset_size ({dataset_size})."
            )
        num_steps = _steps(dataset_size=dataset_size, batch_size=batch_size, steps=steps, epochs=epochs)
        return cls(rate=batch_size / dataset_size, steps=num_steps, expected_batch_size=batch_size)

    @property
    def num_rounds(self) -> int:
        """One event per step."""
        return self.steps

    @property
    def steps_per_round(self) -> int:
        """One step per event."""
        return 1

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Independent, secret inclusion."""
        return ("each step includes every record independently by a secret coin (Poisson sampling)",)

    def refusal(self, adjacency: Adjacency) -> None:
        """Poisson sampling is proven for every adjacency."""
        return

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield one index set: a binomial count, then a uniform subset of that size.

        Guarantee:
            This is exactly Poisson sampling: given its size, an independent-coin sample is uniform among all subsets
            of that size. The set may be empty.
        """
        size = rng.binomial(num_examples, self.rate)
        yield np.sort(rng.choice(num_examples, size=size, replace=False, shuffle=False)).astype(np.int64)

    def amplify(self, event: DpEvent) -> DpEvent:
        """Charge the subsampled mechanism."""
        return event if self.rate == 1 else PoissonSampledDpEvent(self.rate, event)


@dataclass(frozen=True, kw_only=True)
class FullBatch:
    """Every step uses every example.

    Attributes:
        steps: Number of steps.
        expected_batch_size: Public constant by which the noisy sum is divided; usually the declared data set size.
    """

    steps: int
    expected_batch_size: float

    def __post_init__(self) -> None:
        """Refuse fractional steps and sizes that are not positive."""
        object.__setattr__(self, "steps", checks.count("steps", self.steps))
        size = checks.positive("expected_batch_size", self.expected_batch_size)
        object.__setattr__(self, "expected_batch_size", size)

    @property
    def num_rounds(self) -> int:
        """One event per step."""
        return self.steps

    @property
    def steps_per_round(self) -> int:
        """One step per event."""
        return 1

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Nothing beyond clipping and noise."""
        return ()

    def refusal(self, adjacency: Adjacency) -> None:
        """The full batch is proven for every adjacency."""
        return

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield all indices."""
        yield np.arange(num_examples, dtype=np.int64)

    def amplify(self, event: DpEvent) -> DpEvent:
        """No sampling, no amplification."""
        return event


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """Each epoch deals all examples, freshly shuffled, into ``batches`` batches. This is not Poisson sampling.

    No tight bound for shuffling is known, so an epoch is charged as one release that uses every example once, without
    any amplification. It needs a public data set size: when a record may be added or removed, the deal of all other
    records moves with it, so that adjacency is refused.

    Attributes:
        batches: Number of batches per epoch.
        epochs: Number of epochs.
        expected_batch_size: Public constant by which the noisy sum is divided; usually the public size over
            ``batches``.
    """

    batches: int
    epochs: int
    expected_batch_size: float

    def __post_init__(self) -> None:
        """Refuse fractional counts and sizes that are not positive."""
        object.__setattr__(self, "batches", checks.count("batches", self.batches))
        object.__setattr__(self, "epochs", checks.count("epochs", self.epochs))
        size = checks.positive("expected_batch_size", self.expected_batch_size)
        object.__setattr__(self, "expected_batch_size", size)

    @property
    def num_rounds(self) -> int:
        """One event per epoch."""
        return self.epochs

    @property
    def steps_per_round(self) -> int:
        """An epoch's batches share one event."""
        return self.batches

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Each record once per epoch."""
        return ("each epoch uses every record at most once; shuffling itself is given no credit",)

    def refusal(self, adjacency: Adjacency) -> str | None:
        """Refuse adding or removing a record, which would move the other records between batches."""
        if adjacency is Adjacency.ADD_REMOVE:
            return (
                "Shuffle deals records into batches by position, so adding or removing one record moves others. "
                "Use Adjacency.ZERO_OUT or Adjacency.REPLACE_ONE (the size is then public), or Poisson sampling."
            )
        return None

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield an epoch's disjoint batches; with fewer examples than batches some are empty."""
        order = rng.permutation(num_examples).astype(np.int64)
        yield from np.array_split(order, self.batches)

    def amplify(self, event: DpEvent) -> DpEvent:
        """Charge an epoch as one unamplified release: its batches are disjoint."""
        return event
