from __future__ import annotations

import copy
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

import privet as pv
from privet.datasets import RecordStream
from privet.datasets.item_bytes import from_bytes, to_bytes
from privet.errors import ArgumentError, DataError
from scripts.stream_memory import memory_of_a_run

ITEMS: list[Any] = [
    torch.arange(6.0).reshape(2, 3),
    torch.tensor(3),
    torch.empty(0, 4, dtype=torch.int64),
    torch.tensor([1.5, -0.0, float("nan")], dtype=torch.bfloat16),
    torch.tensor([True, False]),
    torch.arange(8).reshape(2, 4).T,
    np.arange(4, dtype=np.int16).reshape(2, 2),
    np.float32(2.5),
    {"text": "größer", "ids": [1, 2, 3], "pair": (1, 2.5, None), "raw": b"\x00\xff", "more": {"tensor": torch.ones(2)}},
    {"tensor": ["float32", [2]]},
    [1, True, "x"],
]  # fmt: skip


class Numbers(IterableDataset[Any]):
    """A stream that counts how often it is read."""

    def __init__(self, number: int) -> None:
        self.number, self.passes = number, 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        for place in range(self.number):
            yield torch.full((4,), float(place)), place % 2


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype and one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())
        )
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    return bool(one == other)


@pytest.mark.parametrize("item", ITEMS, ids=str)
def test_an_item_comes_back_as_it_went(item: Any) -> None:
    assert same(from_bytes(to_bytes(item)), item)
    assert same(from_bytes(to_bytes((item, {"again": item}))), (item, {"again": item}))


def test_a_tensor_that_comes_back_can_be_written() -> None:
    found = from_bytes(to_bytes(torch.zeros(3)))
    found += 1
    assert found.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "item", [object(), {1: 2}, np.array(["a"]), np.array([None]), {1, 2}, torch.zeros(2).to_sparse()]
)
def test_what_cannot_be_stored_is_refused_by_its_type_alone(item: Any) -> None:
    with pytest.raises((DataError, RuntimeError)) as refused:
        to_bytes({"part": item})
    assert "encode" in str(refused.value) or isinstance(refused.value, RuntimeError)


def test_a_stream_is_read_once_and_kept_in_the_order_of_arrival(tmp_path: Path) -> None:
    numbers = Numbers(50)
    stream = RecordStream.stored(numbers, folder=tmp_path / "stream")
    again = RecordStream.stored(numbers, folder=tmp_path / "stream")
    assert numbers.passes == 1
    for kept in (stream, again, RecordStream(folder=tmp_path / "stream")):
        assert len(kept) == 50
        assert [int(features[0]) for features, _ in kept.__getitems__([7, 0, 49, 7])] == [7, 0, 49, 7]
        assert int(kept[-1][0][0]) == 49
    with pytest.raises(IndexError):
        stream[50]


def test_only_the_owner_can_read_the_records(tmp_path: Path) -> None:
    stream = RecordStream.stored(Numbers(3), folder=tmp_path / "stream")
    for name in ("records.bin", "ends.bin"):
        assert stat.S_IMODE(os.stat(stream.folder / name).st_mode) == 0o600


def test_a_stream_that_was_broken_off_is_written_anew(tmp_path: Path) -> None:
    def broken() -> Iterator[Any]:
        yield torch.zeros(4), 0
        raise OSError("the line is dead")

    with pytest.raises(OSError, match="dead"):
        RecordStream.stored(broken(), folder=tmp_path)
    with pytest.raises(DataError, match="no whole stream"):
        RecordStream(folder=tmp_path)
    assert len(RecordStream.stored(Numbers(5), folder=tmp_path)) == 5


def test_empty_and_damaged_streams_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no records"):
        RecordStream.stored(iter(()), folder=tmp_path / "empty")
    stream = RecordStream.stored(Numbers(5), folder=tmp_path / "cut")
    with open(stream.folder / "records.bin", "r+b") as file:
        file.truncate(20)
    with pytest.raises(DataError, match="damaged"):
        RecordStream(folder=stream.folder)
    (stream.folder / "stream.json").write_text("{}")
    with pytest.raises(ArgumentError, match="not facts of the stream"):
        RecordStream(folder=stream.folder)


def test_a_copy_for_another_process_opens_the_files_itself(tmp_path: Path) -> None:
    stream = RecordStream.stored(Numbers(5), folder=tmp_path)
    stream[3]
    for other in (copy.copy(stream), copy.deepcopy(stream)):  # by the way that pickle takes, too
        assert vars(other) == {"folder": tmp_path}
        assert int(other[4][0][0]) == 4


def plan(size: int, *, batch: int, epochs: int = 1) -> pv.Plan:
    return pv.Plan(
        sampling=pv.sampling.BallsInBins.for_dataset(dataset_size=size, batch_size=batch, epochs=epochs),
        clipping=pv.Threshold(norm=1.0),
        noise=pv.Gaussian(noise_multiplier=1.0),
        delta=1e-5,
        adjacency=pv.Adjacency.ADD_REMOVE,
        unit=pv.Unit.RECORD,
    )


def trained(data: Any, workers: int = 0) -> torch.Tensor:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    session = pv.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        plan(60, batch=12, epochs=2),
        seed=0,
        performance=pv.Performance(physical_batch_size=8, workers=workers),
    )
    with session:
        for step in session.steps():
            step.accumulate(lambda x, y: torch.nn.functional.cross_entropy(model(x / 60), y, reduction="none"))
            step.update()
    return model.weight.detach()


def test_a_stream_trains_the_model_of_the_same_records_in_memory(tmp_path: Path) -> None:
    stream = RecordStream.stored(Numbers(60), folder=tmp_path)
    in_memory = trained(list(Numbers(60)))
    assert torch.equal(trained(stream), in_memory)


@pytest.mark.slow
def test_workers_read_a_stream(tmp_path: Path) -> None:
    stream = RecordStream.stored(Numbers(60), folder=tmp_path)
    assert torch.equal(trained(stream, workers=1), trained(list(Numbers(60))))


def test_a_stream_itself_is_refused_with_the_way_out() -> None:
    with pytest.raises(DataError, match=r"RecordStream\.stored"):
        trained(Numbers(60))


def test_persons_own_records_of_a_stream(tmp_path: Path) -> None:
    stream = RecordStream.stored(({"x": torch.ones(2), "who": f"p{n % 3}"} for n in range(9)), folder=tmp_path)
    records = pv.PersonRecords(dataset=stream, person_of="who")
    assert records.owners.num_persons == 3
    assert list(records[0]) == ["x"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units")
def test_ten_times_as_many_records_need_at_most_64_mib_more_also_after_a_kill(tmp_path: Path) -> None:
    few, rounds = memory_of_a_run(100_000, 100, tmp_path / "few")
    many, again = memory_of_a_run(1_000_000, 100, tmp_path / "many")
    assert rounds == again == 2
    assert many - few <= 64 * 1024, (few, many)


def test_writing_and_reading_a_stream_needs_no_memory_per_record(tmp_path: Path) -> None:
    import tracemalloc

    def peak(size: int) -> int:
        tracemalloc.start()
        stream = RecordStream.stored(((b"x" * 200, place) for place in range(size)), folder=tmp_path / str(size))
        for place in range(0, size, 50):
            stream[place]
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(10)
    assert peak(5_000) <= peak(500) + 32_768
