"""A resumed run with other data, another plan or another precision is refused, and the seal shows nothing."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from privet.datasets.arrays import ArrayDataset
from privet.durable import state_folder
from privet.errors import CheckpointError, DataError, LedgerMismatch
from privet.training.augmentation import ShiftAndFlip, Views
from privet.training.data_seal import DataSeal
from privet.training.start import privatize
from tests.training.tools import Watched, examples, full_batch, network, plain_sgd, poisson, run


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIVET_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def train(folder: Path, dataset: Any, *, at_most: int | None = 2, model: Any = None, plan: Any = None) -> None:
    model = model or network()
    with privatize(model, plain_sgd(model), dataset, plan or poisson(6), folder=folder, checkpoint_every=1) as session:
        run(session, model, at_most=at_most)


def changed(dataset: TensorDataset, *, by: float = 1e-6, row: int = 3) -> TensorDataset:
    inputs, labels = (tensor.clone() for tensor in dataset.tensors)
    inputs[row, 0] += by
    return TensorDataset(inputs, labels)


FORMS = {
    "tensors": lambda data: data,
    "arrays": lambda data: ArrayDataset(features=data.tensors[0], labels=data.tensors[1]),
    "items": lambda data: list(zip(*data.tensors, strict=True)),
    "a part": lambda data: Subset(data, [0, 2, 3, 5]),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_same_data_resume_and_data_with_one_changed_number_do_not(tmp_path: Path, form: Any) -> None:
    train(tmp_path / "run", form(examples()))
    train(tmp_path / "run", form(examples()))
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    with pytest.raises(DataError, match="not those this run began with"):
        train(tmp_path / "run", form(changed(examples())))
    view = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    assert view.startswith(before), "nothing that was charged is lost"
    train(tmp_path / "run", form(examples()), at_most=None)


def sealed(path: Path, dataset: Any) -> DataSeal:
    seal = DataSeal(path=path / "seal.json")
    seal.check(dataset)
    seal.check(dataset)
    return seal


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("which", [0, 1])
def test_every_tensor_of_the_data_is_sealed(tmp_path: Path, form: Any, which: int) -> None:
    seal = sealed(tmp_path, form(examples()))
    tensors = [tensor.clone() for tensor in examples().tensors]
    tensors[which][5] = 1 - tensors[which][5]
    with pytest.raises(DataError, match="not those this run began with"):
        seal.check(form(TensorDataset(*tensors)))


@pytest.mark.parametrize("place", [0, 2**24 - 1, 2**24, 2**25 - 1, 2**25, 2**25 + 4])
def test_every_number_of_a_long_tensor_is_sealed(tmp_path: Path, place: int) -> None:
    data = torch.zeros(2**25 + 5, dtype=torch.uint8)
    seal = DataSeal(path=tmp_path / "seal.json")
    seal.check(TensorDataset(data, torch.arange(len(data), dtype=torch.uint8)))
    data[place] = 1
    with pytest.raises(DataError, match="not those this run began with"):
        seal.check(TensorDataset(data, torch.arange(len(data), dtype=torch.uint8)))


def test_numbers_that_are_exchanged_between_tensors_are_noticed(tmp_path: Path) -> None:
    first, second = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    seal = sealed(tmp_path, TensorDataset(first, second))
    for other in (TensorDataset(second, first), TensorDataset(torch.stack([first, second]).T)):
        with pytest.raises(DataError):
            seal.check(other)


@pytest.mark.parametrize("num", [7, 9])
def test_one_record_more_or_less_is_noticed(tmp_path: Path, num: int) -> None:
    train(tmp_path / "run", examples())
    with pytest.raises(DataError):
        train(tmp_path / "run", examples(num))


def test_another_part_of_the_same_data_is_noticed(tmp_path: Path) -> None:
    train(tmp_path / "run", Subset(examples(), [0, 1, 2]))
    with pytest.raises(DataError):
        train(tmp_path / "run", Subset(examples(), [0, 1, 3]))


def test_views_are_sealed_by_their_records(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_bytes(b"first row\n")
    seal = DataSeal.of_run(tmp_path / "ledger")
    data = ArrayDataset(features=torch.zeros(4, 1, 6, 6), labels=torch.zeros(4, dtype=torch.long))
    seal.check(Views(dataset=data, transform=ShiftAndFlip(max_shift=1, flip=False), num_views=2))
    seal.check(data)


def test_another_plan_or_precision_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "run", examples())
    with pytest.raises(LedgerMismatch, match="belongs to the plan"):
        train(tmp_path / "run", examples(), plan=full_batch(6))
    with pytest.raises(CheckpointError, match=r"torch\.float64 here and torch\.float32 there"):
        train(tmp_path / "run", examples(), model=network().double())


def test_nothing_of_the_data_is_in_the_run_folder_or_on_the_log(
    tmp_path: Path, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "privet"):
        train(tmp_path / "run", examples())
        train(tmp_path / "other", examples())
    seals = [json.loads(path.read_bytes()) for path in sorted((state / "seals").iterdir())]
    assert len(seals) == 2
    assert seals[0]["digest"] != seals[1]["digest"], "the salt is another for every run"
    files = b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())
    for seal in seals:
        assert seal["digest"].encode() not in files
        assert bytes.fromhex(seal["digest"]) not in files
        assert seal["digest"] not in caplog.text
    assert (state / "seals").stat().st_mode & 0o077 == 0, "nobody else may look"


def test_a_run_folder_carried_to_another_machine_resumes_without_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "run", examples())
    monkeypatch.setenv("PRIVET_STATE", str(tmp_path / "elsewhere"))
    train(tmp_path / "run", changed(examples()))
    with pytest.raises(DataError):
        train(tmp_path / "run", examples())


def test_a_state_folder_that_cannot_be_written_is_told_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PRIVET_STATE", str(tmp_path / "file"))
    train(tmp_path / "run", examples())
    assert "could not be sealed" in caplog.text


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"salt": 1, "digest": 2}', b"\xff" * 9000])
def test_a_damaged_seal_is_never_taken_for_agreement(tmp_path: Path, state: Path, content: bytes) -> None:
    train(tmp_path / "run", examples())
    (path,) = (state / "seals").iterdir()
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        train(tmp_path / "run", examples())


@dataclass
class Lazy:
    """Reads its items from somewhere."""

    asked: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.asked.append(index)
        return examples()[index]


@pytest.mark.parametrize("dataset", [Lazy(), Watched(examples()), ["words"]], ids=["lazy", "watched", "words"])
def test_data_that_are_not_held_are_not_read_for_a_seal(
    tmp_path: Path, dataset: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ledger").write_bytes(b"first row\n")
    with caplog.at_level(logging.INFO, "privet"):
        DataSeal.of_run(tmp_path / "ledger").check(dataset)
    assert "cannot be compared" in caplog.text
    assert not getattr(dataset, "asked", [])


def test_without_a_variable_the_state_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PRIVET_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "privet"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    linux = tmp_path / ".local" / "state" / "privet"
    monkeypatch.setattr(sys, "platform", "linux")
    assert state_folder() == linux
    monkeypatch.setattr(sys, "platform", "darwin")
    assert state_folder() == tmp_path / "Library" / "Application Support" / "privet"
    linux.mkdir(parents=True)  # of an earlier version
    assert state_folder() == linux
