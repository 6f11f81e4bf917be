"""Memory that was never written to holds whatever lay there before, which may be numbers of other examples."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from privet.isolation.call import Call, argument_names, specs_in
from privet.isolation.place import Spec

UNWRITTEN = "it reads memory that nothing was written to, in which numbers of other examples may lie"
_MAKING = frozenset(
    ["empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_"]
)
# Operations that replace all numbers of their first argument and do not look at the old ones.
_REPLACING = frozenset(
    [
        "copy_", "zero_", "fill_", "uniform_", "normal_", "exponential_", "random_", "cauchy_", "geometric_",
        "log_normal_", "bernoulli_", "_foreach_copy_", "_foreach_zero_", "set_",
    ]
)  # fmt: skip
# Those that replace as many numbers as they are given, at places that are numbers themselves.
_PLACING = {
    **dict.fromkeys(("index_put_", "_index_put_impl_", "_unsafe_index_put", "index_put"), 2),
    **dict.fromkeys(("scatter_", "index_copy_", "scatter", "index_copy"), 3),
}
# Operations that look at shapes and types of their arguments alone.
_BLIND = frozenset(["zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", *_MAKING])
# Of longer memory only the number of elements that were written is kept.
_LONGEST = 1 << 22


@dataclass(slots=True)
class _Elements:
    """Which elements of one piece of memory were written to."""

    memory: StorageWeakRef
    num: int
    flags: NDArray[np.bool_] | None = None  # from the first write into a part on
    regions: set[tuple[object, ...]] = field(default_factory=set)
    num_written: int = 0

    def write(self, spec: Spec) -> None:
        if math.prod(spec.shape) == self.num and 0 not in spec.strides:  # as nearly all are
            self.num_written = self.num
            return
        if self.flags is None and self.num <= _LONGEST:
            self.flags = np.zeros(self.num, dtype=np.bool_)
        if self.flags is not None:
            _view(self.flags, spec)[...] = True
            self.num_written = int(self.flags.sum())
        elif (region := _region(spec)) not in self.regions:
            self.num_written += math.prod(spec.shape)
            self.regions.add(region)

    def has_written(self, spec: Spec) -> bool:
        """Whether all elements of a tensor were written to; of long memory, whether so many were."""
        if self.num_written >= self.num:
            return True
        if self.flags is not None:
            return bool(_view(self.flags, spec).all())
        return _region(spec) in self.regions or 0 < math.prod(spec.shape) <= self.num_written


def _view(flags: NDArray[np.bool_], spec: Spec) -> NDArray[np.bool_]:
    last = spec.offset + sum((size - 1) * step for size, step in zip(spec.shape, spec.strides, strict=True))
    if last >= len(flags):  # its numbers are of a smaller type than those that the memory was made for
        return flags
    return as_strided(flags[spec.offset :], spec.shape, spec.strides)  # flags of one byte each


def _region(spec: Spec) -> tuple[object, ...]:
    return (spec.shape, spec.strides, spec.offset)


@dataclass(slots=True)
class Unwritten:
    """All memory of a program that was made without numbers and is not written in full."""

    _elements: dict[int, _Elements] = field(default_factory=dict)

    def holds(self, spec: Spec) -> bool:
        """Whether a tensor has numbers that were never written."""
        return self._is_unwritten(spec)

    def note(self, call: Call, outs: Sequence[Tensor]) -> None:
        """Note memory that an operation made without numbers."""
        if call.name not in _MAKING:
            return
        for out, spec in zip(outs, call.out_specs, strict=True):
            num = out.untyped_storage().nbytes() // max(out.element_size(), 1) if spec.memory >= 0 else 0
            if num and out.device.type != "meta":
                memory = StorageWeakRef(out.untyped_storage())  # type: ignore[no-untyped-call]
                self._elements[spec.memory] = _Elements(memory, num)

    def is_read(self, call: Call, mutated: Set[int]) -> bool:
        """Whether an operation looks at numbers that were never written; notes what it writes.

        Args:
            call: The operation.
            mutated: The serial numbers of the arguments that it changes.
        """
        if not self._elements or call.name in _BLIND:
            return False
        found = False
        for spec in call.specs:
            if not self._is_unwritten(spec):
                continue
            if (spec.serial in mutated and call.name in _REPLACING | _PLACING.keys()) or self._is_result(call, spec):
                self._write(call, spec)
            elif any(out.memory != spec.memory for out in call.out_specs) or spec.serial in mutated:
                found = True
        return found

    def _is_unwritten(self, spec: Spec) -> bool:
        elements = self._elements.get(spec.memory)
        if elements is None or 0 in spec.shape:
            return False
        if elements.memory.expired():  # type: ignore[no-untyped-call]
            del self._elements[spec.memory]
            return False
        return not elements.has_written(spec)

    @staticmethod
    def _is_result(call: Call, spec: Spec) -> bool:
        """Whether an argument that is changed is there to take results; torch gives those by name."""
        is_noise = "noise" in argument_names(call.operation) and call.arg("noise") is spec
        return is_noise or any(value is spec for value in specs_in(list(call.kwargs.values())))

    def _write(self, call: Call, spec: Spec) -> None:
        elements = self._elements[spec.memory]
        place = _PLACING.get(call.name)
        if place is None:
            elements.write(spec)
            return
        values = call.args[place] if place < len(call.args) else None
        num = math.prod(values.shape) if isinstance(values, Spec) else 0
        if num >= math.prod(spec.shape):  # each place once, as far as their number tells
            elements.write(spec)
