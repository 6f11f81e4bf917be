"""Products of matrices on a processor, by whichever of torch's two libraries is faster there.

Torch multiplies matrices by its BLAS and convolves by oneDNN, which can multiply matrices as well. Where the BLAS was
built for another maker's processors it takes more than twice as long. Both sum in single precision; their results
differ by rounding.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privet.gradients.norms.kernels import is_traced

# Of fewer multiplications than this a product is over before oneDNN has found its kernel.
_SMALL = 1 << 21
# The two libraries are compared by products of square matrices of this size; oneDNN must be faster by this factor.
_SIZE, _TIMES, _FACTOR = 256, 5, 1.3


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right`` of two matrices."""
    return _by_onednn(left, right) if _gains(left, right) else left @ right


def batched_product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return ``left @ right`` of two batches of matrices, in ``out`` if it is given."""
    if not _gains(left, right):
        return torch.bmm(left, right) if out is None else torch.bmm(left, right, out=out)
    into = left.new_empty(left.shape[0], left.shape[1], right.shape[2]) if out is None else out
    for each, by, place in zip(left.unbind(0), right.unbind(0), into.unbind(0), strict=True):
        place.copy_(_by_onednn(each, by))
    return into


def add_product(into: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``left @ right`` to a matrix in place."""
    if not _gains(left, right):
        into.addmm_(left, right)
    elif right.shape[1] < left.shape[0] < left.shape[1]:  # the narrow factor is the one that is copied
        into.add_(_by_onednn(right.mT, left.mT).mT)
    else:
        into.add_(_by_onednn(left, right))


def _gains(left: Tensor, right: Tensor) -> bool:
    """Whether oneDNN is the faster one for matrices (or batches) of this size, and can be used for these tensors."""
    if left.shape[-2] * left.shape[-1] * right.shape[-1] < _SMALL or left.dtype != torch.float32:
        return False
    # a tracer sees an operation that its compiler cannot improve; a subclass may have a product of its own
    if type(left) is not Tensor or type(right) is not Tensor or left.device.type != "cpu" or is_traced():
        return False
    return right.dtype == torch.float32 and onednn_is_faster()


def _by_onednn(left: Tensor, right: Tensor) -> Tensor:
    # of a matrix that is a part of a larger one it would go through the elements one by one
    dense = right if right.is_contiguous() or right.mT.is_contiguous() else right.contiguous()
    found: Tensor = torch.ops.mkldnn._linear_pointwise(left, dense.mT, None, "none", [], "")
    return found


@functools.cache
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies large matrices faster than torch's BLAS on this machine; measured once."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    with torch.no_grad():
        factor = torch.ones(_SIZE, _SIZE)
        ours, usual = functools.partial(_by_onednn, factor, factor), functools.partial(torch.mm, factor, factor)
        pairs = [(_seconds(ours), _seconds(usual)) for _ in range(_TIMES)]
    return _FACTOR * min(pair[0] for pair in pairs) < min(pair[1] for pair in pairs)


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
