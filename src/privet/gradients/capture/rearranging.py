"""Detects operations that permute rows by the data, so that the place of an example differs from batch to batch.

The axes that a trial finds are kept for later batches of the same program. That would be wrong for a model that sorts
its examples, computes, and sorts them back: the first batch may have come in order. Such programs are put on trial at
every physical batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

Function = Callable[..., Any]

_BY_INDEX = frozenset(
    ("index_select", "gather", "index_add", "index_copy", "index_fill", "index_reduce", "scatter", "scatter_add")
) | {"scatter_reduce"}
_PICKING = frozenset(["__getitem__", "index_select", "gather", "take_along_dim"])
_BY_ITEM = frozenset(["__getitem__", "__setitem__", "index_put"])
_SORTING = {"sort": 1, "argsort": 1, "msort": None, "topk": 2, "kthvalue": 2}  # the place of the axis among arguments
_BY_CONTENT = frozenset(
    ("masked_select", "masked_scatter", "nonzero", "argwhere", "unique", "unique_consecutive", "take")
)
# torch's own code around packed sequences, whose order is followed (privet.gradients.capture.recurrent_layers)
_PACKING = ("torch/nn/utils/rnn.py", "torch/nn/modules/rnn.py")
_NUM_FRAMES = 12
_ALL = _BY_INDEX | _BY_ITEM | _BY_CONTENT | _SORTING.keys() | {"take_along_dim", "repeat_interleave", "where"}


@lru_cache(maxsize=4096)
def _name(func: Function) -> str:
    name = getattr(func, "__name__", "")
    return name.rstrip("_") if not name.endswith("__") else name


def rearranges(
    func: Function,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    batch_size: int,
    is_private: Callable[[object], bool],
) -> bool:
    """Tell whether an operation selects, sorts or places rows of a possible example axis by the examples' data.

    Args:
        func: The operation.
        args: Its arguments.
        kwargs: Its named arguments.
        batch_size: The number of examples.
        is_private: Tells whether a value descends from the examples.
    """
    name = _name(func)
    if name not in _ALL or batch_size == 1:
        return False
    given = [*args, *kwargs.values()]
    tensor = next((value for value in given if isinstance(value, Tensor)), None)
    if tensor is None:
        return False
    if name in _PICKING and not is_private(tensor):
        return False  # rows of a table, in the order of the examples
    if name in _BY_INDEX:
        axis, index = _argument(args, kwargs, 1, "dim"), _argument(args, kwargs, 2, "index")
        found = is_private(index) and _may_hold_examples(tensor, axis, batch_size)
    elif name == "take_along_dim":
        index, axis = _argument(args, kwargs, 1, "indices"), _argument(args, kwargs, 2, "dim")
        found = is_private(index) and (axis is None or _may_hold_examples(tensor, axis, batch_size))
    elif name in _SORTING:
        place = _SORTING[name]
        axis = 0 if place is None else _argument(args, kwargs, place, "dim")
        axis = -1 if not isinstance(axis, int) or isinstance(axis, bool) else axis
        found = is_private(tensor) and _may_hold_examples(tensor, axis, batch_size)
    elif name in _BY_ITEM:
        found = _picks_rows(tensor, args[1] if len(args) > 1 else None, batch_size, is_private)
    elif name == "repeat_interleave":
        found = is_private(_argument(args, kwargs, 1, "repeats"))
    elif name == "where":
        found = len(given) == 1 and is_private(tensor)
    else:
        found = any(map(is_private, given))
    return found and not _is_about_packing()


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _may_hold_examples(tensor: Tensor, axis: Any, batch_size: int) -> bool:
    if tensor.dim() == 0 or not isinstance(axis, int):
        return True  # the axis has a name instead of a number: a superfluous trial does no harm
    axis %= tensor.dim()
    size = int(tensor.shape[axis])
    return size == batch_size or (axis == 0 and size % batch_size == 0)


def _picks_rows(tensor: Tensor, index: Any, batch_size: int, is_private: Callable[[object], bool]) -> bool:
    parts = list(index) if isinstance(index, tuple) else [index]
    taken = sum(_num_axes(part) for part in parts)
    axis = 0
    for part in parts:
        if part is Ellipsis:
            axis += tensor.dim() - taken
            continue
        width = _num_axes(part)
        is_led = is_private(part) or isinstance(part, list | np.ndarray)  # numbers that may come from the data
        if is_led and any(_may_hold_examples(tensor, place, batch_size) for place in range(axis, axis + width)):
            return True
        axis += width
    return False


def _num_axes(part: Any) -> int:
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    return part.dim() if isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) else 1


def _is_about_packing() -> bool:
    """Whether torch's code for packed sequences is the caller; checked only for the few operations above."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_NUM_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_filename.replace("\\", "/").endswith(_PACKING):
            return True
        frame = frame.f_back
    return False
