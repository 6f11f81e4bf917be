"""Reads of numbers in a dry run: asked of the device only where the answer can change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from privet.training.launch import dry_run
from privet.training.launch.dry_run import DryRun, Programs

Losses = Callable[[Tensor], Tensor]


def _programs(losses: Losses, batch: Tensor) -> Programs:
    programs = Programs(device=torch.device("cpu"), leaves=[batch])
    run = DryRun(programs, lambda: None)
    with run:
        found = losses(batch)
    run.remember(found)
    return programs


def _again(losses: Losses, batch: Tensor, programs: Programs) -> DryRun:
    run = DryRun(programs, lambda: None)
    with run:
        losses(batch)
    return run


@pytest.fixture
def num_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counted, read = [0], dry_run._read

    def counting(*args: object) -> object:
        counted[0] += 1
        return read(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(dry_run, "_read", counting)
    return counted


def test_a_read_of_positions_is_answered_without_the_device(num_reads: list[int]) -> None:
    def losses(batch: Tensor) -> Tensor:
        positions = torch.arange(batch.shape[1])
        is_dense = bool((positions.diff() == 1).all())
        return batch.sum(1) * (2.0 if is_dense else 3.0)

    batch = torch.randn(4, 5)
    programs = _programs(losses, batch)
    num_reads[0] = 0
    assert _again(losses, batch, programs).is_dry
    assert num_reads == [0]


def test_a_read_of_a_buffer_or_of_the_batch_is_asked_every_time(num_reads: list[int]) -> None:
    buffer, batch = torch.ones(3), torch.randn(4, 5)

    def losses(batch: Tensor) -> Tensor:
        factor = 2.0 if bool((buffer > 0).all()) else 3.0
        return batch.sum(1) * factor + float(batch.max())

    programs = _programs(losses, batch)
    num_reads[0] = 0
    assert _again(losses, batch, programs).is_dry
    assert num_reads == [2]
    buffer.zero_()
    assert not _again(losses, batch, programs).is_dry, "another number is another program"


def test_an_answer_that_the_function_changes_is_handed_out_anew() -> None:
    def losses(batch: Tensor) -> Tensor:
        numbers = torch.arange(3).tolist()
        numbers.append(len(numbers))
        return batch.sum(1) * len(numbers)

    batch = torch.randn(4, 5)
    programs = _programs(losses, batch)
    assert _again(losses, batch, programs).is_dry
    assert _again(losses, batch, programs).is_dry
