"""Data sets, and the parts of a logical batch: how it is split, cut and repeated, and can be run again."""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset

from privet.errors import DataError
from privet.isolation.parts import leaves_of, with_tensors

Collate = Callable[[list[Any]], Any]


@runtime_checkable
class MapDataset(Protocol):
    """A data set whose items can be asked for by index; one item is one unit of privacy."""

    def __len__(self) -> int:
        """Return the number of items."""
        ...

    def __getitem__(self, index: int) -> Any:
        """Return one item."""
        ...


@runtime_checkable
class BatchedDataset(Protocol):
    """A data set that can hand out many items at once, already collated.

    The argument is named ``indices``: other classes have a ``take`` that means something else.
    """

    def take(self, indices: torch.Tensor) -> Any:
        """Return the items at ``indices`` as one batch."""
        ...


def check_dataset(dataset: object) -> MapDataset:
    """Return the data set if its items can be sampled by index; explain what to pass otherwise."""
    if isinstance(dataset, DataLoader):
        raise DataError(
            "A DataLoader brings its own sampler, whose batches the plan does not describe. Pass the data set itself; "
            "the plan's sampling piece draws the batches. Its collate_fn goes to privatize(collate_fn=...), its "
            "num_workers to Performance(workers=...)."
        )
    if isinstance(dataset, tuple) and dataset and all(isinstance(part, torch.Tensor | np.ndarray) for part in dataset):
        raise DataError(
            "A tuple of arrays would be read as a data set of that many items. Pass "
            "torch.utils.data.TensorDataset(*tensors) or torch.utils.data.StackDataset(*arrays), whose items are "
            "examples."
        )
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, MapDataset):
        raise DataError(
            f"{type(dataset).__name__} cannot be sampled by index. Pass a data set with __len__ and __getitem__. A "
            "stream becomes one by privet.datasets.RecordStream.stored(stream, folder=...), which keeps it in files."
        )
    return dataset


def placed(indices: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return indices on a device; a copy from memory that is not pinned would wait until the device is idle."""
    return indices.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else indices


def with_gradients(batch: Any, size: int) -> tuple[Any, list[torch.Tensor]]:
    """Return the batch with its real-valued tensors as copies of leaves that require gradients, and those leaves.

    Copies, because a leaf could not be changed in place. Tensors without an axis of the examples are left alone.
    """
    leaves: list[torch.Tensor] = []

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or size not in tensor.shape:
            return tensor
        leaves.append(tensor.detach().requires_grad_())
        return leaves[-1].clone()

    return with_tensors(batch, copied), leaves


def split(indices: NDArray[np.int64], physical_batch_size: int) -> Iterator[NDArray[np.int64]]:
    """Cut a logical batch into physical ones; an empty logical batch has none."""
    for start in range(0, len(indices), physical_batch_size):
        yield indices[start : start + physical_batch_size]


# A data set that holds more tensors than this holds one for each example.
_FEW = 64
SMALLEST_CUT = 5
"""Fewer examples do not fall into two unequal parts of two and more."""


def has_rows(batch: Any, size: int) -> bool:
    """Whether every part of a batch has one row per example, so that rows can be taken and left."""
    return all(isinstance(leaf, torch.Tensor) and leaf.shape[:1] == (size,) for leaf in leaves_of(batch))


def resized(batch: Any, size: int, *, limit: int) -> Iterator[tuple[Any, int]]:
    """Yield a batch with one example less, or with its first one again, then another: they have two sizes above one.

    Never more than ``limit`` examples, which may be all that fits into memory: where that is below three, batches of
    two sizes above one do not occur.
    """
    for wanted in {1: (2, 3), 2: (3, 2)}.get(size, (size - 1, size)) if limit > 2 else ():
        rows = torch.arange(wanted) % size
        yield with_tensors(batch, functools.partial(_rows_of, rows=rows)), wanted


def _rows_of(tensor: torch.Tensor, *, rows: torch.Tensor) -> torch.Tensor:
    return tensor[rows.to(tensor.device)]


def cut_in_two(batch: Any, size: int) -> Iterator[tuple[Any, int]]:
    """Yield two unequal parts of a batch, with their sizes.

    Where that can be, no part has as many examples as an example has positions or channels along some axis: a length
    that equals the number of examples by chance looks like an axis of examples.
    """
    half = size // 2 + 1
    lengths = {length for leaf in leaves_of(batch) for length in leaf.shape[1:]}
    fitting = (number for number in range(half, size - 1) if lengths.isdisjoint((number, size - number)))
    first = next(fitting, half)
    for rows in (slice(0, first), slice(first, size)):
        yield with_tensors(batch, operator.itemgetter(rows)), rows.stop - rows.start


def tensors_held(dataset: object) -> Sequence[torch.Tensor]:
    """Return the tensors that a data set holds itself, such as those of a ``TensorDataset``."""
    held = list(vars(dataset).values()) if hasattr(dataset, "__dict__") else []
    inner = [item for value in held if isinstance(value, list | tuple) for item in value[:_FEW]]
    return [value for value in (*held, *inner) if isinstance(value, torch.Tensor)]


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The states of the global generators of Python, numpy, torch and one device at one time.

    They have no part in noise or sampling, whose streams are the session's own.
    """

    python: Any
    numpy: Any
    torch_cpu: torch.Tensor
    on_device: torch.Tensor | None
    device: torch.device

    @classmethod
    def now(cls, device: torch.device) -> Self:
        """Take the present states; nothing waits for the device."""
        is_cuda = device.type == "cuda"
        return cls(
            python=random.getstate(),
            numpy=np.random.get_state(),
            torch_cpu=torch.get_rng_state(),
            on_device=torch.cuda.get_rng_state(device) if is_cuda else None,
            device=device,
        )

    def restore(self) -> None:
        """Set the generators to these states."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch_cpu)
        if self.on_device is not None:
            torch.cuda.set_rng_state(self.on_device, self.device)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw the same numbers again in the block, and go on afterwards as if it had not been."""
        after = Draws.now(self.device)
        self.restore()
        try:
            yield
        finally:
            after.restore()


@contextmanager
def without_search() -> Iterator[None]:
    """Run shapes that will not come again without cuDNN's search for its fastest algorithm, which takes longer."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
