"""Functions of tensors that a follower must tell apart: those that ask, those that read, those that write."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from privet.isolation.signs import Function

READING: frozenset[Function] = frozenset(
    [
        Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.untyped_storage, Tensor.__repr__,
        Tensor.__format__, Tensor.apply_, Tensor.map_, Tensor.map2_,
        Tensor.data_ptr,
    ]
)  # fmt: skip
"""Calls that hand the numbers of a tensor to Python without an operation."""
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
LENGTHS: frozenset[Function] = frozenset(
    [Tensor.shape.__get__, Tensor.size, Tensor.__len__, Tensor.numel, Tensor.nelement]  # type: ignore[attr-defined]
)
"""Those that tell lengths, which say something where they depend on the numbers of examples."""


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
