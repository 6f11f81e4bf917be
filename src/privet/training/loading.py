"""From the indices of physical batches to tensors on a device: in the training process, or by workers ahead of it."""

from __future__ import annotations

import itertools
import multiprocessing
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from privet.errors import DataError, LoopError
from privet.isolation.parts import check_leaves, flattened
from privet.training.batching import Collate, MapDataset, placed, split
from privet.training.performance import Performance
from privet.training.persons import Together
from privet.training.reading import Indices, Reader, Remote, as_it_is, reader_of

# Both make processes that share no memory with this one. With the first, the death of a worker is noticed where its
# batch is waited for, and not by an exception in the middle of an update.
_START = next(method for method in ("forkserver", "spawn") if method in multiprocessing.get_all_start_methods())
# How long the death of a worker may take to be told after its connection has ended.
_GRACE_S = 5.0


class Loader(Protocol):
    """Brings the physical batches of a run to its device."""

    reads_ahead: ClassVar[bool]
    """Whether ``begin`` must be called with the indices that are fetched next."""

    def begin(self, indices: Indices, size: int) -> None:
        """Make ready to fetch the examples of a charged step in physical batches of this size."""
        ...

    def fetch(self, indices: Indices) -> Any:
        """Return the examples at ``indices`` as one batch on the device."""
        ...

    def read_also(self, upcoming: Callable[[], Iterable[Indices]]) -> None:
        """Read further batches, of charged rounds, behind those of the present step."""
        ...

    def close(self) -> None:
        """End the workers, if any were started."""
        ...


class _Here:
    """Loaders that read in the training process, when a batch is asked for."""

    reads_ahead: ClassVar[bool] = False

    def begin(self, indices: Indices, size: int) -> None:
        """Nothing to do."""

    def read_also(self, upcoming: Callable[[], Iterable[Indices]]) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldTensors(_Here):
    """The rows of a ``TensorDataset``: the same batch as collating one item after another, without a call for each."""

    tensors: Sequence[Tensor]
    device: torch.device

    def fetch(self, indices: Indices) -> Any:
        chosen, parts = torch.from_numpy(indices), list[Tensor]()
        for tensor in self.tensors:
            there = chosen if tensor.device.type == "cpu" else placed(chosen, tensor.device)
            parts.append(tensor[there].to(self.device, non_blocking=True))
        return parts


@dataclass(frozen=True, kw_only=True, eq=False)
class InProcess(_Here):
    """Reads each batch when it is asked for."""

    reader: Reader
    device: torch.device

    def fetch(self, indices: Indices) -> Any:
        leaves, structure = flattened(self.reader.read(indices))
        check_leaves(leaves)
        return structure.filled(_moved(leaves, self.device))


def in_process(
    dataset: MapDataset, collate: Collate | None, device: torch.device, *, records_per_item: int = 1
) -> Loader:
    """Return a loader that needs no other process; see :func:`open_loader`."""
    if records_per_item > 1:
        return InProcess(reader=Together(inner=reader_of(dataset, collate)), device=device)
    if collate is None and type(dataset) is TensorDataset:
        return HeldTensors(tensors=dataset.tensors, device=device)
    return InProcess(reader=reader_of(dataset, collate), device=device)


def fetch(dataset: MapDataset, indices: Indices, collate: Collate | None, device: torch.device) -> Any:
    """Return the examples at ``indices`` as one batch on ``device``."""
    return in_process(dataset, collate, device).fetch(indices)


def open_loader(
    dataset: MapDataset,
    collate: Collate | None,
    device: torch.device,
    performance: Performance,
    *,
    records_per_item: int = 1,
) -> Loader:
    """Return the loader that the choices of speed ask for; workers are started and have answered.

    Examples that lie in memory, or on a device, are read where they are: a worker could only copy them.

    Args:
        dataset: The data set that is read.
        collate: Turns a list of items into a batch; torch's default if None.
        device: Where batches go.
        performance: The choices of speed.
        records_per_item: How many items of the data set are read together, as the records of one person.
    """
    if performance.workers and not (reader := reader_of(dataset, collate)).is_in_memory:
        return Workers(reader if records_per_item == 1 else Together(inner=reader), device, performance)
    return in_process(dataset, collate, device, records_per_item=records_per_item)


class Workers:
    """Worker processes of torch's ``DataLoader`` that read the physical batches which are asked for next.

    Guarantee:
        Workers are new processes that share no memory with this one: they are given the data set, the collate function
        and the indices to read, and hold neither keys nor the ledger. Only batches of charged rounds are asked for:
        those of the step in ``begin``, and then those that ``read_also`` was told of.
    """

    reads_ahead: ClassVar[bool] = True

    def __init__(self, reader: Reader, device: torch.device, performance: Performance) -> None:
        """Start the workers and wait for each of them, so that nothing is charged if one cannot start.

        Raises:
            DataError: they cannot be started with this data set.
        """
        self._upcoming: Callable[[], Iterable[Indices]] = tuple  # nothing follows the present step
        self._device = device
        pins = performance.pin_memory and device.type == "cuda"
        self._copies = torch.cuda.Stream(device) if pins else None  # type: ignore[no-untyped-call]
        self._parts: Iterator[Indices] = iter(())
        self._processes: Sequence[BaseProcess] = ()
        # The parts that workers were asked for, in order. None: nothing was asked for, or nobody waits for it any more.
        self._in_flight: deque[Indices | None] = deque()
        generator = torch.Generator()
        generator.set_state(torch.get_rng_state())  # as a DataLoader seeds its workers, and the run's own draws stay
        loader: DataLoader[Any] = DataLoader(
            Remote(reader=reader),  # type: ignore[arg-type]
            batch_sampler=_Asked(self),  # type: ignore[arg-type]
            collate_fn=as_it_is,
            num_workers=performance.workers,
            prefetch_factor=performance.prefetch,
            pin_memory=pins,
            persistent_workers=True,
            multiprocessing_context=_START,
            generator=generator,
        )
        try:
            with warnings.catch_warnings():  # torch's advice would be to share this process's memory
                warnings.filterwarnings("ignore", message="Got pickle error")
                batches: Any = iter(loader)
            # torch's own list: multiprocessing.active_children() forgets those that are dead already
            self._batches, self._processes = batches, tuple(batches._workers)
            for _ in range(performance.workers):
                self._answer()
        except DataError:
            raise
        except Exception as error:  # pickling a data set may raise anything
            raise DataError(
                f"The workers cannot be started: {error}. The data set and the collate function go to other processes: "
                "define them in a module, not in a function or a notebook cell, and start training under "
                "if __name__ == '__main__'. Performance(workers=0) reads in the training process."
            ) from error

    def read_also(self, upcoming: Callable[[], Iterable[Indices]]) -> None:
        self._upcoming = upcoming

    def begin(self, indices: Indices, size: int) -> None:
        """Ask for the parts of a charged batch; parts on their way are not asked for again.

        A pass that starts over, with the same examples and perhaps fewer at a time, asks anew for all of them.
        """
        course = self._course(indices, size)
        awaited = [part for part in self._in_flight if part is not None]
        expected = list(itertools.islice(course, len(awaited)))
        if len(expected) < len(awaited) or not all(map(np.array_equal, expected, awaited)):
            self._in_flight = deque([None] * len(self._in_flight))
            course = self._course(indices, size)
        self._parts = course

    def _course(self, indices: Indices, size: int) -> Iterator[Indices]:
        yield from split(indices, size)
        for batch in self._upcoming():
            yield from split(batch, size)

    def next_part(self) -> Indices:
        """Return the next part of the course for the next free worker, or None."""
        part = next(self._parts, None)
        self._in_flight.append(part)
        return _NOTHING if part is None else part

    def fetch(self, indices: Indices) -> Any:
        """Return the next batch that was asked for; it is the one at ``indices``.

        Raises:
            DataError: a worker died.
        """
        answer = None
        while answer is None:
            answer = self._answer()
        leaves, structure, read = answer
        if not np.array_equal(read, indices):
            raise LoopError("The workers read other examples than this step was asked for. Its round stays charged.")
        return structure.filled(_moved(leaves, self._device, self._copies))

    def _answer(self) -> Any:
        """Wait for the next answer; None if nobody waits for it."""
        try:
            found = next(self._batches)
        except Exception as error:
            # A connection that ends is often the first sign of a death, and the system tells of it a moment later.
            grace = _GRACE_S if isinstance(error, (ConnectionError, EOFError)) else 0.0
            if wait([process.sentinel for process in self._processes], timeout=grace):
                self._tell_of_death(error)
            if self._in_flight.popleft() is None:
                return None  # whatever went wrong with it, nobody waits for it
            raise
        return None if self._in_flight.popleft() is None else found

    def _tell_of_death(self, error: Exception) -> NoReturn:
        codes = [process.exitcode for process in self._processes if process.exitcode is not None]
        how = ", ".join(f"signal {-code}" if code < 0 else f"exit code {code}" for code in codes)
        raise DataError(
            f"A worker that reads the data set died ({how}). Its messages are on stderr. Usual causes: "
            "memory or shared memory (/dev/shm) ran out, the data set cannot be imported or opened in another process, "
            "or training is not started under if __name__ == '__main__'. A round that was begun stays charged; the run "
            "can be resumed."
        ) from error

    def close(self) -> None:
        """End the workers; parts that they have read are dropped."""
        self._parts = iter(())
        self._batches._shutdown_workers()


_NOTHING: Indices = np.empty(0, dtype=np.int64)


class _Asked:
    """The batch sampler of the workers: whatever the run asks for next. It has no end."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def __iter__(self) -> Iterator[Indices]:
        return self

    def __next__(self) -> Indices:
        return self._workers.next_part()


def _moved(leaves: Sequence[Any], device: torch.device, copies: torch.cuda.Stream | None = None) -> list[Any]:
    """Return the parts of a batch with its tensors on a device, copied beside the computation where that can be."""
    if copies is None:
        return [leaf.to(device, non_blocking=True) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    present = torch.cuda.current_stream(device)
    with torch.cuda.stream(copies):
        moved = _moved(leaves, device)
    present.wait_stream(copies)
    for leaf in moved:
        if isinstance(leaf, Tensor) and leaf.is_cuda:
            leaf.record_stream(present)  # its memory is not used again before the computation is done with it
    return moved
