"""Functions of tensors that a follower must tell apart: those that ask, those that read, those that write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from privet.isolation.signs import Function

READING: frozenset[Function] = frozenset(
    [
        Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.untyped_storage, Tensor.__repr__,
        Tensor.__format__, Tensor.apply_, Tensor.map_, Tensor.map2_,
        Tensor.data_ptr, Tensor.storage, Tensor._typed_storage, Tensor.__reduce_ex__,
    ]
)  # fmt: skip
"""Calls that hand the numbers of a tensor to Python without an operation."""
SHOWING_MEMORY: frozenset[Function] = READING - {Tensor.tolist, Tensor.__repr__, Tensor.__format__}
"""Those after which Python may write to the tensor past torch."""
_CUTTING: frozenset[Function] = frozenset([torch.tensor_split, Tensor.tensor_split])
"""Those that read where to cut from a tensor, without an operation."""
_ATTRIBUTES = [
    "shape",
    "dtype",
    "device",
    "requires_grad",
    "is_cuda",
    "layout",
    "ndim",
    "is_nested",
    "is_leaf",
    "is_sparse",
    "is_quantized",
    "is_mps",
    "is_meta",
]
ASKING: frozenset[Function] = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in _ATTRIBUTES),
        Tensor.size, Tensor.dim, Tensor.__len__, Tensor.is_floating_point, Tensor.is_contiguous, Tensor.stride,
        Tensor.numel, Tensor.is_complex, Tensor.element_size, Tensor.nelement, Tensor.__hash__,
    ]
)  # fmt: skip
"""Attributes and questions that say nothing about the numbers of a tensor."""
SHARING: frozenset[Function] = frozenset([Tensor.data.__get__])  # type: ignore[attr-defined]
"""Those that hand out the same memory past torch's counters of changes."""
EXCHANGING: frozenset[Function] = frozenset([Tensor.data.__set__])  # type: ignore[attr-defined]
"""Those after which the first argument has the numbers and the memory of the second."""
LENGTHS: frozenset[Function] = frozenset(
    [Tensor.shape.__get__, Tensor.size, Tensor.__len__, Tensor.numel, Tensor.nelement]  # type: ignore[attr-defined]
)
"""Those that tell lengths, which say something where they depend on the numbers of examples."""


def read_by(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors whose numbers a call hands to Python without an operation."""
    if function in READING:
        return [arg for arg in args if isinstance(arg, Tensor)]
    if function in _CUTTING:
        return [arg for arg in (*args[1:], *kwargs.values()) if isinstance(arg, Tensor)]
    return []


def writes(function: Function) -> bool:
    """Tell by its name whether a function changes its first argument."""
    name = getattr(function, "__name__", "")
    return name == "__setitem__" or name.startswith("__i") or (name[-1:] == "_" and name[-2:] != "__")


class Calls(TorchFunctionMode):
    """Sees the calls of torch's functions, apart from those that only ask."""

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        return func(*args, **named) if func in ASKING else self.called(func, args, named)

    def called(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out a call."""
        raise NotImplementedError
