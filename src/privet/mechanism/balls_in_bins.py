"""Random allocation of records to the batches of an epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from privet import checks
from privet.mechanism.epoch_sampling import EpochBatches
from privet.mechanism.events import RandomAllocationDpEvent
from privet.mechanism.sampling_defaults import checked_sizes, counted
from privet.vocabulary import Adjacency

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class BallsInBins(EpochBatches):
    """In each epoch every record picks one of the batches, uniformly, in secret and independently of all others.

    Every record is used once in an epoch, and batches differ in size as little as chance allows. An epoch is charged
    as one event. At usual noise it costs less than Poisson sampling of the same rate, which uses a record twice in an
    epoch now and then. A record in ``k`` out of ``T`` steps, one in each of ``k`` equal parts, is ``k`` epochs of
    ``T / k`` batches; a uniform choice of ``k`` out of ``T`` costs no more.

    Attributes:
        batches: Number of batches per epoch.
        epochs: Number of epochs.
        expected_batch_size: Public constant by which the noisy sum is divided; usually the declared size of the data
            set over ``batches``.
    """

    @classmethod
    def for_dataset(cls, *, dataset_size: int, batch_size: float, epochs: int) -> Self:
        """Derive the number of batches from a *declared, public* data set size, rounded up."""
        size, batch = checked_sizes(dataset_size, batch_size)
        batches = math.ceil(size / batch)
        return cls(batches=batches, epochs=checks.count("epochs", epochs), expected_batch_size=size / batches)

    @property
    def assumptions(self) -> tuple[str, ...]:
        chosen = f"in each epoch every record is in one of {self.batches} batches"
        return (f"{chosen}, chosen by a secret, uniform and independent draw (random allocation)",)

    def described(self, num_steps: int) -> str:
        epochs = counted(num_steps // self.batches, "epoch")
        return f"{epochs} in which every record picks one of {self.batches:,} batches at random"

    def refusal(self, adjacency: Adjacency) -> str | None:
        return adjacency.refused_exchange(
            "BallsInBins is charged by the pair of a run with a record and a run without it. Use Adjacency.ADD_REMOVE "
            "or Adjacency.ZERO_OUT, or Poisson sampling, which is proven for an exchange as well."
        )

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield the batches of one epoch, which are disjoint and cover all records; some may be empty.

        Guarantee:
            The batch of a record is uniform and independent of all other records, of their number and of earlier
            epochs: adding or removing a record moves no other one within the epoch.
        """
        chosen = rng.integers(self.batches, size=num_examples)
        order = np.argsort(chosen, kind="stable").astype(np.int64)
        yield from np.split(order, np.cumsum(np.bincount(chosen, minlength=self.batches))[:-1])

    def amplify(self, event: DpEvent) -> DpEvent:
        return event if self.batches == 1 else RandomAllocationDpEvent(steps=self.batches, event=event)
