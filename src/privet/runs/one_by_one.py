"""A network that is run over private records in evaluation mode: what it says of a record depends on that record alone.

Training follows every call of a network. Outside of training nobody does, and a network of a user's own may do in
evaluation mode what it does not do in training: centre a batch, remember one, or write what it saw into its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from privet.errors import PrivetError, UnsupportedModel
from privet.isolation import prove_isolation
from privet.isolation.place import Cause
from privet.isolation.prove import follow
from privet.training.preflight.model_state import ModelState

_FEW = 6

Rows = Callable[[Tensor], Tensor]
"""From records to one row for each."""


def made_up_like(records: Tensor, count: int, *, seed: int = 0) -> Tensor:
    """Return made-up records of the shape, type and device of real ones; no number of a real one is used."""
    shape = (count, *records.shape[1:])
    if not records.is_floating_point():
        return records.new_zeros(shape)  # the only whole number that is valid for every table of words
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(records)


def works_one_by_one(model: nn.Module, rows: Rows, like: Tensor, *, size: int) -> bool:
    """Whether a function of a network maps each made-up record by itself, as far as rules and experiments tell.

    Args:
        model: The network, in evaluation mode.
        rows: What it gives for records; may refuse with any error.
        like: Records whose shape is used, and no number.
        size: The number of rows of a call with real records.
    """
    few, many = made_up_like(like, _FEW), made_up_like(like, size)
    try:
        with torch.no_grad(), _attention_in_steps():
            if not torch.equal(rows(few).nan_to_num(), rows(few).nan_to_num()):
                return False
            _all(model, rows, torch.cat([many, many]), size)
        with torch.enable_grad(), _attention_in_steps():
            return prove_isolation(lambda records: _sums(rows(records)), few).is_proven
    except Exception:  # noqa: BLE001 -- a user's code may raise anything, of made-up records
        return False


@torch.no_grad()
def one_by_one(model: nn.Module, rows: Rows, records: Tensor, *, size: int) -> Tensor:
    """Return what a function of a network gives for private records.

    Args:
        model: The network, in evaluation mode.
        rows: What it gives for records, of which :func:`works_one_by_one` holds.
        records: The records.
        size: The number of rows of a call.

    Guarantee:
        Each row is a function of its own record and of public values: the rules prove of every call that it kept
        records apart and handed no number of theirs to Python, no call changed a parameter or a buffer, and all calls
        have the same number of rows. A network that breaks this is refused, and not run in another way: what it has
        kept of the records is not known.

    Raises:
        UnsupportedModel: the network did otherwise with these records than with made-up ones. The message holds no
            value.
    """
    try:
        return _all(model, rows, records, size)
    except PrivetError:
        raise
    except Exception as error:  # noqa: BLE001 -- a user's code may raise anything
        raise UnsupportedModel(
            f"The network fails on private records: {type(error).__name__}. Its message is not shown, because it may "
            "hold a value. Try the network on made-up records."
        ) from None


def _all(model: nn.Module, rows: Rows, records: Tensor, size: int) -> Tensor:
    state, found = ModelState(model), []
    with _attention_in_steps():
        for part in torch.split(records, size):
            lacking = size - len(part)
            filled = torch.cat([part, part.new_zeros(lacking, *part.shape[1:])]) if lacking else part
            found.append(_followed(rows, filled)[: len(part)].clone())
            state.check_unchanged()
    return torch.cat(found)


@contextmanager
def _attention_in_steps() -> Iterator[None]:
    """Let layers of transformers compute as in training: their short way packs all records into one nested tensor."""
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)


def _followed(rows: Rows, records: Tensor) -> Tensor:
    """Return the rows of one call, of which the rules prove that this very call kept its records apart."""
    kept: list[Tensor] = []

    def sums(batch: Tensor) -> Tensor:
        kept.append(rows(batch))
        return _sums(kept[-1])

    proof = follow(sums, records)
    reason = str(proof.losses) if isinstance(proof.losses, Cause) else ""
    reason = reason or "; ".join(f"{read.operation} at {read.line} reads records" for read in proof.refused)
    if reason:
        raise UnsupportedModel(
            f"In evaluation mode the network does not keep records apart: {reason}. What it says of a record would "
            "depend on others. Make its evaluation mode a function of each record."
        )
    return kept[0]


def _sums(found: Tensor) -> Tensor:
    return found.flatten(1).sum(1)
