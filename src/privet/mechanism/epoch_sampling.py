"""Samplers that partition the data: every example is in one batch of an epoch, and an epoch is charged as one event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from privet import checks
from privet.errors import ArgumentError
from privet.mechanism.sampling_defaults import SamplingDefaults, check_numbers, counted
from privet.vocabulary import Adjacency

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from numpy.typing import NDArray

# Spawn key of the partition below the sampling key: no other draw of the run shares its randomness.
_PARTITION_CHILD = 0x70617274


@dataclass(frozen=True, kw_only=True)
class EpochBatches(SamplingDefaults):
    """A sampler whose rounds are epochs, in which an example is in one of ``batches`` batches.

    Attributes:
        batches: Number of batches per epoch.
        epochs: Number of epochs.
        expected_batch_size: Public constant by which the noisy sum is divided.
    """

    batches: int
    epochs: int
    expected_batch_size: float

    def __post_init__(self) -> None:
        check_numbers(self, "batches", "epochs")

    @property
    def num_rounds(self) -> int:
        return self.epochs

    @property
    def steps_per_round(self) -> int:
        return self.batches

    steps_per_epoch = steps_per_round

    @property
    def inclusion(self) -> float:
        return 1 / self.batches


class DealtBatches(EpochBatches):
    """A sampler that partitions all examples into the batches of an epoch, which share one event."""

    def refusal(self, adjacency: Adjacency) -> str | None:
        if adjacency is Adjacency.ADD_REMOVE:
            return (
                f"{type(self).__name__} deals records into batches by position, so adding or removing one record moves "
                "others. Use Adjacency.ZERO_OUT or Adjacency.REPLACE_ONE (the size is then public), or, if every "
                "iterate is released, Poisson sampling."
            )
        return None

    def amplify(self, event: DpEvent) -> DpEvent:
        return event  # the batches of an epoch are disjoint: one release, without amplification


@dataclass(frozen=True, kw_only=True)
class Shuffle(DealtBatches):
    """Each epoch shuffles all examples and splits them into ``batches`` batches. This is not Poisson sampling.

    No tight bound for shuffling is known, so an epoch is charged as one release that uses every example once, without
    amplification. The size of the data set must be public: adding or removing a record would move other records to
    other batches, so that adjacency is refused.

    Attributes:
        batches: Number of batches per epoch.
        epochs: Number of epochs.
        expected_batch_size: Public constant by which the noisy sum is divided; usually the public size over
            ``batches``.
    """

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("each epoch uses every record at most once; shuffling itself is given no credit",)

    def described(self, num_steps: int) -> str:
        epochs = counted(num_steps // self.batches, "shuffled epoch")
        return f"{epochs} of {self.batches:,} batches; shuffling is given no credit"

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield the disjoint batches of an epoch; with fewer examples than batches some are empty."""
        order = rng.permutation(num_examples).astype(np.int64)
        yield from np.array_split(order, self.batches)


@dataclass(frozen=True, kw_only=True)
class Cyclic(DealtBatches):
    """The data are partitioned once into ``batches`` disjoint batches; every epoch uses them in the same order.

    If every iterate is released, an epoch is charged as one release that uses every example once, without
    amplification. If only the last iterate is released, hidden-state accounting reads ``batches``, ``epochs`` and
    ``secret_partition``.

    The partition is either public or secret:

    * Public (the default): example ``i`` of the data set is in batch ``i % batches``. Nothing is random, so a resumed
      run has the same batches.
    * Secret: a uniformly random partition, drawn from the key of the run. Keys are never stored, so a resumed run draws
      another partition and an example may move to another batch. This is harmless if rounds are charged without credit
      for the partition (an epoch still uses every example once). It breaks every bound that follows one example through
      the epochs: such accounting must refuse to resume a run for which ``same_batches_after_restart`` is false.

    Attributes:
        batches: Number of batches per epoch.
        epochs: Number of epochs.
        expected_batch_size: Public constant by which every noisy sum is divided, independent of the size of the batch;
            usually the public size over ``batches``.
        secret_partition: Whether the partition is drawn from the secret key of the run.
    """

    batches: int
    epochs: int
    expected_batch_size: float
    secret_partition: bool = False

    def __post_init__(self) -> None:
        check_numbers(self, "batches", "epochs")
        if not isinstance(self.secret_partition, bool):
            raise ArgumentError(f"secret_partition must be True or False, got {self.secret_partition!r}.")

    @classmethod
    def for_dataset(cls, *, dataset_size: int, batch_size: int, epochs: int, secret_partition: bool = False) -> Self:
        """Derive the number of batches from a public data set size; the sizes of the batches differ by at most one.

        No batch is larger than ``batch_size``, which is the divisor of every sum.
        """
        dataset_size = checks.count("dataset_size", dataset_size)
        batch_size = checks.count("batch_size", batch_size)
        if batch_size > dataset_size:
            raise ArgumentError(f"batch_size ({batch_size}) is larger than the public dataset_size ({dataset_size}).")
        return cls(
            batches=-(-dataset_size // batch_size),
            epochs=epochs,
            expected_batch_size=batch_size,
            secret_partition=secret_partition,
        )

    @property
    def fixed_batches(self) -> int | None:
        return self.batches

    @property
    def same_batches_after_restart(self) -> bool:
        return not self.secret_partition

    @property
    def separation(self) -> int:
        return self.batches

    @property
    def assumptions(self) -> tuple[str, ...]:
        if self.secret_partition:
            return ("each epoch uses every record at most once, in batches dealt by a secret key",)
        return ("each epoch uses every record at most once, in batches fixed by the public order of the data",)

    def described(self, num_steps: int) -> str:
        epochs = counted(num_steps // self.batches, "epoch")
        return f"{epochs} of the same {self.batches:,} batches, in the same order"

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield the batches of one epoch, in order; with fewer examples than batches some are empty.

        Guarantee:
            The batches are disjoint, cover all examples, differ in size by at most one with the larger ones first, and
            are the same for every call with the same generator, independent of earlier draws from it. A secret
            partition puts an example into batch ``j`` with probability (size of ``j``) / ``num_examples``.
        """
        if not self.secret_partition:
            for place in range(self.batches):
                yield np.arange(place, num_examples, self.batches, dtype=np.int64)
            return
        order = partition_generator(rng).permutation(num_examples).astype(np.int64)
        yield from np.array_split(order, self.batches)


def partition_generator(rng: np.random.Generator) -> np.random.Generator:
    """Return a new generator that depends on the key of ``rng`` only, not on earlier draws."""
    key = rng.bit_generator.seed_seq
    if not isinstance(key, np.random.SeedSequence):
        raise ArgumentError(
            "A secret partition needs a generator made from a SeedSequence, so that all epochs have the same batches; "
            f"this one is made from {type(key).__name__}."
        )
    child = np.random.SeedSequence(key.entropy, spawn_key=(*key.spawn_key, _PARTITION_CHILD))
    return np.random.Generator(np.random.PCG64DXSM(child))
