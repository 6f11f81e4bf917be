"""Marks on tensors that descend from the private examples."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from privet.gradients.capture.in_place import Function, writes
from privet.isolation.signs import version_of

MARK = "_privet_batch"
WRITTEN = "_privet_written"  # how often a tensor of the batch had been written to when it was handed out
# A mark holds the number of the batch and, for its own tensors, their number in it.
SHIFT = 10
GENERATIONS = itertools.count(2)


def mark_batch(tensors: Iterable[Tensor]) -> None:
    """Mark the tensors of a batch that is handed out; those of earlier batches are stale from then on."""
    generation = next(GENERATIONS)
    for number, tensor in enumerate(tensors, 1):
        setattr(tensor, MARK, generation << SHIFT | number)
        setattr(tensor, WRITTEN, version_of(tensor))


def is_batch(value: object) -> bool:
    """Tell whether a value descends from the private examples."""
    return getattr(value, MARK, 0) != 0


def tensors_in(value: object) -> list[Tensor]:
    """Return the tensors in an argument, looking into lists, tuples and dictionaries."""
    # this runs several times for every operation of a forward pass, so it is written for speed
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    if isinstance(value, list | tuple):
        items: Iterable[object] = value
    elif type(value) not in PLAIN and isinstance(value, Mapping):
        items = value.values()
    else:
        return found
    for item in items:
        if isinstance(item, Tensor):
            found.append(item)
        elif type(item) not in PLAIN:
            found += tensors_in(item)
    return found


PLAIN = frozenset([int, float, bool, complex, str, type(None), slice, torch.Size, torch.dtype, torch.device])


def changed_by(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Tensor]:
    """Return the tensors that an operation made or changed; a write into a view changes its base, too."""
    if not writes(func):
        return tensors_in(result)
    found = tensors_in((result, args[:1], kwargs.get("out")))
    return found + [tensor._base for tensor in found if tensor._base is not None]
