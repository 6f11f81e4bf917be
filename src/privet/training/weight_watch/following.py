"""Follows the code of an update: only gradients with noise, and tensors of before, may move the weights.

torch's optimizers are trusted. Anything else (an optimizer of another make, hooks on ``step``, a ``step`` that was
replaced) may do as it likes with the noisy gradients, the weights and its own state, which is post-processing; but it
may not read any other tensor that was there before the update, for that may hold gradients without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from privet.errors import WeightsChanged
from privet.gradients.sharding.local import local_part

# Ways out of torch through which numbers could be written that no operation shows.
_DOORS = frozenset({"numpy", "__array__", "__dlpack__", "untyped_storage", "storage", "_typed_storage"})


class Following:
    """Follows every operation in its block.

    Guarantee:
        Raises before the block ends if an operation read a tensor that is neither allowed nor made in the block from
        allowed ones and numbers, or if the memory of an allowed one was handed to numpy. Single numbers that the block
        takes from Python objects are not followed, nor are kernels of other libraries that take bare addresses.
    """

    def __init__(self, *, allowed: Iterable[Tensor], whom: Sequence[str]) -> None:
        """Allow the memory of some tensors; ``whom`` names the followed in the error."""
        self._whom = ", ".join(whom)
        self._held = {_memory(tensor) for tensor in allowed}
        self._known = set(self._held)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Begin."""
        self._stack.enter_context(_Operations(self._follow))
        self._stack.enter_context(_Functions(self._refuse_doors))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self._stack.close()

    def _follow(self, operation: Any, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        # a number of Python's becomes a tensor of one element by this operation, from memory that nobody has seen
        is_number = operation is torch.ops.aten.lift_fresh.default and all(tensor.numel() == 1 for tensor in inputs)
        if not is_number and any(tensor.numel() and _memory(tensor) not in self._known for tensor in inputs):
            raise WeightsChanged(
                f"During the private update {self._whom} used a tensor that is neither a weight, nor a gradient with "
                f"noise, nor part of the optimizer's state (in {operation}). Gradients without noise must not get "
                "there, and no guarantee is given for this run. Let it compute with the gradients it is given; keep "
                "what it needs from step to step in optimizer.state."
            )
        self._known.update(_memory(tensor) for tensor in results)

    def _refuse_doors(self, name: str, tensors: Sequence[Tensor]) -> None:
        if name in _DOORS and any(_memory(tensor) in self._held for tensor in tensors):
            raise WeightsChanged(
                f"During the private update {self._whom} took the memory of a weight, a gradient or optimizer state "
                f"out of torch (Tensor.{name}), where what is written into it cannot be followed. Use torch's "
                "operations instead."
            )


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, follow: Callable[[Any, Sequence[Tensor], Sequence[Tensor]], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._follow = follow

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        inputs = _tensors((args, dict(kwargs or {})))
        found = func(*args, **(kwargs or {}))
        self._follow(func, inputs, _tensors(found))
        return found


class _Functions(TorchFunctionMode):
    def __init__(self, refuse: Callable[[str, Sequence[Tensor]], None]) -> None:
        super().__init__()
        self._refuse = refuse

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._refuse(getattr(func, "__name__", ""), _tensors(args))
        return func(*args, **(kwargs or {}))


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in pytree.tree_leaves(values) if isinstance(value, Tensor)]


def _memory(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunction():
        try:
            return local_part(tensor).untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):  # sparse, or a wrapper without memory of its own
            return id(tensor)
