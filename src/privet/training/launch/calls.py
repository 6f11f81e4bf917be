"""The calls of torch that a loss function makes, as a program that is compared and carried out without the function.

A *slot* stands for a result of a call. Arguments are kept with slots in the place of results; every other tensor of the
device is a given one (a weight, a buffer, a tensor of the batch) and is kept as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from privet.isolation.asking import writes
from privet.training.launch.values import (
    Ambient,
    Constant,
    Function,
    NotRecordable,
    Slot,
    Snapshot,
    applied,
    filled,
    leaves_in,
)


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """One call, and the calls that were seen to follow it.

    Attributes:
        function: The function that was called.
        ambient: The modes in which it was called.
        args: The arguments, with slots and snapshots.
        kwargs: The named ones.
        result: The result, with slots.
        is_read: Whether it hands numbers of a tensor to Python.
        is_settled: Whether a read has one answer in every run of its program, so that no device need be asked.
        constant: The function with its result, where the call has no tensor of the device among its arguments and
            tensors of another one: they are public values, and a recording cannot repeat the copy from there.
        asides: The calls before it that have nothing to do with the device: switches, computations elsewhere. They are
            made in every dry run, and not compared: their effect is in the modes and snapshots of other calls.
        following: The calls that were seen after it, the latest first.
        ends: The ends of programs whose last call it is, by the slot of the losses.
        items: The arguments with stand-ins, for comparisons.
    """

    function: Function
    ambient: Ambient
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    is_read: bool = False
    is_settled: bool = False
    constant: Constant | None = None
    asides: Sequence[Call] = ()
    following: list[Call] = field(default_factory=list)
    ends: dict[Slot, End] = field(default_factory=dict)
    items: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    handed_out: Any = None

    def is_same(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], ambient: Ambient) -> bool:
        """Whether a call of a dry run is this one."""
        if (self.function is not function and self.function != function) or self.ambient != ambient:
            return False
        values = (*args, *kwargs.values()) if kwargs else args
        items = self.items
        if len(values) != len(items) or ((kwargs or self.names) and tuple(kwargs) != self.names):
            return False
        for value, item in zip(values, items, strict=True):
            if value is not item and not _is_same(value, item):
                return False
        return True

    def is_same_aside(self, other: Call) -> bool:
        """Whether a call that has nothing to do with the device was made again, perhaps on other numbers in tensors."""
        is_same = self.function == other.function and self.ambient == other.ambient
        mine, theirs = ([*call.args, call.kwargs] for call in (self, other))
        values = [list(leaves_in(given)) for given in (mine, theirs)]
        return (
            is_same
            and len(self.slots) == len(other.slots)
            and len(values[0]) == len(values[1])
            and all(isinstance(one, Snapshot) or _is_alike(one, same) for one, same in zip(*values, strict=True))
        )

    def compile(self) -> None:
        """Make the stand-ins of its results, and prepare comparisons; those of earlier calls exist."""
        self.handed_out = filled(self.result, _stand_in)
        self.items = tuple(filled(value, _stand_in) for value in (*self.args, *self.kwargs.values()))
        self.names = tuple(self.kwargs)

    @property
    def slots(self) -> list[Slot]:
        """The slots of its results; those of arguments that it changed in place among them."""
        return [leaf for leaf in leaves_in(self.result) if isinstance(leaf, Slot)]

    @property
    def needs(self) -> list[Slot]:
        """The slots among its arguments."""
        leaves = [leaf.slot if isinstance(leaf, Snapshot) else leaf for leaf in leaves_in([*self.args, self.kwargs])]
        return [leaf for leaf in leaves if isinstance(leaf, Slot)]


@dataclass(slots=True, eq=False, repr=False)
class End:
    """The end of a program: its losses, and its recording if there is one.

    Attributes:
        program: The calls from the first to the last.
        recording: Where it was recorded.
    """

    program: Program
    recording: Any = None
    _places: Sequence[tuple[Tensor, int]] = ()

    def keep(self, recording: Any) -> None:
        """Keep a recording, and where the tensors lie that it reads."""
        self.recording = recording
        self._places = [(tensor, tensor.data_ptr()) for tensor in self.program.given]

    def is_where_it_was(self, was_written: Callable[[Tensor], bool]) -> bool:
        """Whether the recording still reads its weights and constants, and no examples were written into these."""
        for tensor, place in self._places:
            if tensor.data_ptr() != place or (not isinstance(tensor, nn.Parameter) and was_written(tensor)):
                return False
        return True


def _stand_in(value: Any) -> Any:
    return value.make_stand_in() if isinstance(value, Slot) else value


def _is_same(value: Any, item: Any) -> bool:
    """Whether an argument is the expected one; floats are compared by value."""
    kind = type(item)
    if kind is Snapshot:
        return bool(item.is_equal_to(value))
    if isinstance(item, Tensor) or isinstance(value, Tensor):
        return False  # the caller has seen that they are two objects
    if type(value) is not kind:
        return False
    if kind is dict:
        return list(value) == list(item) and all(_is_alike(value[name], item[name]) for name in item)
    if kind is slice:
        pairs = zip((value.start, value.stop, value.step), (item.start, item.stop, item.step), strict=True)
        return all(_is_alike(*pair) for pair in pairs)
    if isinstance(item, list | tuple):
        return len(value) == len(item) and all(map(_is_alike, value, item))
    return bool(value == item) or (value != value and item != item)


def _is_alike(value: Any, item: Any) -> bool:
    return value is item or _is_same(value, item)


class Program:
    """The calls of one run up to its end, which can be carried out on other examples.

    Guarantee:
        ``run`` makes the calls that the loss function made, in their order and modes, on the same weights and on the
        tensors of the batch that it is given; it runs none of the function's Python.
    """

    def __init__(self, calls: Sequence[Call], losses: Slot, device: torch.device) -> None:
        """Take the calls in order; each comes after its asides."""
        self.calls, self.losses, self._device = tuple(all_of(calls)), losses, device
        last_use: dict[Slot, int] = {}
        for place, call in enumerate(self.calls):
            for slot in (*call.needs, *call.slots):
                last_use[slot] = place
        last_use[losses] = len(self.calls)
        self._dies: list[list[Slot]] = [[] for _ in self.calls]  # slots that no later call needs
        for slot, place in last_use.items():
            if place < len(self.calls):
                self._dies[place].append(slot)
        self._last_use = last_use
        for call in self.calls:
            if call.is_read:
                self.producers(call)  # refuses one that cannot be computed by itself

    def run(self, given: Mapping[int, Tensor]) -> Tensor:
        """Carry out the calls and return the losses; ``given`` replaces tensors of the batch, by identity."""
        made: dict[Slot, Tensor] = {}
        place = 0
        while place < len(self.calls):
            end = place
            while end < len(self.calls) and self.calls[end].ambient == self.calls[place].ambient:
                end += 1
            with applied(self.calls[place].ambient, self._device):
                if self.calls[place].ambient.part:
                    self._run_checkpoint(place, end, made, given)
                else:
                    self._run_part(place, end, made, given)
            place = end
        return made[self.losses]

    def _run_part(self, start: int, end: int, made: dict[Slot, Tensor], given: Mapping[int, Tensor]) -> None:
        for place in range(start, end):
            call = self.calls[place]
            if not call.is_read:
                carry_out(call, made, given)
            for slot in self._dies[place]:
                made.pop(slot, None)

    def _run_checkpoint(self, start: int, end: int, made: dict[Slot, Tensor], given: Mapping[int, Tensor]) -> None:
        """Carry out the calls of an activation checkpoint inside one; it draws no random numbers."""
        inner = {slot for call in self.calls[start:end] for slot in call.slots}
        needed = list(dict.fromkeys(
            slot for call in self.calls[start:end] for slot in call.needs if slot not in inner
        ))  # fmt: skip
        left = [slot for slot in inner if self._last_use[slot] >= end]

        def part(*tensors: Tensor) -> tuple[Tensor, ...]:
            inside = dict(zip(needed, tensors, strict=True))
            for call in self.calls[start:end]:
                if not call.is_read:
                    carry_out(call, inside, given)
            return tuple(inside[slot] for slot in left)

        results = checkpoint(part, *(made[slot] for slot in needed), use_reentrant=False, preserve_rng_state=False)
        made.update(zip(left, results, strict=True))
        for place in range(start, end):
            for slot in self._dies[place]:
                made.pop(slot, None)

    def producers(self, read: Call) -> list[Call]:
        """Return the calls that a read depends on, in order.

        Raises:
            NotRecordable: if tensors were changed in place before it, so that the calls do not stand for themselves.
        """
        before = self.calls[: self.calls.index(read)]
        wanted, found = set(read.needs), list[Call]()
        for call in reversed(before):
            if writes(call.function):
                raise NotRecordable("a number is read into Python after tensors were changed in place")
            if not wanted.isdisjoint(call.slots):
                wanted.update(call.needs)
                found.append(call)
        return found[::-1]

    def is_settled(self, read: Call) -> bool:
        """Whether a read depends on nothing but the numbers in the calls of the program.

        No weight, buffer or example is among the arguments of the calls that it depends on, and none of them hands out
        memory as it was found. Values of other devices are compared in every dry run.
        """
        calls = [*self.producers(read), read]
        given = [leaf for call in calls for leaf in leaves_in([*call.args, call.kwargs]) if isinstance(leaf, Tensor)]
        return not given and not any("empty" in getattr(call.function, "__name__", "") for call in calls)

    @property
    def given(self) -> list[Tensor]:
        """The tensors that no call has made."""
        found = {
            id(leaf): leaf
            for call in self.calls
            for leaf in leaves_in([*call.args, call.kwargs])
            if isinstance(leaf, Tensor)
        }
        return list(found.values())


def carry_out(call: Call, made: dict[Slot, Tensor], given: Mapping[int, Tensor], *, may_copy: bool = True) -> Any:
    """Make a call with the results of earlier ones, and keep its own; constants are copied where that is allowed."""

    def real(value: Any) -> Any:
        if isinstance(value, Slot):
            return made[value]
        if isinstance(value, Snapshot):
            return value.present if value.slot is None else made.get(value.slot, value.value)
        return given.get(id(value), value) if isinstance(value, Tensor) else value

    args, kwargs = filled(call.args, real), filled(call.kwargs, real)
    is_copied = call.constant is not None and may_copy
    result = call.constant.show(args, kwargs) if is_copied and call.constant else call.function(*args, **kwargs)
    pairs = zip(leaves_in(call.result), leaves_in(result), strict=True)
    made.update((slot, tensor) for slot, tensor in pairs if isinstance(slot, Slot))
    return result


def all_of(calls: Sequence[Call]) -> Iterator[Call]:
    """Yield calls, each after its asides."""
    for call in calls:
        yield from call.asides
        yield call
