"""Records that name their owner, and how the records of a person reach the sum of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from privet.errors import ArgumentError, DataError, LoopError
from privet.isolation.parts import with_tensors
from privet.mechanism.owners import Contribution, Owners, Pool, unpadded
from privet.mechanism.sampling import Sampling
from privet.training.batching import MapDataset, check_dataset
from privet.training.reading import Indices, ReadThrough
from privet.vocabulary import OneItem, Unit

LossFunction = Callable[..., Tensor]


@runtime_checkable
class HasOwners(Protocol):
    """A data set of records that knows the owner of each.

    Attributes:
        records: The data set that is read: one item is one record.
        owners: The person of each record. Another object stands for other records.
    """

    @property
    def records(self) -> MapDataset: ...
    @property
    def owners(self) -> Owners: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class PersonRecords:
    """A data set in which a person may have many records, each with its owner.

    The plan says how many records of a person take part: ``sampling.SampledPersons`` or ``sampling.BoundedPersons``.
    Give ``persons`` or ``person_of``. Numbers and texts name persons; equal names are one person.

    Guarantee:
        Every record has exactly one owner. Records without a name, or with several, are refused.

    Attributes:
        dataset: The records. It may be :class:`~privet.training.augmentation.Views` of records.
        persons: The owner of each record, in their order, such as a column of a table.
        person_of: The field of an item that names its owner, which the loss then does not see: a key of a mapping or
            a place in a tuple. Or a function from an item to the name. Every item is read once, at the start.
    """

    dataset: MapDataset
    persons: Iterable[object] | None = None
    person_of: str | int | Callable[[Any], object] | None = None

    def __post_init__(self) -> None:
        check_dataset(self.dataset)
        if isinstance(self.dataset, PersonRecords):
            raise ArgumentError(
                "The records name their owners already, and a record with several owners has no bound here. Give one "
                "owner of each record: PersonRecords(dataset=the records themselves, ...)."
            )
        if (self.persons is None) == (self.person_of is None):
            raise ArgumentError("PersonRecords needs one of persons (a column of names) and person_of (a field).")
        if self.owners.of_record.shape != (len(self.dataset),):
            raise DataError("persons must hold one name per record of the data set, and their numbers differ.")

    @cached_property
    def owners(self) -> Owners:
        return Owners.of(self._names())

    def _names(self) -> Iterator[object]:
        if self.persons is not None:
            yield from self.persons
            return
        named = self.person_of
        for index in range(len(self.dataset)):
            item = self.dataset[index]
            yield named(item) if callable(named) else _field(item, named)

    @cached_property
    def records(self) -> MapDataset:
        named = self.person_of
        return self.dataset if named is None or callable(named) else WithoutField(dataset=self.dataset, field=named)

    @property
    def one_item(self) -> OneItem:
        return OneItem(
            units=(Unit.RECORD,),
            explanation="Its records name their owners, so the plan must say how many of a person's records take part: "
            "sampling=pv.sampling.SampledPersons(...) or sampling=pv.sampling.BoundedPersons(...).",
        )

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        return self.records[index]


@dataclass(frozen=True, kw_only=True, eq=False)
class WithoutField:
    """Items without the field that names their owner."""

    dataset: MapDataset
    field: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        item = self.dataset[index]
        if isinstance(item, Mapping):
            return {key: value for key, value in item.items() if key != self.field}
        place = self.field % len(item)
        return (*item[:place], *item[place + 1 :])


def _field(item: Any, field: Any) -> object:
    try:
        if isinstance(item, Mapping) or (isinstance(field, int) and isinstance(item, tuple | list)):
            return item[field]
    except (LookupError, TypeError):
        pass
    raise DataError(
        f"person_of={field!r} names no field of the items, which are of type {type(item).__name__}. Name a key of a "
        "mapping or a place in a tuple, or pass a function from an item to its owner."
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Together(ReadThrough):
    """Reads the records of persons side by side: every part of a batch has the axes ``[person, record, ...]``.

    A batch is a pair: the collated records, and their weights, which sum to 1 over each person's records. Rows that
    fill up a shorter person are that person's own and have weight zero.
    """

    def read(self, indices: Indices) -> Any:
        places, counts = unpadded(indices)
        weights = counts / counts.sum(1, keepdims=True)
        shape, size = places.shape, places.size
        batch = self.inner.read(places.reshape(-1))

        def folded(tensor: Tensor) -> Tensor:
            if tensor.shape[:1] != (size,):
                raise DataError(
                    "The records of a person are read together, and a part of the batch has no row per record. "
                    "Collate tensors with one row per item, or draw one record per person: max_records=1."
                )
            return tensor.reshape(*shape, *tensor.shape[1:])

        return with_tensors(batch, folded), torch.from_numpy(weights.astype(np.float32))


def mean_over_records(losses: LossFunction) -> LossFunction:
    """Turn a function from records to their losses into one from persons to the means over their records.

    The model sees the records of all persons as one batch. Both engines find the persons in it by themselves, so the
    gradient that is clipped is the mean over a person's records.

    Guarantee:
        Each loss depends on the records of its own person alone, so clipping bounds the person.
    """

    def averaged(records: Any, weights: Tensor) -> Tensor:
        rows = as_rows(records)
        found = losses(*(rows if isinstance(rows, tuple | list) else (rows,)))
        return weighted_mean(found, weights)

    return averaged


def as_rows(records: Any) -> Any:
    """Return the records of persons as one batch of records."""
    return with_tensors(records, _flat)


def _flat(tensor: Tensor) -> Tensor:
    return tensor.flatten(0, 1)


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """Return one loss per person from one loss per record."""
    if losses.shape != (weights.numel(),):
        raise LoopError(
            f"The loss function got {weights.numel()} records and must return one loss for each of them, never a mean; "
            f"it returned {list(losses.shape)}. The mean over a person's records is taken by the session."
        )
    return (losses.reshape(weights.shape) * weights.to(losses.dtype)).sum(1)


def persons_of(sampling: Sampling, dataset: object) -> PersonDraws | None:
    """Return the draws of persons' records, for a plan and a data set that were checked; None without persons."""
    if sampling.contribution is None:
        return None
    assert isinstance(dataset, HasOwners), "check_unit refuses other data sets"
    return PersonDraws(sampling=sampling, contribution=sampling.contribution, dataset=dataset)


@dataclass(kw_only=True, eq=False)
class PersonDraws:
    """Draws the batches of a run from the records of persons.

    Guarantee:
        A batch holds at most ``contribution.max_records`` records of a person. What is chosen for the whole run is
        chosen once, from the secret stream of the records.
    """

    sampling: Sampling
    contribution: Contribution
    dataset: HasOwners
    _of: Owners | None = None
    _pool: Pool | None = None

    def round(self, items: np.random.Generator, records: np.random.Generator) -> Iterator[Indices]:
        """Yield the records of each batch of one round.

        Args:
            items: The stream of the sampler, which draws persons or kept records.
            records: The stream that chooses among the records of a person.
        """
        owners = self.dataset.owners
        if self._pool is None or owners is not self._of:
            self._of, self._pool = owners, self.contribution.pool(owners, records)
        pool = self._pool
        for drawn in self.sampling.round_batches(len(pool), items):
            yield pool.records(drawn, records)
