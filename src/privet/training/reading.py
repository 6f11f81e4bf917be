"""From indices to a batch in memory: data sets are read by whole batches where they can be, else item by item.

A reader can be sent to another process, where it is all that is known of the run. This module imports nothing of it.
"""

from __future__ import annotations

import inspect
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import StackDataset, Subset, TensorDataset, default_collate

from privet.isolation.parts import Structure, check_leaves, flattened
from privet.training.batching import BatchedDataset, Collate, placed, tensors_held

Indices = NDArray[np.int64]


@runtime_checkable
class HeldInMemory(Protocol):
    """A data set that can show all it holds."""

    def held_tensors(self) -> Iterator[Tensor]:
        """Yield every tensor that its items are taken from, in a fixed order."""
        ...


@runtime_checkable
class Digested(Protocol):
    """A data set that reads its records from elsewhere, and knows a digest of them all."""

    def records_digest(self) -> bytes:
        """Return the digest."""
        ...


class Reader(Protocol):
    """Reads batches of one data set."""

    @property
    def is_in_memory(self) -> bool:
        """Whether the examples lie in memory, so that another process could only copy them."""
        ...

    def read(self, indices: Indices) -> Any:
        """Return the examples at ``indices`` as one batch: the same as collating their items."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorRows:
    """Rows of tensors, as a ``TensorDataset`` has them; with one bare tensor the batch is one, too."""

    tensors: Sequence[Tensor]
    is_bare: bool = False

    @property
    def is_in_memory(self) -> bool:
        return True

    def read(self, indices: Indices) -> Any:
        chosen = torch.from_numpy(indices)
        rows = [tensor[placed(chosen, tensor.device)] for tensor in self.tensors]
        return rows[0] if self.is_bare else rows


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrayRows:
    """Rows of a numpy array. One that is a file mapped into memory is opened anew in another process."""

    array: NDArray[Any]

    @property
    def is_in_memory(self) -> bool:
        return not isinstance(self.array, np.memmap)

    def read(self, indices: Indices) -> Any:
        return torch.from_numpy(np.asarray(self.array[indices]))

    def __reduce__(self) -> tuple[Any, ...]:
        array, base = self.array, cast(object, self.array.base)
        # a part of a mapped array does not know where in the file it begins
        if isinstance(array, np.memmap) and isinstance(base, mmap.mmap) and array.filename is not None:
            order = "C" if array.flags.c_contiguous else "F"
            return _mapped_rows, (str(array.filename), array.dtype, array.offset, array.shape, order)
        return _array_rows, (np.asarray(array),)


def _mapped_rows(file: str, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...], order: Any) -> ArrayRows:
    return ArrayRows(array=np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape, order=order))


def _array_rows(array: NDArray[Any]) -> ArrayRows:
    return ArrayRows(array=array)


@dataclass(frozen=True, kw_only=True, eq=False)
class Taken:
    """A data set that collates by itself."""

    dataset: BatchedDataset

    @property
    def is_in_memory(self) -> bool:
        return isinstance(self.dataset, HeldInMemory) or _is_on_a_device(self.dataset)

    def read(self, indices: Indices) -> Any:
        return self.dataset.take(torch.from_numpy(indices))


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadThrough:
    """A reader that takes its examples from another one."""

    inner: Reader

    @property
    def is_in_memory(self) -> bool:
        return self.inner.is_in_memory


@dataclass(frozen=True, kw_only=True, eq=False)
class Chosen(ReadThrough):
    """Some examples of a data set, as a ``Subset`` has them."""

    places: Indices

    def read(self, indices: Indices) -> Any:
        return self.inner.read(self.places[indices])


@dataclass(frozen=True, kw_only=True, eq=False)
class Stacked:
    """Several data sets side by side, as a ``StackDataset`` has them."""

    readers: Mapping[str, Reader] | Sequence[Reader]

    @property
    def is_in_memory(self) -> bool:
        readers = self.readers.values() if isinstance(self.readers, Mapping) else self.readers
        return all(reader.is_in_memory for reader in readers)

    def read(self, indices: Indices) -> Any:
        if isinstance(self.readers, Mapping):
            return {name: reader.read(indices) for name, reader in self.readers.items()}
        return [reader.read(indices) for reader in self.readers]


@dataclass(frozen=True, kw_only=True, eq=False)
class Items:
    """Items that are collated, asked for all at once where the data set has torch's ``__getitems__``."""

    dataset: Any
    collate: Collate

    @property
    def is_in_memory(self) -> bool:
        return _is_on_a_device(self.dataset)

    def read(self, indices: Indices) -> Any:
        places = indices.tolist()
        at_once = getattr(self.dataset, "__getitems__", None)
        return self.collate(at_once(places) if callable(at_once) else [self.dataset[place] for place in places])


def reader_of(dataset: Any, collate: Collate | None) -> Reader:
    """Return the fastest way to read batches of a data set.

    Args:
        dataset: A map-style data set. A tensor or an array of numbers is one, too: its items are its rows.
        collate: Turns a list of items into a batch; torch's default if None.
    """
    if collate is not None:
        return Items(dataset=dataset, collate=collate)
    if type(dataset) is TensorDataset:
        return TensorRows(tensors=dataset.tensors)
    if isinstance(dataset, Tensor):
        return TensorRows(tensors=[dataset], is_bare=True)
    if isinstance(dataset, np.ndarray) and dataset.dtype.kind in "biufc":
        return ArrayRows(array=dataset)
    if type(dataset) is Subset:
        return Chosen(inner=reader_of(dataset.dataset, None), places=np.asarray(dataset.indices, dtype=np.int64))
    if type(dataset) is StackDataset:
        parts = dataset.datasets
        if isinstance(parts, dict):
            return Stacked(readers={name: reader_of(part, None) for name, part in parts.items()})
        return Stacked(readers=[reader_of(part, None) for part in parts])
    if takes_indices(dataset):
        return Taken(dataset=dataset)
    return Items(dataset=dataset, collate=default_collate)


def takes_indices(dataset: object) -> bool:
    """Tell whether a data set hands out many items by ``take(indices)``; a ``take(n)`` is something else."""
    if not isinstance(dataset, BatchedDataset):
        return False
    try:
        return "indices" in inspect.signature(dataset.take).parameters
    except (TypeError, ValueError):  # built-in functions may have no signature
        return False


def _is_on_a_device(dataset: object) -> bool:
    """Tell whether a data set, or one that it is made of, holds tensors outside the processor's memory."""
    while dataset is not None:
        held = dataset.held_tensors() if isinstance(dataset, HeldInMemory) else tensors_held(dataset)
        if any(tensor.device.type != "cpu" for tensor in held):
            return True
        dataset = getattr(dataset, "dataset", None)
    return False


@dataclass(frozen=True, kw_only=True, eq=False)
class Remote:
    """A reader as workers see it: batches come as a list of parts, checked, with the structure that holds them.

    Guarantee:
        Data set, collate function and the indices that are asked for are all that a worker is given.
    """

    reader: Reader

    def __getitems__(self, indices: Indices) -> tuple[list[Any], Structure, Indices] | None:
        """Return a batch in parts, and which examples they are; None where nothing is asked for."""
        if not len(indices):
            return None
        leaves, structure = flattened(self.reader.read(indices))
        check_leaves(leaves)
        return leaves, structure, indices


def as_it_is(batch: Any) -> Any:
    """Collate nothing: :class:`Remote` returns batches."""
    return batch
