"""A disk that is full or fails: the step does not run, nothing that was charged is lost, and the run can be resumed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from privet.accounting.ledger import Ledger
from privet.errors import CheckpointError, LedgerWriteError
from privet.training.start import privatize
from tests.training.tools import Counting, Watched, examples, flat, full_batch, network, plain_sgd, run

LEDGER = "ledger.jsonl"
Write = Callable[[int, bytes], int]


class Disk:
    """Stands between the ledger and the kernel, and can run out of room."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.room: int | None = None
        self.error = errno.ENOSPC

    def write(self, handle: int, data: bytes) -> int:
        if self.room is None:
            return self._write(handle, data)
        if self.room == 0:
            raise OSError(self.error, os.strerror(self.error))
        written = self._write(handle, data[: self.room])
        self.room -= written
        return written


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk(os.write)
    monkeypatch.setattr(os, "write", made.write)
    return made


@pytest.mark.parametrize("room", [0, 1, 60], ids=["no room", "room for a byte", "room for half a row"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT], ids=errno.errorcode.get)
def test_a_full_disk_stops_the_run_before_data_is_read_and_loses_nothing(
    room: int, error: int, disk: Disk, tmp_path: Path
) -> None:
    model, data = network(), Watched(examples())
    optimizer = plain_sgd(model)
    counting = Counting(optimizer)
    session = privatize(model, optimizer, data, full_batch(25), folder=tmp_path)

    def fill_up_and_go_on() -> None:
        with session:
            assert run(session, model, at_most=9) == 9
            disk.room, disk.error = room, error
            run(session, model)

    with pytest.raises(LedgerWriteError):
        fill_up_and_go_on()
    disk.room = None
    # one step was still paid for when the disk filled up
    assert (counting.steps, len(data.asked)) == (10, 80)
    assert Ledger.read(tmp_path / LEDGER).charged_rounds == 10

    resumed = network(seed=9)
    with privatize(resumed, plain_sgd(resumed), data, full_batch(25), folder=tmp_path) as again:
        assert torch.equal(flat(resumed), flat(model))
        assert run(again, resumed) == 15
    assert Ledger.read(tmp_path / LEDGER).charged_rounds == 25


def test_a_disk_that_is_full_from_the_start_starts_nothing(disk: Disk, tmp_path: Path) -> None:
    disk.room = 0
    model, data = network(), Watched(examples())
    with pytest.raises(LedgerWriteError):
        privatize(model, plain_sgd(model), data, full_batch(25), folder=tmp_path)
    assert data.asked == []
    assert not (tmp_path / LEDGER).exists()
    disk.room = None
    with privatize(model, plain_sgd(model), data, full_batch(25), folder=tmp_path) as session:
        assert run(session, model) == 25


def test_a_disk_that_refuses_the_closing_row_gives_nothing_back(disk: Disk, tmp_path: Path) -> None:
    model = network()

    def leave_with_a_full_disk() -> None:
        with privatize(model, plain_sgd(model), examples(), full_batch(25), folder=tmp_path) as session:
            run(session, model, at_most=3)
            disk.room = 0

    with pytest.raises(LedgerWriteError):
        leave_with_a_full_disk()
    disk.room = None
    assert Ledger.read(tmp_path / LEDGER).charged_rounds == 10
    with privatize(model, plain_sgd(model), examples(), full_batch(25), folder=tmp_path) as session:
        assert run(session, model) == 15


def test_a_checkpoint_that_cannot_be_written_stops_the_run_and_keeps_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    weights = {}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def lose_the_disk() -> None:
        session = privatize(model, plain_sgd(model), examples(), full_batch(25), folder=tmp_path, checkpoint_every=4)
        with session:
            for step in session.steps():
                step.accumulate(lambda x, y: torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
                step.update()
                weights[step.index] = flat(model)
                if step.index == 5:
                    monkeypatch.setattr("privet.training.checkpoint.safetensors.torch.save", full)
                    monkeypatch.setattr(os, "replace", full)

    with pytest.raises((CheckpointError, OSError), match="No space left"):
        lose_the_disk()
    monkeypatch.undo()
    assert max(weights) == 7
    resumed = network(seed=9)
    with privatize(resumed, plain_sgd(resumed), examples(), full_batch(25), folder=tmp_path) as session:
        assert torch.equal(flat(resumed), weights[3])
        assert session.ledger.charged_rounds == 8


def test_a_folder_that_cannot_be_made_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    model = network()
    with pytest.raises((LedgerWriteError, OSError)):
        privatize(model, plain_sgd(model), examples(), full_batch(25), folder=tmp_path / "file" / "run")
