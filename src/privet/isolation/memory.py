"""Memory that several tensors share: a write through one of them is read through the others."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef

from privet.isolation.call import Call
from privet.isolation.lines import user_line
from privet.isolation.place import (
    Cause,
    Fault,
    NoRule,
    Place,
    Rows,
    Spec,
    Verdict,
    from_storage,
    single,
    storage_stride,
)


@dataclass(slots=True)
class _Content:
    """The contents of one piece of memory: a new example every ``stride`` elements, or unknown."""

    memory: StorageWeakRef
    stride: int = 0
    num: int = 0
    fault: Cause | None = None
    number: int = 0


@dataclass(slots=True)
class Written:
    """All memory into which examples were written that it did not hold when it was made."""

    _contents: dict[int, _Content] = field(default_factory=dict)
    _count: int = 0

    def is_known(self, spec: Spec) -> bool:
        """Whether nothing was written since the spec was last looked at."""
        return spec.storage == self._count

    def knows(self, spec: Spec) -> None:
        """Note that a spec was looked at."""
        spec.storage = self._count

    def note(self, tensor: Tensor, before: Spec, verdict: Verdict, call: Call, num_examples: int) -> None:
        """Remember the verdict on a tensor."""
        self._count += 1
        storage = _storage(tensor)
        key = storage._cdata
        content = self._contents.get(key)
        if content is None or content.memory.expired():  # type: ignore[no-untyped-call]
            content = self._contents[key] = _Content(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        content.number = self._count
        if isinstance(verdict, Cause):
            content.fault = verdict
        if isinstance(verdict, Rows):
            reason = "rows in an order that the examples give are written into memory that other tensors share"
            content.fault = Cause(Fault.NO_RULE, "an in-place write", reason, user_line())
            return
        if verdict is None or isinstance(verdict, Cause):
            return  # public numbers may belong to any example
        if verdict.is_single and num_examples > 1:
            self._note_single(content, tensor, verdict.first, num_examples)
        else:
            self._note_rows(content, tensor, verdict)

    def _note_rows(self, content: _Content, tensor: Tensor, place: Place) -> None:
        spec = Spec(tuple(tensor.shape), strides=tensor.stride(), offset=int(tensor.storage_offset()))
        try:
            if place.is_single:  # a batch of one: all memory is its
                stride, num = max(1, _storage(tensor).nbytes()), 1
            else:
                stride, num = storage_stride(place, spec), place.num
                if stride == 0 or place.first or from_storage(stride, num, spec) != place:
                    raise NoRule("examples are written across memory")
            if content.stride and (content.stride, content.num) != (stride, num):
                raise NoRule("examples are written across memory in two ways")
        except NoRule as error:
            content.fault = Cause(Fault.NO_RULE, "an in-place write", str(error), user_line())
            return
        content.stride, content.num = stride, num

    def _note_single(self, content: _Content, tensor: Tensor, example: int, num_examples: int) -> None:
        """One example alone was written: its neighbours are expected as far apart as its own rows allow."""
        spec = Spec(tuple(tensor.shape), strides=tensor.stride(), offset=int(tensor.storage_offset()))
        stride = content.stride
        if not stride:
            stride = spec.offset // example if example else (tensor.numel() if tensor.is_contiguous() else 1)
        if not stride or not _is_row(spec, stride, num_examples, example):
            content.fault = Cause(
                Fault.MIXES, "an in-place write", "examples are written in another order than they came in", user_line()
            )
            return
        content.stride, content.num = stride, num_examples

    def verdict(self, spec: Spec, tensor: Tensor) -> Verdict:
        """Return the verdict on a tensor whose memory may have been written to through another."""
        if isinstance(spec.verdict, Cause):
            return spec.verdict
        try:
            storage = _storage(tensor)
        except (RuntimeError, NotImplementedError):
            return spec.verdict
        content = self._contents.get(storage._cdata)
        if content is None or content.memory.expired() or content.number <= spec.storage:  # type: ignore[no-untyped-call]
            return spec.verdict
        if content.fault is not None:
            return content.fault
        return self._from_content(content, spec)

    def _from_content(self, content: _Content, spec: Spec) -> Verdict:
        if content.num == 1:
            return single(0)
        if spec.place is not None and spec.place.is_single:
            return spec.verdict
        example = spec.offset // content.stride % content.num
        if _is_row(spec, content.stride, content.num, example):
            return single(example)
        try:
            found = from_storage(content.stride, content.num, spec)
        except NoRule as error:
            return Cause(Fault.NO_RULE, "an in-place write", str(error), user_line())
        if spec.place is not None and spec.place != found:
            return Cause(Fault.MIXES, "an in-place write", "it writes examples over others", user_line())
        return found


def _storage(tensor: Tensor) -> UntypedStorage:
    """Return a tensor's memory; this is not a read by the program."""
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage()


def _is_row(spec: Spec, stride: int, num: int, example: int) -> bool:
    """Whether a view lies in the rows of one example, in memory where another begins every ``stride`` elements."""
    inner = spec.offset % stride
    for size, step in zip(spec.shape, spec.strides, strict=True):
        if step % (stride * num):
            inner += (size - 1) * step
    return inner < stride and spec.offset // stride % num == example
