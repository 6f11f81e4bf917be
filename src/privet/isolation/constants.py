"""Numbers of public tensors that Python made: they may count the examples, so two sizes are compared by them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

# The longest constant whose numbers are kept as they are; of longer ones a digest is kept.
_SMALL_CONSTANT = 4096
# Of memory that is longer still, or that takes time to read, so many numbers are looked at, evenly spread.
_LONG_CONSTANT = 1 << 24
_SAMPLED = 1024


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


@lru_cache(maxsize=1024)
def works_by_itself(kind: type) -> bool:
    """Whether a class of tensors carries operations out by itself; such a tensor may have no memory of its own."""
    return kind.__torch_dispatch__ is not Tensor.__torch_dispatch__  # type: ignore[attr-defined]


def numbers_of(tensor: Tensor) -> bytes | OnDevice | None:
    """Return the numbers of a tensor, or a digest of them if they are many; None if it has none.

    Of very long tensors, and of long ones on a device, some numbers stand for all.
    """
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or works_by_itself(type(tensor)):
        return None
    try:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():  # these are not the program's
            is_on_device = tensor.device.type != "cpu"
            if tensor.numel() > (_SMALL_CONSTANT if is_on_device else _LONG_CONSTANT):
                tensor = _sampled(tensor)
            return OnDevice(tensor) if is_on_device else _bytes_of(tensor)
    except (RuntimeError, NotImplementedError, TypeError):  # inside transforms of functions tensors have no numbers
        return None


def glance_at(tensor: Tensor) -> bytes | None:
    """Return what some numbers of a tensor were at this moment; None where that would wait for a device."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or works_by_itself(type(tensor)):
        return None
    try:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return _bytes_of(tensor if tensor.numel() <= _SAMPLED else _sampled(tensor))
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def _sampled(tensor: Tensor) -> Tensor:
    """Return a view of some numbers, evenly spread over the memory of a tensor."""
    span = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    step = -(-span // _SAMPLED)
    return tensor.detach().as_strided((-(-span // step),), (step,), tensor.storage_offset())


def _bytes_of(tensor: Tensor) -> bytes:
    # of a copy: numpy pins the memory that it looks into, and gathered parameters give theirs back
    copy = tensor.detach().resolve_conj().resolve_neg().clone().contiguous()
    found: bytes = copy.view(-1).view(torch.uint8).numpy().tobytes()
    return found if copy.numel() <= _SMALL_CONSTANT else blake2b(found, digest_size=16).digest()
