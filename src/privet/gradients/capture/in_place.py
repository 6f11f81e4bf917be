"""Keeps gradients right when tensors are changed in place, after and by operations on parameters.

Autograd gives a view that is changed in place a new history through its base, past the node at which the capture waits
for a gradient. An operation's output must therefore be no view of a tensor that the operation made itself; and where a
parameter is added into a view, the sum is formed beside it and copied in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from privet.errors import NoExampleRule

Function = Callable[..., Any]


@lru_cache(maxsize=4096)
def writes(func: Function) -> bool:
    """Tell by its name whether an operation changes its first argument."""
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")


def with_own_history(output: Tensor, given: Sequence[Tensor]) -> Tensor:
    """Return an operation's output such that changing it in place keeps its node in the graph.

    ``linear`` of three dimensions, ``conv1d`` and ``einsum`` return views of their results. Nobody else knows that
    base, so its only view can be a tensor of its own in the same memory. Views of arguments stay views.
    """
    if not output.requires_grad or not output._is_view() or output.is_leaf:
        return output
    base = output._base
    if any(base is tensor or base is tensor._base for tensor in given):
        return output
    own: Tensor = torch.ops.aten._unsafe_view.default(output, output.shape)
    return own


def apart_from_views(func: Function, args: tuple[Any, ...]) -> Function | None:
    """Return the out-of-place form of an operation that writes into a view; None if ``func`` does not.

    Raises:
        NoExampleRule: there is no such operation.
    """
    if not writes(func) or not args or not isinstance(args[0], Tensor) or not args[0]._is_view():
        return None
    name = func.__name__
    plain = f"__{name[3:]}" if name.startswith("__i") else name.removesuffix("_")
    found = getattr(Tensor, plain, None)
    if found is None:
        raise NoExampleRule(
            f"Operation '{name}' writes a parameter into a view of another tensor, which cannot be followed. Build the "
            "tensor with torch.cat, torch.stack or torch.where instead."
        )
    return found  # type: ignore[no-any-return]
