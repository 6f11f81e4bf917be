"""The ranks of a recipe's run: the process group of a launcher, and what ranks besides the first one keep."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import distributed, nn

from privet.training.distributed.ranks import Point, Ranks, ranks_of

Value = TypeVar("Value")


def is_launched() -> bool:
    """Whether a launcher such as torchrun started this process together with others."""
    return os.environ.get("WORLD_SIZE", "1").strip() not in ("", "0", "1") and "RANK" in os.environ


@contextmanager
def launched_ranks(device: str) -> Iterator[Ranks | None]:
    """Join the processes that a launcher started; None where this process was started alone.

    Args:
        device: The device of the recipe. The ranks of one machine take one CUDA device each.
    """
    joins = is_launched() and not distributed.is_initialized()
    if joins:
        # torch binds the default group to arguments of this module. If it were imported later, the group and its
        # threads would outlive their end, and a thread that frees a tensor while Python ends aborts the process.
        import torch.distributed.nn

        uses_cuda = device.partition(":")[0] in ("auto", "cuda") and torch.cuda.is_available()
        if uses_cuda:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        distributed.init_process_group("cpu:gloo,cuda:nccl" if uses_cuda else "gloo")
    ranks = ranks_of()
    try:
        yield ranks
    finally:
        if ranks is not None:
            ranks.let_go()
        if joins:
            distributed.destroy_process_group()


@contextmanager
def own_folder(ranks: Ranks | None, folder: Path) -> Iterator[Path]:
    """Yield the folder to write to: the run's on rank 0, and on other ranks one that is thrown away."""
    if ranks is None or ranks.is_first:
        yield folder
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "run"


def same_weights(ranks: Ranks | None, model: nn.Module) -> None:
    """Let every rank begin with the weights of rank 0, whose folder may hold a checkpoint; they are compared later."""
    if ranks is not None:
        ranks.meet(Point.PREPARING, {"the names of the weights": sorted(model.state_dict())})
        with torch.no_grad():
            for value in model.state_dict().values():
                ranks.tensor_of_first_(value)


def said_by_any(ranks: Ranks | None, own: Callable[[], bool]) -> Callable[[], bool]:
    """Return a function that is true on every rank as soon as it is on one, so that all stop after the same step."""
    if ranks is None:
        return own
    return lambda: bool(ranks.meet(Point.STOPPING, note=b"stop" if own() else b""))


def done_by_first(ranks: Ranks | None, function: Callable[[], Value]) -> Value:
    """Let rank 0 alone do something that the others wait for; return its value, which JSON can hold, on all of them."""
    if ranks is None:
        return function()
    found = b""
    with ranks.together(Point.PREPARING):
        if ranks.is_first:
            found = json.dumps(function()).encode()
    value: Value = json.loads(ranks.bytes_of_first(found if ranks.is_first else None))
    return value
