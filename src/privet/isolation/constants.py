"""Numbers of public tensors that Python made: they may count the examples, so two sizes are compared by them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# The longest constant that is kept to be compared with that of a batch of another size.
_SMALL_CONSTANT = 4096


def constant_of(name: str, outs: Sequence[Tensor]) -> bytes | OnDevice | None:
    """Return the numbers of a tensor that Python made by an operation: they may count the examples."""
    return numbers_of(outs[0]) if name in ("lift_fresh", "lift_fresh_copy") else None


def is_range(tensor: Tensor, numbers: bytes) -> bool:
    """Whether a vector counts its own places."""
    return (
        tensor.dim() == 1
        and tensor.dtype is torch.int64
        and numbers == np.arange(len(tensor), dtype=np.int64).tobytes()
    )


class OnDevice:
    """Numbers that lie on a device; read back only where two traces are compared, once for each program."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: Tensor) -> None:
        """Keep a copy, without waiting for the device."""
        self._numbers = tensor.detach().clone()

    def __eq__(self, other: object) -> bool:
        """Whether the numbers are the same, bit by bit where they are not numbers."""
        if not isinstance(other, OnDevice) or self._numbers.shape != other._numbers.shape:
            return False
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            pairs = [numbers.contiguous().view(-1).view(torch.uint8) for numbers in (self._numbers, other._numbers)]
            return torch.equal(*pairs)


def numbers_of(tensor: Tensor) -> bytes | OnDevice | None:
    """Return the numbers of a small tensor; None if it is long, or has none."""
    if tensor.layout is not torch.strided or tensor.numel() > _SMALL_CONSTANT or tensor.device.type == "meta":
        return None
    try:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():  # these are not the program's
            if tensor.device.type != "cpu":
                return OnDevice(tensor)
            # of a copy: numpy pins the memory that it looks into, and gathered parameters give theirs back
            return bytes(tensor.detach().clone().contiguous().view(-1).view(torch.uint8).numpy())
    except (RuntimeError, NotImplementedError, TypeError):  # inside transforms of functions tensors have no numbers
        return None
