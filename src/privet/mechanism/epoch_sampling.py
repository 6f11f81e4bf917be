"""Batches that an epoch deals out: every example is in exactly one of them, and an epoch is charged as one event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from privet import checks
from privet.errors import ArgumentError
from privet.mechanism.sampling import SamplingDefaults, check_numbers, counted
from privet.vocabulary import Adjacency

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from numpy.typing import NDArray

# Names the partition's own child of the sampling key, so that no other draw of the run shares its randomness.
_PARTITION_CHILD = 0x70617274


class DealtBatches(SamplingDefaults):
    """Answers of samplers that deal all examples into the batches of an epoch, which share one event."""

    batches: int
    epochs: int

    @property
    def num_rounds(self) -> int:
        return self.epochs

    @property
    def steps_per_round(self) -> int:
        return self.batches

    @property
    def steps_per_epoch(self) -> int:
        return self.batches

    @property
    def inclusion(self) -> float:
        return 1 / self.batches

    def refusal(self, adjacency: Adjacency) -> str | None:
        """Refuse adding or removing a record, which would move the other records between batches."""
        if adjacency is Adjacency.ADD_REMOVE:
            return (
                f"{type(self).__name__} deals records into batches by position, so adding or removing one record moves "
                "others. Use Adjacency.ZERO_OUT or Adjacency.REPLACE_ONE (the size is then public), or, where every "
                "iterate may be seen, Poisson sampling."
            )
        return None

    def amplify(self, event: DpEvent) -> DpEvent:
        """Charge an epoch as one unamplified release: its batches are disjoint."""
        return event


@dataclass(frozen=True, kw_only=True)
class Shuffle(DealtBatches):
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
        check_numbers(self, "batches", "epochs")

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("each epoch uses every record at most once; shuffling itself is given no credit",)

    def described(self, num_steps: int) -> str:
        epochs = counted(num_steps // self.batches, "shuffled epoch")
        return f"{epochs} of {self.batches:,} batches; shuffling is given no credit"

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield an epoch's disjoint batches; with fewer examples than batches some are empty."""
        order = rng.permutation(num_examples).astype(np.int64)
        yield from np.array_split(order, self.batches)


@dataclass(frozen=True, kw_only=True)
class Cyclic(DealtBatches):
    """The data are dealt into ``batches`` disjoint batches once; every epoch uses them in the same order.

    When every iterate may be seen, an epoch is charged as one release that uses every example once, without any
    amplification. When only the last iterate is released, hidden-state accounting reads ``batches``, ``epochs`` and
    ``secret_partition``.

    The deal is either public or secret:

    * Public (the default): the example at place ``i`` of the data set is in batch ``i % batches``. Nothing random is
      involved, so a run that is continued by another process has the same batches.
    * Secret: a uniformly random deal, drawn from the key of the run. Keys are never stored, so a continued run would
      deal anew and an example could change its place in the epoch. That is harmless where a round is charged without
      credit for the deal (an epoch still uses every example once), and breaks every bound that follows one example
      through the epochs: such accounting must refuse to continue a run for which ``same_batches_after_restart`` is
      false.

    Attributes:
        batches: Number of batches per epoch.
        epochs: Number of epochs.
        expected_batch_size: Public constant by which every noisy sum is divided, whatever the size of the batch;
            usually the public size over ``batches``.
        secret_partition: Whether the deal is drawn from the run's secret key instead of being known to everybody.
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
        """Derive the number of batches from a public data set size; a last, smaller share is spread over all batches.

        With the sizes levelled out no batch is larger than ``batch_size``, which stays the divisor of every sum.
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
            are the same for every call with the same generator, however far that generator has been used. A secret
            deal puts an example into batch ``j`` with probability (size of ``j``) / ``num_examples``.
        """
        if not self.secret_partition:
            for place in range(self.batches):
                yield np.arange(place, num_examples, self.batches, dtype=np.int64)
            return
        order = _partition_generator(rng).permutation(num_examples).astype(np.int64)
        yield from np.array_split(order, self.batches)


def _partition_generator(rng: np.random.Generator) -> np.random.Generator:
    """Return a fresh generator that depends on the key of ``rng`` only, not on what was drawn from it."""
    key = rng.bit_generator.seed_seq
    if not isinstance(key, np.random.SeedSequence):
        raise ArgumentError(
            "A secret partition needs a generator made from a SeedSequence, so that every epoch deals alike; got one "
            f"made from {type(key).__name__}."
        )
    child = np.random.SeedSequence(key.entropy, spawn_key=(*key.spawn_key, _PARTITION_CHILD))
    return np.random.Generator(np.random.PCG64DXSM(child))
