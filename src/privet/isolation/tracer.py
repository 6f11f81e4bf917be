"""Follows a program while it runs: every operation goes through its rule, no matter which code called it.

The tracer sees operations below autograd, so detaching, ``no_grad``, in-place writes, scripted code and the inside of
custom functions make no difference to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from privet.errors import UnsupportedModel
from privet.isolation.call import Call, name_of, specs_in
from privet.isolation.changing import argument_of, tensors_in, writes_of, written_among
from privet.isolation.constants import constant_of, glance_at, is_range, numbers_of, works_by_itself
from privet.isolation.drawing import UNEVEN, GlobalDraws, draws, draws_unevenly
from privet.isolation.lines import asked, is_asked_by_privet, user_line
from privet.isolation.memory import Written
from privet.isolation.numbering import limit
from privet.isolation.place import Cause, Fault, Place, Shape, Spec, Verdict
from privet.isolation.reads import may_read
from privet.isolation.traces import Entry, Trace
from privet.isolation.unwritten import UNWRITTEN, Unwritten
from privet.isolation.verdicts import cause_at, has_own_length, verdicts_of

_COMPILER = "torch._dynamo"
# Namespaces of operators that compute their results and nothing else. Code inside of other operators is not seen.
_TORCH = frozenset(
    ["aten", "prim", "prims", "quantized", "profiler", "inductor", "rngprims", "mkldnn", "mkldnn_prepacked"]
)
EARLIER = "it uses a value that was computed from an earlier batch"
HANDED_OUT = "Python was given the memory of one of its tensors, and may have written to it"
# Operations that tell Python about shapes and types alone.
_ASKING = frozenset(
    [
        "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "size", "stride", "numel", "dim",
        "storage_offset", "is_contiguous", "is_pinned", "is_same_size", "is_strides_like_format",
        "is_non_overlapping_and_dense", "_has_compatible_shallow_copy_type", "_version", "is_complex",
        "is_floating_point", "is_conj", "is_neg", "is_inference", "is_signed", "can_cast", "result_type",
        "_is_zerotensor",
    ]
)  # fmt: skip


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode that is active while a program is proven."""

    def __init__(
        self,
        num_examples: int,
        first_seen: Callable[[Tensor], Verdict] = lambda tensor: None,
        *,
        slot: int = 0,
        is_trained: Callable[[Tensor], bool] = lambda tensor: False,
        draws: GlobalDraws | None = None,
    ) -> None:
        """Follow a batch of this many examples.

        Args:
            num_examples: How many there are.
            first_seen: Gives the verdict on a tensor that was made before.
            slot: Tells tracers apart that are active at the same time.
            is_trained: Whether a public tensor is a parameter, whose numbers change from step to step.
            draws: Watches what the program draws from global generators.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._first_seen, self._attribute = first_seen, f"_privet_spec_{slot}"
        self.trace = Trace(num_examples=num_examples)
        self._token = object()
        self._strangers: dict[int, tuple[Tensor, Spec]] = {}  # held, so that no other gets their identity
        self._written, self._unwritten = Written(), Unwritten()
        self._is_trained, self._draws = is_trained, draws
        self._glances: dict[int, bytes] = {}  # some numbers of public tensors made elsewhere, which numpy may change
        self._handed_out: set[int] = set()  # memory of public results that Python may write to
        self._memories: dict[int, StorageWeakRef] = {}  # held, so that no other memory gets their identity
        self._touched: set[int] = set()  # memory that was written to
        self.harmless = ""  # why the reads of the call that is being carried out are, if they are
        self._forward: frozenset[int] | None = None  # its memory, once the backward pass has begun
        self._is_opening = False  # a tensor whose class carries its operations out, one of which comes next
        self.depth = 0  # of the user's own code in the backward pass, which alone is followed there
        self._num_specs = 0

    def mark(self, tensor: Tensor, verdict: Verdict) -> None:
        """Give the verdict on a tensor that autograd made, so that a later batch knows its origin."""
        self._strangers.pop(id(tensor), None)
        spec = self._described(tensor, verdict)
        spec.token, spec.serial = self._token, self._num_specs
        self._num_specs += 1
        setattr(tensor, self._attribute, spec)

    def give(self, tensor: Tensor, verdict: Verdict) -> None:
        """Give the verdict on a tensor that was made while the tracer was not active."""
        self._new(tensor, verdict)

    def turn_back(self) -> None:
        """Begin with the backward pass, in which only the user's own code is followed."""
        self._forward = frozenset(self._memories)
        self.trace = Trace(num_examples=self.trace.num_examples)  # its users keep the trace of the forward pass

    def send_back(self, grad: Tensor) -> Verdict:
        """Note a gradient that the user's code hands on; return the verdict on it."""
        spec = self.spec(grad)
        self.trace.sent_back.append((spec.serial, spec.memory))
        return spec.verdict

    def release(self) -> None:
        """Let go of every tensor."""
        self._strangers.clear()
        self._memories.clear()

    def has_made(self, tensor: Tensor) -> bool:
        """Whether an operation that was followed made a tensor."""
        spec: Spec | None = getattr(tensor, self._attribute, None)
        return spec is not None and spec.token is self._token

    def verdict(self, tensor: Tensor) -> Verdict:
        """Return the verdict on a tensor."""
        return self.spec(tensor).verdict

    def _new(self, tensor: Tensor, verdict: Verdict) -> Spec:
        """Describe a tensor that no operation of this trace has made: it is left as it is."""
        spec = self._described(tensor, verdict)
        if verdict is None and not self.has_made(tensor) and not self._is_trained(tensor):
            if (numbers := numbers_of(tensor)) is not None:
                self.trace.constants[self._num_specs] = numbers
            if (glance := glance_at(tensor)) is not None:
                self._glances[self._num_specs] = glance
        spec.token, spec.serial = self._token, self._num_specs
        self._num_specs += 1
        self._strangers[id(tensor)] = (tensor, spec)
        return spec

    def _described(self, tensor: Tensor, verdict: Verdict) -> Spec:
        if tensor.is_nested:
            raise UnsupportedModel(
                f"The program makes a nested tensor ({user_line()}), which has no axis of examples that rules could "
                "follow. Pad the sequences, and give each example's mask to the attention."
            )
        shape: Shape = tuple(tensor.shape)
        try:
            with torch._C.DisableTorchFunction():  # these questions are not the program's
                strides, offset, storage = tensor.stride(), int(tensor.storage_offset()), tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):  # sparse and other layouts
            return Spec(shape, dtype=tensor.dtype, verdict=verdict)
        spec = Spec(shape, dtype=tensor.dtype, verdict=verdict, strides=strides, offset=offset)
        spec.memory = storage._cdata
        if spec.memory not in self._memories:
            self._memories[spec.memory] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        return spec

    def spec(self, tensor: Tensor) -> Spec:
        """Return the finding on a tensor; one that was never seen is public, unless an earlier batch made it."""
        stranger = self._strangers.get(id(tensor))
        found: Spec | None = getattr(tensor, self._attribute, None) if stranger is None else stranger[1]
        if found is None:
            found = self._new(tensor, self._first_seen(tensor))
        elif found.token is not self._token:
            verdict = self._first_seen(tensor)
            if verdict is None and found.verdict is not None:
                verdict = Cause(Fault.MIXES, "the program", EARLIER, user_line())
            found = self._new(tensor, verdict)
        elif self._is_changed(found, tensor):
            found = self._new(tensor, None)
        found.was_written = found.was_written or found.memory in self._touched
        if found.verdict is None and found.memory in self._handed_out:
            found = self._new(tensor, Cause(Fault.NO_RULE, "the program", HANDED_OUT, user_line()))
        if self._written.is_known(found):
            return found
        verdict = self._written.verdict(found, tensor)
        if verdict != found.verdict:
            found = self._new(tensor, verdict)
        self._written.knows(found)
        return found

    def _is_changed(self, spec: Spec, tensor: Tensor) -> bool:
        """Whether code that torch does not see has written to a public tensor made elsewhere since it was last used."""
        glance = self._glances.get(spec.serial)
        return glance is not None and spec.verdict is None and glance != glance_at(tensor)

    def reads(self, tensor: Tensor) -> bool:
        """Whether the numbers of a tensor are those of examples, or may be."""
        return self.verdict(tensor) is not None or self._unwritten.holds(self.spec(tensor))

    def hand_out(self, tensors: Sequence[Tensor]) -> None:
        """Note public results whose memory Python was given: it may write to them past torch."""
        self._handed_out.update(self.spec(tensor).memory for tensor in tensors)
        self.trace.is_hidden = True

    supports_higher_order_operators = True  # they are refused in words of ours

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tell torch not to import its compiler (seconds) for the first operation; see :func:`tracer`."""
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Carry out the operation, then note it."""
        if any(map(works_by_itself, types)):
            return self._open_up(func, types, args, kwargs or {})
        return self._follow(func, args, kwargs or {})

    def _follow(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(func, HigherOrderOperator):
            raise UnsupportedModel(
                f"The program hands functions to {func._name} ({user_line()}), which runs them where no rule "
                "follows. Write the functions out: torch.where instead of torch.cond, a Python loop instead of "
                "torch.while_loop or torch.scan, scaled_dot_product_attention with a mask instead of flex_attention."
            )
        seen = [self._seen(arg) for arg in args]
        if func.namespace not in _TORCH and any(spec.verdict is not None for spec in specs_in(seen)):
            self._doubt(func, "it has no rule")
        elif draws_unevenly(func, args, kwargs) and any(spec.verdict is not None for spec in specs_in(seen)):
            self._doubt(func, UNEVEN)
        named = {name: self._seen(value) for name, value in kwargs.items()} if kwargs else kwargs
        try:
            if self._draws is not None and draws(func) and kwargs.get("generator") is None:
                result = self._draws.carry_out(partial(func, *args, **kwargs))
            else:
                result = func(*args, **kwargs)
        except Exception:
            self._note_error(func, seen, named)
            raise
        self._note(func, args, kwargs, seen, named, result)
        return result

    def _doubt(self, func: OpOverload, reason: str) -> None:
        """Note an operation that may do more with the examples than compute its results."""
        self.trace.doubt = self.trace.doubt or Cause(Fault.NO_RULE, name_of(func), reason, user_line())

    def _open_up(self, func: OpOverload, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Follow what a class of tensors does for an operation, instead of the operation."""
        if self._is_opening:
            self._is_opening = False
            return NotImplemented
        self._is_opening, self.trace.is_hidden = True, True
        try:
            with self:
                return func(*args, **kwargs)
        finally:
            self._is_opening = False

    def _note_error(self, func: OpOverload, seen: list[Any], named: dict[str, Any]) -> None:
        """Note an error: code that catches it learns something about the numbers of the arguments."""
        if any(spec.verdict is not None for spec in specs_in((*seen, *named.values()))):
            self.read(f"an error of {name_of(func)}")

    def _seen(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.spec(value)
        if type(value) in (list, tuple) and any(isinstance(item, Tensor) for item in value):
            return [self.spec(item) if isinstance(item, Tensor) else item for item in value]
        return value

    def _note(
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        seen: list[Any],
        named: dict[str, Any],
        result: Any,
    ) -> None:
        outs = [result] if isinstance(result, Tensor) else tensors_in(result)
        call = Call(func, seen, named, [self._described(out, None) for out in outs])
        writes = writes_of(func)
        if not outs and writes:  # it changes tensors and returns none: the changed tensors are its results
            outs = [tensor for number, name in writes for tensor in tensors_in(argument_of(args, kwargs, number, name))]
            call.out_specs = [self._described(out, None) for out in outs]
        if not outs:
            self._note_read(call, result)
            return
        verdicts = verdicts_of(call)
        if self._unwritten.is_read(call, {spec.serial for spec in specs_in(written_among(writes, seen, named))}):
            verdicts = call.everywhere(cause_at(Fault.MIXES, call, UNWRITTEN))
        self._unwritten.note(call, outs)
        limit(call)
        is_long = has_own_length(call)
        mutated = self._write(writes, args, kwargs, call, verdicts) if writes else ()
        for out, spec, verdict in zip(outs, call.out_specs, verdicts, strict=True):
            spec.verdict, spec.has_own_length = verdict, is_long
            spec.token, spec.serial = self._token, self._num_specs
            self._num_specs += 1
            self._set(out, spec)
            self._written.knows(spec)
        constant = constant_of(call.name, outs)
        if isinstance(constant, bytes) and is_range(outs[0], constant):
            call.out_specs[0].iota = (0, 1)
        line, is_shown = asked()
        self.trace.is_hidden = self.trace.is_hidden or not is_shown
        if self._forward is None or self.depth:
            self.trace.entries.append(Entry(call, mutated, constant, line))

    def _note_read(self, call: Call, result: Any) -> None:
        """Note a result that is no tensor: Python was told something about the numbers of the arguments."""
        if result is None or call.name in _ASKING:
            return
        if any(spec.verdict is not None or self._unwritten.holds(spec) for spec in call.specs):
            self.read(call.name)

    def read(self, operation: str) -> None:
        """Note that numbers of the examples were handed to Python."""
        if is_asked_by_privet():
            return
        self.trace.reads.append(may_read(operation, self._num_specs, self.harmless))

    def _write(
        self,
        writes: Sequence[tuple[int, str]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Call,
        verdicts: Sequence[Verdict],
    ) -> tuple[int, ...]:
        """Note a write: memory that other tensors share holds examples from now on."""
        mutated = []
        for number, name in writes:
            for place, tensor in enumerate(tensors_in(argument_of(args, kwargs, number, name))):
                verdict = verdicts[min(place, len(verdicts) - 1)]
                before = self.spec(tensor)
                mutated.append(before.serial)
                if self.depth and self._forward is not None and before.memory in self._forward:
                    self.trace.sent_back.append((before.serial, before.memory))
                self._touched.add(before.memory)
                if verdict != before.verdict or isinstance(verdict, Cause) or _lies_elsewhere(tensor, before):
                    self._written.note(tensor, before, verdict, call, self.trace.num_examples)
                    self._forget(tensor)
        return tuple(mutated)

    def _set(self, tensor: Tensor, spec: Spec) -> None:
        if id(tensor) in self._strangers:
            self._strangers[id(tensor)] = (tensor, spec)
        else:
            setattr(tensor, self._attribute, spec)

    def _forget(self, tensor: Tensor) -> None:
        self._strangers.pop(id(tensor), None)
        setattr(tensor, self._attribute, None)


def _lies_elsewhere(tensor: Tensor, before: Spec) -> bool:
    """Whether a write laid a tensor out anew in its memory, as ``out=`` does where shapes differ.

    Other tensors of that memory then hold other numbers than before, perhaps those of other examples.
    """
    if not isinstance(before.verdict, Place) or not before.strides:
        return False
    with torch._C.DisableTorchFunction():
        shape, strides, offset = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    if (shape, strides, offset) == (before.shape, before.strides, before.offset):
        return False
    place = before.verdict
    return place.is_single or not place.fits(shape) or strides[place.axis] != before.strides[place.axis]


class _Uncompiled(Tracer):  # type: ignore[no-untyped-call]
    """A tracer whose own code torch's compiler must leave alone."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    __torch_dispatch__ = Tracer.__torch_dispatch__  # torch keeps its compiler from functions of the class itself alone


def tracer(
    num_examples: int,
    first_seen: Callable[[Tensor], Verdict],
    *,
    slot: int = 0,
    is_trained: Callable[[Tensor], bool] = lambda tensor: False,
    draws: GlobalDraws | None = None,
) -> Tracer:
    """Return a tracer; see :class:`Tracer`. Where torch's compiler is about, it is kept from compiling the tracer."""
    kind = _Uncompiled if _COMPILER in sys.modules else Tracer
    return kind(num_examples, first_seen, slot=slot, is_trained=is_trained, draws=draws)
