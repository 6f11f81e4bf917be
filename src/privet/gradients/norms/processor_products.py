"""Products of matrices on a processor, by whichever of torch's two libraries is faster there.

Torch multiplies matrices by its BLAS and convolves by oneDNN, which can multiply matrices as well. Where the BLAS was
built for another maker's processors it takes more than twice as long. Both sum in single precision; their results
differ by rounding. Under ``torch.use_deterministic_algorithms`` it is the BLAS, since a comparison of times may end
otherwise in the next process.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

# Of fewer multiplications than this a product is over before oneDNN has found its kernel; a weight that lies in
# oneDNN's own order already is worth it earlier.
_SMALL, _SMALL_IN_ORDER = 1 << 21, 1 << 20
# The two libraries are compared by products of square matrices of this size; oneDNN must be faster by this factor.
_SIZE, _FACTOR = 256, 1.3
# They take turns so often, unless that takes longer than so many seconds: a product in which one of several threads
# waits for another program takes many times as long, and a few in a row may all be such.
_FEWEST_TURNS, _MOST_TURNS, _LONG = 5, 40, 0.1


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


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``rows @ weight.mT + bias`` of a matrix of rows, for no autograd."""
    if not _gains(rows, weight.mT):
        return functional.linear(rows, weight, bias)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight.contiguous(), bias, "none", [], "")
    return found


class Repeated(Protocol):
    """A product with a fixed weight."""

    def __call__(self, rows: Tensor, added: Tensor | None = None) -> Tensor:
        """Return ``rows @ weight.mT`` plus a matrix of the same shape, or plus the bias if there is one."""
        ...


def repeated_product(weight: Tensor, most_rows: int, bias: Tensor | None = None) -> Repeated:
    """Bring a weight ``[out, in]`` into the best order for many products with up to so many rows; for no autograd."""
    if most_rows * weight.numel() < _SMALL_IN_ORDER or not can_use_onednn(weight):
        across = weight.mT.contiguous()

        def usual(rows: Tensor, added: Tensor | None = None) -> Tensor:
            added = bias if added is None else added
            return rows @ across if added is None else torch.addmm(added, rows, across)

        return usual
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), most_rows)
    alone, with_sum = torch.ops.mkldnn._linear_pointwise.default, torch.ops.mkldnn._linear_pointwise.binary

    def by_onednn(rows: Tensor, added: Tensor | None = None) -> Tensor:
        product: Tensor = (
            alone(rows, packed, bias, "none", [], "") if added is None else with_sum(rows, added, packed, None, "add")
        )
        return product

    return by_onednn


def _gains(left: Tensor, right: Tensor) -> bool:
    """Whether oneDNN is the faster one for matrices (or batches) of this size, and can be used for these tensors."""
    if left.shape[-2] * left.shape[-1] * right.shape[-1] < _SMALL:
        return False
    return can_use_onednn(left) and can_use_onednn(right)


def can_use_onednn(tensor: Tensor) -> bool:
    """Whether large products with this tensor are faster by oneDNN, which is known on processors only."""
    is_usual = tensor.dtype == torch.float32 and is_plain_on_processor(tensor)
    return is_usual and not torch.are_deterministic_algorithms_enabled() and onednn_is_faster()


def is_plain_on_processor(tensor: Tensor) -> bool:
    """Whether only the numbers of a processor's tensor matter: it is no subclass, and no mode sees operations.

    Whoever follows operations (a compiler, the proof that examples stay apart) knows torch's own, and is shown those.
    """
    return type(tensor) is Tensor and tensor.device.type == "cpu" and torch._C._len_torch_dispatch_stack() == 0


def _by_onednn(left: Tensor, right: Tensor) -> Tensor:
    # of a matrix that is a part of a larger one it would go through the elements one by one
    dense = right if right.is_contiguous() or right.mT.is_contiguous() else right.contiguous()
    found: Tensor = torch.ops.mkldnn._linear_pointwise(left, dense.mT, None, "none", [], "")
    return found


@functools.cache
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies large matrices faster than torch's BLAS on this machine; measured once."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):  # type: ignore[no-untyped-call]
        return False
    with torch.no_grad():
        factor = torch.ones(_SIZE, _SIZE)
        ours, usual = functools.partial(_by_onednn, factor, factor), functools.partial(torch.mm, factor, factor)
        pairs, begun = list[tuple[float, float]](), time.perf_counter()
        while len(pairs) < _FEWEST_TURNS or (len(pairs) < _MOST_TURNS and time.perf_counter() < begun + _LONG):
            pairs.append((_seconds(ours), _seconds(usual)))
    return _FACTOR * min(pair[0] for pair in pairs) < min(pair[1] for pair in pairs)


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
