"""Carries gradients of copies and views of a parameter back to the parameter.

``weight.t()``, ``weight.view(...)`` or ``weight.float()`` hold a parameter's own numbers in another arrangement. Their
per-example gradients are rearranged without ever being written out. Whatever is not listed here is pulled back through
autograd, which is exact for everything and dearer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from privet.gradients.forms.per_example import Explicit, Outer, PerExample, batched_product

Undo = Callable[[PerExample], PerExample | None]
"""Turns gradients of the new tensor into gradients of the old one; None for a form it does not know."""


def _same(part: PerExample) -> PerExample | None:
    return part


def _copied(old: Tensor, new: Tensor) -> Undo | None:
    return _same if new.shape == old.shape and new.device == old.device else None


def _reshaped(old: Tensor, new: Tensor) -> Undo | None:
    if new.dtype != old.dtype or new.numel() != old.numel():
        return None
    shape = tuple(old.shape)

    def undo(part: PerExample) -> PerExample | None:
        if isinstance(part, Explicit):
            return Explicit(gradients=part.gradients.reshape(len(part), *shape))
        return replace(part, shape=shape) if isinstance(part, Outer) else None

    return undo


def _transposed(old: Tensor, new: Tensor) -> Undo | None:
    if old.dim() != 2 or new.shape != old.shape[::-1] or new.stride() != old.stride()[::-1]:
        return None
    return _exchanged


def _exchanged(part: PerExample) -> PerExample | None:
    if isinstance(part, Explicit):
        return Explicit(gradients=part.gradients.mT)
    if isinstance(part, Outer) and part.shape in (None, (part.out_grads.shape[2], part.inputs.shape[2])):
        return Outer(inputs=part.out_grads, out_grads=part.inputs)
    return None


def _sliced(old: Tensor, new: Tensor) -> Undo | None:
    """Some consecutive rows, as attention takes its three projections from one weight."""
    is_view = new.untyped_storage().data_ptr() == old.untyped_storage().data_ptr() and old.is_contiguous()
    if not is_view or new.dim() != old.dim() or new.shape[1:] != old.shape[1:] or new.stride() != old.stride():
        return None
    before = (new.storage_offset() - old.storage_offset()) // old.stride(0)
    after = len(old) - len(new) - before

    def undo(part: PerExample) -> PerExample | None:
        if isinstance(part, Explicit):
            return Explicit(gradients=functional.pad(part.gradients, [0, 0] * (old.dim() - 1) + [before, after]))
        if isinstance(part, Outer) and part.shape is None:
            return replace(part, out_grads=functional.pad(part.out_grads, (before, after)))
        return None

    return undo


_COPYING = (
    Tensor.contiguous, Tensor.clone, torch.clone, Tensor.to, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16,
    Tensor.type, Tensor.type_as,
)  # fmt: skip
_RESHAPING = (
    Tensor.view, Tensor.view_as, Tensor.reshape, torch.reshape, Tensor.reshape_as, Tensor.flatten, torch.flatten,
    Tensor.unflatten, torch.unflatten, Tensor.squeeze, torch.squeeze, Tensor.unsqueeze, torch.unsqueeze,
)  # fmt: skip
_TRANSPOSING = (
    Tensor.t, torch.t, Tensor.transpose, torch.transpose, Tensor.swapaxes, torch.swapaxes, Tensor.permute,
    torch.permute, Tensor.movedim, torch.movedim,
    Tensor.T.__get__, Tensor.mT.__get__,  # type: ignore[attr-defined]
)  # fmt: skip
_SLICING = (
    Tensor.chunk, torch.chunk, Tensor.split, torch.split, Tensor.narrow, torch.narrow, Tensor.__getitem__,
    Tensor.unsafe_chunk, torch.unsafe_chunk, torch.tensor_split, Tensor.tensor_split,
)  # fmt: skip

# Every number of their result is one number of the tensor that they are called on.
_PICKING: frozenset[Callable[..., Any]] = frozenset(
    [
        Tensor.__getitem__, torch.index_select, Tensor.index_select, Tensor.permute, torch.permute, Tensor.transpose,
        torch.transpose, Tensor.swapaxes, torch.swapaxes, Tensor.movedim, torch.movedim, torch.flip, Tensor.flip,
        torch.roll, Tensor.roll, Tensor.expand, Tensor.expand_as, Tensor.repeat, torch.tile, Tensor.tile,
        Tensor.T.__get__, Tensor.mT.__get__,  # type: ignore[attr-defined]
    ]
)  # fmt: skip
_MOST_PICKED = 1 << 20  # numbers: larger tensors are left to autograd
_MOST_CHOICES = 1 << 24  # of one row for one place


def _picked(call: Picking, old: Tensor, new: Tensor) -> Undo | None:
    """Numbers of a small tensor in another order, some of them several times, as a table of relative positions."""
    if max(old.numel(), new.numel()) > _MOST_PICKED or new.dtype != old.dtype:
        return None

    def undo(part: PerExample) -> PerExample | None:
        if not isinstance(part, Explicit):
            return None
        with torch.no_grad(), torch._C.DisableTorchFunction():
            origin = call(torch.arange(old.numel(), device=old.device).view(old.shape)).reshape(-1)
            found = part.gradients.new_zeros(len(part), old.numel())
            found.index_add_(1, origin, part.gradients.reshape(len(part), -1))
        return Explicit(gradients=found.view(len(part), *old.shape))

    return undo


def looked_up(ids: Tensor, old: Tensor) -> Undo:
    """Rows of a table at public places, as the learned biases of relative positions."""
    num_rows, places = old.shape[0], ids.detach().reshape(-1)

    def undo(part: PerExample) -> PerExample | None:
        if not isinstance(part, Explicit):
            return None
        rows = part.gradients.reshape(len(part), -1, old.shape[1])
        with torch.no_grad(), torch._C.DisableTorchFunction():
            if len(places) * num_rows <= _MOST_CHOICES:  # adding many rows to few is slow where it is done row by row
                is_place = places.unsqueeze(0) == torch.arange(num_rows, device=places.device).unsqueeze(1)
                found = batched_product(is_place.to(rows.dtype).expand(len(part), -1, -1), rows)
            else:
                found = rows.new_zeros(len(part), num_rows, old.shape[1]).index_add_(1, places, rows)
        return Explicit(gradients=found)

    return undo


Picking = Callable[[Tensor], Tensor]
"""Applies an operation to another tensor in place of its first argument."""

_VIEWS: Mapping[Callable[..., Any], Callable[[Tensor, Tensor], Undo | None]] = {
    **dict.fromkeys(_COPYING, _copied),
    **dict.fromkeys(_RESHAPING, _reshaped),
    **dict.fromkeys(_TRANSPOSING, _transposed),
    **dict.fromkeys(_SLICING, _sliced),
}


def undo_of(function: Callable[..., Any], again: Picking | None, old: Tensor, new: Tensor) -> Undo | None:
    """Return how gradients of ``new = function(old)`` become those of ``old``, or None if only autograd knows.

    ``again`` calls the function on another tensor in the place of ``old``, with the same other arguments, if it can.
    """
    found = _VIEWS.get(function)
    undo = None if found is None else found(old, new)
    if undo is not None or again is None or function not in _PICKING:
        return undo
    return _picked(again, old, new)
