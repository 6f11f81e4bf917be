"""Signs of arguments: a call is the one that was proven if the signs of its arguments are the same.

A sign is a tuple whose first item is a kind that no other sort of argument has, so that a whole number never passes for
the result of that number, a truth value for a whole number, or a list for a tuple. A call that is expected again is
compiled from its signs into a few comparisons, which :meth:`privet.isolation.follow.Follower.before` makes in line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from types import EllipsisType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from privet.isolation.drawing import Drawn

Function = Callable[..., Any]
Sign = tuple[Any, ...]

VERSION = "_privet_version"  # how often a result had been written to when it was made
RESULT, GIVEN = "result", "given"  # strings are no types: the first items of all other signs are
# Arguments that tell programs apart as they are.
_EXACT = frozenset(
    [int, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout, EllipsisType]
)
# Where examples lie does not depend on their numbers.
_BY_KIND = frozenset([float, complex, torch.Generator])
_SEQUENCES = frozenset([list, tuple, torch.Size])


def sign_of(value: Any, tensor_sign: Callable[[Tensor], Sign]) -> Sign:
    """Return the sign of an argument; ``tensor_sign`` gives that of a tensor."""
    kind = type(value)
    if kind in _EXACT:
        return (kind, value)
    if kind in _BY_KIND:
        return (kind,)
    if isinstance(value, Tensor):
        return tensor_sign(value)
    if kind in _SEQUENCES:
        return (kind, *[sign_of(item, tensor_sign) for item in value])
    if kind is slice:
        return (slice, *[sign_of(item, tensor_sign) for item in (value.start, value.stop, value.step)])
    if kind is dict:
        return (dict, *[(name, sign_of(item, tensor_sign)) for name, item in value.items()])
    if isinstance(value, np.ndarray):
        return (kind, value.shape, value.dtype, blake2b(value.tobytes()).digest())
    if callable(value) or isinstance(value, range | np.generic | Enum | bytes):
        return (kind, value)
    return (object(),)  # it may be another number at every call: the program is proven anew every time


def collect(
    sign: Sign,
    value: Any,
    constant: Callable[[Tensor], Any],
    generator: Callable[[torch.Generator], None],
    into: list[Any],
) -> None:
    """Add the numbers of an argument that its sign leaves open: floats, and which constant a tensor is.

    A program may use other ones at another step. Nothing in it may use other ones for another number of examples.
    """
    kind = sign[0]
    if kind is float or kind is complex:
        into.append(value)
    elif kind is GIVEN:
        if is_constant(sign):
            into.append(constant(value))
    elif kind is torch.Generator:
        generator(value)
        into.append(None)
    elif kind in _SEQUENCES:
        for inner, item in zip(sign[1:], value, strict=True):
            collect(inner, item, constant, generator, into)
    elif kind is slice:
        for inner, item in zip(sign[1:], (value.start, value.stop, value.step), strict=True):
            collect(inner, item, constant, generator, into)
    elif kind is dict:
        for (_, inner), item in zip(sign[1:], value.values(), strict=True):
            collect(inner, item, constant, generator, into)


@dataclass(frozen=True, slots=True, eq=False)
class Fresh:
    """A public tensor that was met for the first time, made by a call that torch does not show or before the batch.

    Attributes:
        number: That it goes by from now on.
    """

    number: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A public tensor that no call has made.

    Attributes:
        number: That it goes by.
        numbers: Some of its numbers at the time of the call, where looking at them does not wait for a device: code
            that torch does not see (numpy) may have written to it.
    """

    number: int
    numbers: bytes | None


def agree(one: Sequence[Any], other: Sequence[Any], before: Sequence[Any] | None = None) -> bool:
    """Whether two runs used the same numbers.

    Args:
        one: Those of a run.
        other: Those of a later one.
        before: Those with which the program was proven, while a tracer saw everything: a constant that was new there
            may be new every time. None if ``one`` is that run.
    """
    if len(one) != len(other):
        return False
    proven = one if before is None else before
    for place, (left, right) in enumerate(zip(one, other, strict=True)):
        if isinstance(left, Fresh):
            is_same = (isinstance(right, Constant) and left.number == right.number) or (
                isinstance(right, Fresh) and place < len(proven) and isinstance(proven[place], Fresh)
            )
        else:
            is_same = type(left) is type(right) and (left == right or (left != left and right != right))
        if not is_same:
            return False
    return True


def is_constant(sign: Sign) -> bool:
    """Whether a sign is that of a public tensor that no call has made, and no parameter."""
    return sign[0] is GIVEN and type(sign[2]) is tuple and sign[2][0] == -1


def shape_of_one(sign: Sign) -> tuple[Any, ...]:
    """Return which tensor of the batch a sign stands for, and the shape of one example in it; empty if it is none."""
    if sign[0] is not GIVEN or type(sign[2]) is not tuple or not isinstance(sign[2][0], int) or sign[2][0] < 1:
        return ()
    return (sign[2][0], tuple(sign[2][2][1:]))


def num_numbers(sign: Sign) -> int:
    """Return the number of open numbers in a sign."""
    kind = sign[0]
    if kind in _SEQUENCES or kind is slice:
        return sum(map(num_numbers, sign[1:]))
    if kind is dict:
        return sum(num_numbers(inner) for _, inner in sign[1:])
    return int(kind in _BY_KIND or is_constant(sign))


def without_versions(entry: Entry) -> tuple[Any, ...]:
    """Return a call without the counts of writes into its arguments."""
    return (entry.function, entry.names, entry.made, tuple(map(_without_version, entry.signs)))


def _without_version(sign: Sign) -> Sign:
    if sign[0] is RESULT:
        return sign[:4]
    if sign[0] is GIVEN and type(sign[2]) is tuple:
        return (*sign[:2], sign[2][:4])
    return (sign[0], *map(_without_version, sign[1:])) if sign[0] in _SEQUENCES else sign


def number_in(sign: Sign) -> int | None:
    """Return the number of the result that a sign stands for, if it is one."""
    return sign[2] if sign[0] is RESULT else None


class Numbered(Protocol):
    """A parameter, or a tensor that was computed from parameters alone."""

    @property
    def tensor(self) -> Tensor:
        """The tensor itself."""
        ...

    @property
    def parameters(self) -> frozenset[int]:
        """The numbers of the parameters."""
        ...

    @property
    def derived(self) -> bool:
        """Whether it was computed from them."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One call of a program.

    Attributes:
        function: The function that was called.
        names: Of the named arguments, in order; they come after the others.
        made: How many results there were before it.
        signs: Of the arguments.
        tuples: The arguments that are tuples of plain values, by their places: the same object is equal to itself.
    """

    function: Function
    names: tuple[str, ...]
    made: int
    signs: tuple[Sign, ...]
    tuples: Mapping[int, tuple[Any, ...]] = field(default_factory=dict, compare=False)


Rest = tuple[
    tuple[tuple[int, Any, Any], ...],
    tuple[tuple[int, Sign], ...],
    tuple[tuple[int, type], ...],
    tuple[tuple[int, Sign], ...],
    Drawn,
]
"""What few calls have, compiled into comparisons.

In order: place, type and name of each tensor of the batch and each constant; place and sign of each that is compared by
its sign (a slice, a tensor from a user-written node); place and type of each of which only the type matters; and place
and sign of each that leaves numbers open (see :func:`collect`); where the call draws from a global generator.
"""


@dataclass(slots=True, eq=False)
class Expected:
    """A call that was proven, compiled into comparisons: they all hold only if the signs are the same.

    The type of a result needs no comparison: it was made by a call that was compared.

    Attributes:
        place: How many calls come before it.
        function: The function; one that equals no other after the last call.
        made: The number of results before the call.
        num_unnamed: The number of its arguments if all are unnamed, otherwise -1.
        names: Of named arguments.
        num_values: The number of all arguments.
        results: Place, number and count of writes of each argument that is a result of an earlier call, and not of a
            user-written node.
        fixed: Place, object and type of each that is a parameter or compared by value.
        rest: The remaining arguments.
        real: The place of the only argument that leaves a number open, if that is a float; otherwise -1.
        note: Of the observer of the forward pass, or None.
        known: The function, if the call has a note.
        following: The call after it.
    """

    place: int
    function: Any
    following: Expected = field(init=False)
    made: int = -1
    num_unnamed: int = -1
    names: tuple[str, ...] = ()
    num_values: int = -1
    results: tuple[tuple[int, int, int], ...] = ()
    fixed: tuple[tuple[int, Any, type], ...] = ()
    rest: Rest | None = None
    real: int = -1
    note: Any = None
    known: Any = None


def nothing_at(place: int) -> Expected:
    """Return the expectation of no call, for programs that are new and for the end of those that are known."""
    found = Expected(place, object())
    found.following = found
    return found


NOTHING = nothing_at(-1)


def all_expected(
    entries: Sequence[Entry],
    notes: Sequence[Any],
    draws: Mapping[int, Drawn],
    parameters: Mapping[frozenset[int], Tensor],
) -> list[Expected]:
    """Compile the calls of a program, and its end.

    Args:
        entries: The calls.
        notes: Of the observer, for each call.
        draws: Which of them draw from a global generator.
        parameters: By their names: one is recognised as the object that it was.
    """
    found = [nothing_at(len(entries))]
    for place in reversed(range(len(entries))):
        call = _expected(place, entries[place], notes[place], draws.get(place, Drawn.NOTHING), parameters)
        call.following = found[-1]
        found.append(call)
    return found[::-1]


def _expected(
    place: int, entry: Entry, note: Any, drawn: Drawn, parameters: Mapping[frozenset[int], Tensor]
) -> Expected:
    results: list[tuple[int, int, int]] = []
    fixed: list[tuple[int, Any, type]] = []
    kinds: list[tuple[int, type]] = []
    given: list[tuple[int, Any, Any]] = []
    others: list[tuple[int, Sign]] = []
    for index, sign in enumerate(entry.signs):
        if sign[0] in _EXACT:
            fixed.append((index, sign[1], sign[0]))
        elif sign[0] in _BY_KIND:
            kinds.append((index, sign[0]))
        elif sign[0] is RESULT and sign[3] is None and sign[4] >= 0:
            results.append((index, sign[2], sign[4]))
        elif sign[0] is GIVEN and type(sign[2]) is frozenset and sign[2] in parameters:
            fixed.append((index, parameters[sign[2]], sign[1]))
        elif sign[0] is GIVEN:
            given.append((index, sign[1], sign[2]))
        elif is_plain(sign):
            # the same object again needs no look at its items, unless it is a list
            items = entry.tuples.get(index) or sign[0](item[1] for item in sign[1:])
            fixed.append((index, items, sign[0]))
        else:
            others.append((index, sign))
    numeric = [(index, sign) for index, sign in enumerate(entry.signs) if num_numbers(sign)]
    real = numeric[0][0] if len(numeric) == 1 and numeric[0][1][0] is float else -1
    if real >= 0:
        kinds, numeric = [], []
    rest = (tuple(given), tuple(others), tuple(kinds), tuple(numeric), drawn)
    is_plain_call = not any(rest[:-1]) and drawn is Drawn.NOTHING
    return Expected(
        place, entry.function, made=entry.made, names=entry.names,
        num_unnamed=-1 if entry.names else len(entry.signs), num_values=len(entry.signs),
        results=tuple(results), fixed=tuple(fixed), rest=None if is_plain_call else rest, real=real,
        note=note, known=None if note is None else entry.function,
    )  # fmt: skip


def is_plain(sign: Sign) -> bool:
    """Whether a sign is that of a sequence whose items are all compared by value."""
    return sign[0] in _SEQUENCES and all(item[0] in _EXACT for item in sign[1:])


def is_equal(value: Any, item: Any, kind: type) -> bool:
    """Whether an argument of the same type is equal to an expected one that is another object."""
    if kind in _EXACT:
        return bool(value == item)
    return kind in _SEQUENCES and value == item and [*map(type, value)] == [*map(type, item)]


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was written to; -1 where torch does not count."""
    return -1 if tensor.is_inference() else tensor._version


def writes_since(tensor: Tensor) -> int:
    """Return how often a result was written to after the call that made it; -1 where torch does not count."""
    version = version_of(tensor)
    return version if version < 0 else version - getattr(tensor, VERSION, 0)


def kind_of(entries: Sequence[Entry]) -> tuple[Any, ...]:
    """Return the functions and the shapes of one example, which are the same for batches of other sizes."""
    given = {shape_of_one(sign) for entry in entries for sign in entry.signs}
    return (*[entry.function for entry in entries], frozenset(given))


def num_numbers_in(entries: Sequence[Entry]) -> int:
    """Return the number of open numbers in some calls."""
    return sum(num_numbers(sign) for entry in entries for sign in entry.signs)
