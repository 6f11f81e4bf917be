"""Every way to read a batch gives what collating its items one after another gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, StackDataset, Subset, TensorDataset, default_collate

from privet.augmentation import Views
from privet.datasets.arrays import ArrayDataset
from privet.isolation.parts import flattened
from privet.training.loading import fetch
from privet.training.reading import ArrayRows, Reader, TensorRows, reader_of, takes_indices
from privet.training.start import privatize
from tests.training.tools import CPU, flat, losses_of, network, plain_sgd, poisson, run

NUM = 12
PLACES = np.array([7, 0, 3, 11, 3], dtype=np.int64)


def sent(value: Any) -> Any:
    """Return what another process would get."""
    return ForkingPickler.loads(ForkingPickler.dumps(value))


def arrays() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(NUM, 3)).astype(np.float32), generator.integers(0, 2, NUM)


def mapped(path: Path) -> np.ndarray[Any, Any]:
    inputs, _ = arrays()
    file = np.memmap(path / "inputs.bin", dtype=inputs.dtype, mode="w+", shape=inputs.shape, offset=64)
    file[:] = inputs
    file.flush()
    return np.memmap(path / "inputs.bin", dtype=inputs.dtype, mode="r", shape=inputs.shape, offset=64)


class Columns(Dataset[dict[str, Tensor]]):
    """Like a table of Hugging Face's: ``take(n)`` gives the first rows, and a list of indices gives columns."""

    def __init__(self) -> None:
        inputs, labels = arrays()
        self.columns = {"x": torch.from_numpy(inputs), "y": torch.from_numpy(labels)}
        self.reads = 0

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, key: Any) -> dict[str, Tensor]:
        self.reads += 1
        return {name: column[key] for name, column in self.columns.items()}

    def __getitems__(self, keys: list[int]) -> list[dict[str, Tensor]]:
        found = self[keys]
        return [{name: column[place] for name, column in found.items()} for place in range(len(keys))]

    def take(self, n: int) -> Columns:
        raise AssertionError(f"the first {n} rows were taken for a batch")


def several(path: Path) -> Iterator[tuple[str, Any]]:
    inputs, labels = arrays()
    tensors = TensorDataset(torch.from_numpy(inputs), torch.from_numpy(labels))
    yield "TensorDataset", tensors
    yield "tensor", torch.from_numpy(inputs)
    yield "array", inputs
    yield "array of numbers", labels
    yield "mapped array", mapped(path)
    yield "subset", Subset(tensors, list(range(NUM))[::-1])
    yield "subset of a subset", Subset(Subset(tensors, list(range(NUM))[::-1]), range(NUM))
    yield "stack", StackDataset(mapped(path), labels)  # type: ignore[arg-type]
    yield "stack by name", StackDataset(x=tensors, y=labels)  # type: ignore[arg-type]
    yield "subset of a stack", Subset(StackDataset(inputs, labels), list(range(NUM))[::-1])  # type: ignore[arg-type]
    yield "columns", Columns()
    yield "subset of columns", Subset(Columns(), list(range(NUM))[::-1])
    yield "own class", ArrayDataset(features=torch.from_numpy(inputs), labels=torch.from_numpy(labels))
    yield "list", list(torch.from_numpy(inputs))


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # of the items, not of what is read
def test_whole_batches_are_the_collated_items(tmp_path: Path) -> None:
    for name, dataset in several(tmp_path):
        expected, wanted = flattened(default_collate([dataset[int(place)] for place in PLACES]))
        found, structure = flattened(reader_of(dataset, None).read(PLACES))
        assert len(found) == len(expected), name
        assert all(map(torch.equal, found, expected)), name
        assert [part.dtype for part in found] == [part.dtype for part in expected], name
        is_own = name == "own class"  # gives a tuple, where torch's default gives a list
        assert is_own or structure == wanted, name


def test_a_reader_that_was_sent_to_another_process_reads_the_same(tmp_path: Path) -> None:
    for name, dataset in several(tmp_path):
        reader: Reader = reader_of(dataset, None)
        one, other = (flattened(each.read(PLACES))[0] for each in (reader, sent(reader)))
        assert all(map(torch.equal, one, other)), name


def test_a_mapped_array_is_opened_anew_and_not_copied(tmp_path: Path) -> None:
    array = mapped(tmp_path)
    reader = reader_of(array, None)
    assert not reader.is_in_memory
    assert len(ForkingPickler.dumps(reader)) < 1_000
    opened = sent(reader).array
    assert isinstance(opened, np.memmap)
    assert np.array_equal(opened, array)
    part = reader_of(array[2:], None)
    assert np.array_equal(sent(part).read(np.arange(3)), array[2:5])


def test_columns_are_read_once_per_batch() -> None:
    columns = Columns()
    reader_of(columns, None).read(PLACES)
    assert columns.reads == 1


def test_a_take_of_something_else_is_not_taken_for_ours() -> None:
    assert not takes_indices(Columns())
    assert isinstance(reader_of(np.zeros((3, 3)), None), ArrayRows)
    assert isinstance(reader_of(torch.zeros(3, 3), None), TensorRows)
    assert takes_indices(ArrayDataset(features=torch.zeros(2, 1), labels=torch.zeros(2)))


@pytest.mark.parametrize("wrap", [Columns, lambda: list(torch.from_numpy(arrays()[0]))], ids=["columns", "list"])
def test_a_collate_function_gets_the_items(wrap: Callable[[], Any]) -> None:
    dataset, seen = wrap(), []

    def collate(items: list[Any]) -> Any:
        seen.append(items)
        return default_collate(items)

    found = fetch(dataset, PLACES, collate, CPU)
    assert len(seen[0]) == len(PLACES)
    expected = default_collate([dataset[int(place)] for place in PLACES])
    assert all(map(torch.equal, flattened(found)[0], flattened(expected)[0]))


def test_views_of_columns_of_numbers_are_read_by_whole_batches() -> None:
    inputs, labels = arrays()
    views = Views(dataset=StackDataset(inputs, labels), transform=lambda rows: rows, num_views=2)  # type: ignore[arg-type]
    found, targets = views.take(torch.from_numpy(PLACES))
    assert torch.equal(found[:, 1], torch.from_numpy(inputs[PLACES]))
    assert torch.equal(targets, torch.from_numpy(labels[PLACES]))


def test_data_in_memory_is_known_and_data_elsewhere_too(tmp_path: Path) -> None:
    in_memory = {name for name, dataset in several(tmp_path) if reader_of(dataset, None).is_in_memory}
    assert in_memory == {
        *("TensorDataset", "tensor", "array", "array of numbers", "own class"),
        *("subset", "subset of a subset", "stack by name", "subset of a stack"),
    }
    on_a_device = ArrayDataset(features=torch.zeros(2, 1, device="meta"), labels=torch.zeros(2, device="meta"))
    assert reader_of(Views(dataset=on_a_device, transform=torch.clone, num_views=2), None).is_in_memory
    assert reader_of(TensorDataset(torch.zeros(1)), default_collate).is_in_memory is False


@pytest.mark.parametrize("name", ["subset", "stack", "columns"])
def test_a_run_on_any_of_them_is_the_run_on_tensors(name: str, tmp_path: Path) -> None:
    inputs, labels = (torch.from_numpy(part) for part in arrays())
    order = list(range(NUM))
    datasets: dict[str, tuple[Any, Callable[..., tuple[Tensor, Tensor]]]] = {
        "subset": (Subset(TensorDataset(inputs, labels), order), lambda *batch: batch),
        "stack": (StackDataset(mapped(tmp_path), labels), lambda *batch: batch),
        "columns": (Columns(), lambda batch: (batch["x"], batch["y"])),
    }
    dataset, unpacked = datasets[name]
    plain, other = network(), network()
    with privatize(plain, plain_sgd(plain), TensorDataset(inputs, labels), poisson(4), seed=2) as session:
        run(session, plain)
    with privatize(other, plain_sgd(other), dataset, poisson(4), seed=2) as session:
        for step in session.steps():
            step.accumulate(lambda *batch: losses_of(other)(*unpacked(*batch)))
            step.update()
    assert torch.equal(flat(plain), flat(other))
