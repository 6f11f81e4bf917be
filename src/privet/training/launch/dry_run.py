"""A dry run: the Python of a loss function, without the operations that it calls for.

Every call of torch is compared with the calls of programs that were seen before, and the stand-in of its result is
handed back; nothing is launched. A function that makes the calls of a known program to the end may be replaced by that
program: nothing in Python has changed that its losses depend on. At the first call that no known program makes, the
calls so far are carried out in earnest, and the function goes on with true results as if nothing had happened.
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from privet.isolation.again import hooks_on_saved_tensors
from privet.isolation.asking import ASKING, writes
from privet.training.batching import Draws
from privet.training.launch.calls import Call, End, Program, carry_out
from privet.training.launch.values import (
    STANDS_FOR,
    Ambient,
    AmbientReader,
    Constant,
    Function,
    NotRecordable,
    Slot,
    Snapshot,
    applied,
    check_plain,
    copy_of,
    filled,
    leaves_in,
)

_SLOT = "_privet_slot"  # on a true result: the number of the run, and its slot
_RUNS = itertools.count(1)
# Calls that are more than an operation with a result.
_UNUSUAL: frozenset[Any] = frozenset(
    [
        Tensor.grad_fn.__get__, Tensor.data.__set__, Tensor.register_hook,  # type: ignore[union-attr, attr-defined]
        Tensor.backward, torch.autograd.grad, torch.autograd.backward,
    ]
)  # fmt: skip
# Their results have as many rows as the numbers say, which neither a stand-in nor a recording can follow.
_OF_OWN_LENGTH = frozenset(
    ["nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "repeat_interleave"]
)
_STRIDES: frozenset[Any] = frozenset([Tensor.stride, Tensor.is_contiguous])
_PLAIN = (bool, int, float, complex, str, torch.Size, torch.dtype, torch.device, type(None))


@dataclass(kw_only=True, eq=False, repr=False)
class Programs:
    """The programs that a loss function was seen to run on batches of one form; common beginnings are shared.

    Attributes:
        device: Of the model.
        leaves: The tensors of the batch; every run is given these.
    """

    device: torch.device
    leaves: Sequence[Tensor]
    start: Call = field(init=False)
    _num_references: dict[Slot, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ambient = AmbientReader(self.device).read()
        self.start = Call(function=torch.empty, ambient=ambient, args=(), kwargs={}, result=None)

    def add(self, calls: Sequence[Call], losses: Slot) -> End:
        """Remember a program that ran to its end.

        Raises:
            NotRecordable: if it cannot be carried out without its Python.
        """
        program = Program(calls, losses, self.device)
        for call in program.calls:
            if call.is_read:
                _check_repeatable(program, call, self.device)
                call.is_settled = program.is_settled(call)
        before = self.start
        for call in calls:
            if call not in before.following:
                call.compile()
                before.following.insert(0, call)
            before = call
        end = before.ends[losses] = End(program=program)
        slots = {slot for call in calls for slot in call.slots} | set(self._num_references)
        self._num_references = {slot: sys.getrefcount(slot.stand_in) for slot in slots}
        return end

    def kept_by_user(self, calls: Sequence[Call]) -> list[Slot]:
        """Return the slots of a dry run whose stand-ins somebody still holds."""
        kept = self._held(calls)
        if kept:
            gc.collect()  # a cycle of objects may hold stand-ins that no code can reach
            kept = self._held(calls)
        return kept

    def _held(self, calls: Sequence[Call]) -> list[Slot]:
        known = self._num_references
        return [slot for call in calls for slot in call.slots if sys.getrefcount(slot.stand_in) != known[slot]]


def _read(program: Program, read: Call) -> Any:
    """Compute the number that Python asks for, and nothing else."""
    made: dict[Slot, Tensor] = {}
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for call in program.producers(read):
            carry_out(call, made, {})
        return carry_out(read, made, {})


def _check_repeatable(program: Program, read: Call, device: torch.device) -> None:
    draws = Draws.now(device)
    before = _draws_of(device)
    _read(program, read)
    is_random = not torch.equal(before, _draws_of(device))
    draws.restore()
    if is_random:
        raise NotRecordable("a random number is read into Python")


class MustRestart(RuntimeError):
    """A run departed where the function's own Python runs again in the backward pass, on stand-ins; run it anew."""


class DryRun(TorchFunctionMode):
    """One run of a loss function, dry as long as it can be.

    Guarantee:
        ``end`` is a program only if the function made its calls and no others on tensors of the device: the same
        functions in the same modes, with equal numbers (floats included) and small tensors of other devices, on the
        same results, weights and batch tensors.
    """

    def __init__(self, programs: Programs, begin: Callable[[], None]) -> None:
        """Expect the program that ran last; ``begin`` is called before the first operation that is carried out."""
        super().__init__()
        self._programs, self._begin, self._device = programs, begin, programs.device
        self._number = next(_RUNS)
        self._at, self._calls, self._num_dry = programs.start, list[Call](), 0
        self._asides: list[Call] = []
        self._happened: list[Call] = []  # while the run was dry: asides, and calls that were answered by stand-ins
        self._before_asides: Tensor | None = None  # the state of the processor's generator
        self._renamed: dict[Slot, Slot] = {}  # of results elsewhere: their slots in the program that is expected
        self._ambient = AmbientReader(programs.device)
        self._made: dict[Slot, Tensor] = {}
        self._is_leaf = {id(leaf) for leaf in programs.leaves}
        self.is_dry = True
        self.why_not: str | None = None  # why the program cannot be remembered

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Hand back the stand-in of an expected call; carry out any other."""
        kwargs = kwargs or {}
        if not self.is_dry:
            return self._carry_out(func, args, kwargs)
        if func in ASKING:
            slot = getattr(args[0], STANDS_FOR, None) if func in _STRIDES else None
            with torch._C.DisableTorchFunction():
                return func(*args, **kwargs) if slot is None else func(slot.form, *args[1:], **kwargs)
        try:
            ambient = self._ambient.read()
        except NotRecordable:
            return self._depart(func, args, kwargs)
        for call in self._at.following:
            if call.is_same(func, args, kwargs, ambient) and self._has_asides_of(call):
                break
        else:
            return self._run_elsewhere(func, args, kwargs, ambient)
        for mine, theirs in zip(self._asides, call.asides, strict=True):
            self._renamed.update(zip(mine.slots, theirs.slots, strict=True))
        self._at, self._asides = call, []
        self._calls.append(call)
        self._happened.append(call)
        if call.is_read:
            if call.is_settled:  # in containers of its own, which the function may change
                return filled(call.result, lambda answer: answer)
            return _read(_ends_below(call)[0].program, call)
        handed_out = call.handed_out
        return handed_out[:] if type(handed_out) is list else handed_out

    def _has_asides_of(self, call: Call) -> bool:
        """Whether the same calls were made elsewhere since the last call, but for the numbers in tensors."""
        mine, theirs = self._asides, call.asides
        return len(mine) == len(theirs) and all(map(Call.is_same_aside, mine, theirs))

    def _run_elsewhere(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], ambient: Ambient) -> Any:
        """Carry out a call that has nothing to do with the device, such as a draw on the processor or a switch."""
        if any(map(self._is_on_device, leaves_in([*args, kwargs]))):
            return self._depart(func, args, kwargs)
        state = _draws_of(self._device)
        if self._before_asides is None:
            self._before_asides = torch.get_rng_state()
        with torch._C.DisableTorchFunction():
            result = func(*args, **kwargs)
        if not any(map(self._is_on_device, leaves_in(result))):
            self._note_safely(func, ambient, args, kwargs, result)
            return result
        _set_draws(state, self._device)  # it is carried out once, in its place
        return self._depart(func, args, kwargs)

    def _is_on_device(self, value: object) -> bool:
        return isinstance(value, Tensor) and value.device.type == self._device.type

    def _depart(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.carry_out_all()
        return self._carry_out(func, args, kwargs)

    def carry_out_all(self) -> None:
        """Carry out the calls so far; from now on every call is carried out."""
        self.is_dry, self._num_dry = False, len(self._calls)
        self._begin()
        self._draws = _draws_of(self._device)
        if self._before_asides is not None:  # calls elsewhere are made again, with the same draws
            torch.set_rng_state(self._before_asides)
        for call in self._happened:
            if not call.is_read:
                with applied(call.ambient, self._device):
                    carry_out(call, self._made, {}, may_copy=False)
            for slot in call.slots:
                if slot in self._renamed:
                    self._made[self._renamed[slot]] = self._made[slot]
        for slot, tensor in self._made.items():
            setattr(tensor, _SLOT, (self._number, slot))

    def _carry_out(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call with true results in the place of stand-ins, and note it."""
        args, kwargs = filled(args, self.true), filled(kwargs, self.true)
        if self._num_dry:
            self._check_backward(func, args)
        if self.why_not is not None or func in ASKING:
            return func(*args, **kwargs)
        try:
            if func in _UNUSUAL or _has_own_length(func, args, kwargs):
                raise NotRecordable(f"{getattr(func, '__name__', func)} is called")
            ambient, kept = self._ambient.read(), (filled(args, self._kept), filled(kwargs, self._kept))
        except NotRecordable as problem:
            self.why_not = str(problem)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        self._note_safely(func, ambient, *kept, result)
        return result

    def _note_safely(
        self, func: Function, ambient: Ambient, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        try:
            self._note(func, ambient, filled(args, self._kept), filled(kwargs, self._kept), result)
        except NotRecordable as problem:
            self.why_not = str(problem)

    def _check_backward(self, func: Function, args: Sequence[Any]) -> None:
        """Refuse to go on where a backward pass would run the user's code again, which holds stand-ins."""
        with torch._C.DisableTorchFunction():  # whoever watches calls must not see these questions
            nodes = [value.grad_fn for value in leaves_in(args) if isinstance(value, Tensor)]
        has_node = any(isinstance(node, BackwardCFunction) for node in nodes)
        if has_node or func in _UNUSUAL or hooks_on_saved_tensors() is not None:
            raise MustRestart

    def _note(
        self, func: Function, ambient: Ambient, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        leaves = list(leaves_in(result))
        values = [value for value in leaves_in([*args, kwargs]) if isinstance(value, Tensor | Slot | Snapshot)]
        is_of_device = any(not isinstance(value, Snapshot) for value in values)
        has_tensors = any(isinstance(leaf, Tensor) for leaf in leaves)
        is_aside = not is_of_device and not any(map(self._is_on_device, leaves))
        is_read = not has_tensors and result is not None and not writes(func)
        if is_read and not is_aside and not all(isinstance(leaf, _PLAIN) for leaf in leaves):
            raise NotRecordable(f"{getattr(func, '__name__', func)} returns a {type(result).__name__}")
        call = Call(function=func, ambient=ambient, args=args, kwargs=kwargs, result=filled(result, self._slot_of))
        call.is_read = is_read and bool(values) and not is_aside
        if has_tensors and not is_of_device and (values or is_aside):
            copied = filled(result, lambda leaf: copy_of(leaf) if isinstance(leaf, Tensor) else leaf)
            call.constant = Constant(func, copied)
        if is_aside:
            self._asides.append(call)
            if self.is_dry:
                self._happened.append(call)
            return
        call.asides, self._asides = tuple(self._asides), []
        self._calls.append(call)

    def true(self, value: Any) -> Any:
        """Return the true result for a stand-in or a result elsewhere, and anything else as it is."""
        if not isinstance(value, Tensor):
            return value
        slot = getattr(value, STANDS_FOR, None) or self._known_slot(value)
        return value if slot is None else self._made.get(slot, value)

    def _kept(self, value: Any) -> Any:
        """Return the kept form of an argument: the slot of a result, a copy of a tensor of another device."""
        if not isinstance(value, Tensor):
            check_plain(value)
            return value
        slot = self._known_slot(value)
        if not self._is_on_device(value):
            return Snapshot.of(value, slot)
        return value if slot is None else slot

    def _slot_of(self, value: Any) -> Any:
        """Return the slot of a result; one that is an argument keeps its own, and a given tensor is kept as it is."""
        if not isinstance(value, Tensor):
            return value
        slot = self._known_slot(value)
        if slot is None and (id(value) in self._is_leaf or isinstance(value, torch.nn.Parameter)):
            return value
        if slot is None:
            slot = Slot.of(value)
            setattr(value, _SLOT, (self._number, slot))
        return slot

    def _known_slot(self, value: Tensor) -> Slot | None:
        number, slot = getattr(value, _SLOT, (0, None))
        return self._renamed.get(slot, slot) if slot is not None and number == self._number else None

    def end_of(self, losses: object) -> End | None:
        """Return the program that this run was, if it was dry to its end."""
        slot = getattr(losses, STANDS_FOR, None)
        return self._at.ends.get(slot) if self.is_dry and isinstance(slot, Slot) else None

    def remember(self, losses: Tensor) -> End:
        """Remember the program of a run that was carried out.

        Raises:
            NotRecordable: naming the call that cannot be repeated.
        """
        slot = self._known_slot(losses)
        if self.why_not is not None or slot is None:
            raise NotRecordable(self.why_not or "the losses are not the result of a call of torch")
        has_parts = any(call.ambient.part for call in self._calls)
        if has_parts and not torch.equal(self._draws, _draws_of(self._device)):
            raise NotRecordable("random numbers are drawn, and activations are checkpointed")
        return self._programs.add(self._calls, slot)

    @property
    def kept_by_user(self) -> list[Slot]:
        """The results of a dry run that the user's code still holds."""
        return self._programs.kept_by_user(self._calls[: self._num_dry] if not self.is_dry else self._calls)

    def give_true_numbers(self, kept: Sequence[Slot]) -> None:
        """Fill stand-ins that the user's code holds; the calls have been carried out."""
        for slot in kept:
            assert slot.stand_in is not None, "it was handed out"
            slot.stand_in.data = self._made[slot].detach()


def _has_own_length(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the shape of a result depends on the numbers in the arguments."""
    name = getattr(func, "__name__", "")
    if name in ("__getitem__", "index_select") or (name == "where" and len(args) + len(kwargs) == 1):
        tensors = [leaf for leaf in leaves_in(args[1:]) if isinstance(leaf, Tensor)]
        return name == "where" or any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors)
    if name == "repeat_interleave":  # a number of times is part of the call; a tensor of numbers is not
        repeats = args[1] if len(args) > 1 else kwargs.get("repeats")
        return not isinstance(repeats, int)
    return name in _OF_OWN_LENGTH


def _draws_of(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_draws(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def _ends_below(call: Call) -> list[End]:
    waiting, found = [call], list[End]()
    while waiting and not found:
        at = waiting.pop()
        found += at.ends.values()
        waiting += at.following
    return found
