"""Signs of arguments: a call is the one that was proven if the signs of its arguments are the same.

A sign is a tuple whose first item is a kind that no other sort of argument has, so that a whole number never passes for
the result of that number, a truth value for a whole number, or a list for a tuple. A call that is expected again is
compiled from its signs into a few comparisons, which :meth:`privet.isolation.follow.Follower.before` makes in line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from types import EllipsisType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

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
            is_same = left.number == right or (
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
    """

    function: Function
    names: tuple[str, ...]
    made: int
    signs: tuple[Sign, ...]


Rest = tuple[
    tuple[tuple[int, type], ...],
    tuple[tuple[int, type, Sequence[Any], tuple[type, ...]], ...],
    tuple[tuple[int, Sign], ...],
    tuple[tuple[int, Sign], ...],
]
"""The arguments that few calls have, compiled into comparisons.

In order: place and type of each of which only the type matters; place, type, items and types of items of each sequence
whose items are compared by value; place and sign of each that is compared by its sign (a slice, a tensor from a
user-written node); and place and sign of each that leaves numbers open (see :func:`collect`).
"""

Expected = tuple[
    Function,
    tuple[str, ...],
    int,
    int,
    tuple[tuple[int, Any], ...],
    tuple[tuple[int, int, int], ...],
    tuple[tuple[int, Any, Any], ...],
    Rest | None,
    Any,
]
"""A call that was proven, compiled into comparisons: they all hold exactly if the signs are the same.

In order: the function; the names of named arguments; the number of results before the call; the number of arguments;
place and value of each argument that is compared by value; place, number and count of writes of each that is a result
of an earlier call, and not of a user-written node; place, type and name of each that is a parameter, a tensor of the
batch or a constant; the remaining arguments; and the note of the observer. A bare tuple, because it is taken apart at
every call of every batch. The type of a result needs no comparison: it was made by a call that was compared.
"""


def expected(entry: Entry, note: Any) -> Expected:
    """Compile a call."""
    exact: list[tuple[int, Any]] = []
    results: list[tuple[int, int, int]] = []
    given: list[tuple[int, Any, Any]] = []
    kinds: list[tuple[int, type]] = []
    plain: list[tuple[int, type, Sequence[Any], tuple[type, ...]]] = []
    others: list[tuple[int, Sign]] = []
    for index, sign in enumerate(entry.signs):
        if sign[0] in _EXACT:
            exact.append((index, sign[1]))
        elif sign[0] in _BY_KIND:
            kinds.append((index, sign[0]))
        elif sign[0] is RESULT and sign[3] is None:
            results.append((index, sign[2], sign[4]))
        elif sign[0] is GIVEN:
            given.append((index, sign[1], sign[2]))
        elif sign[0] in _SEQUENCES and all(item[0] in _EXACT for item in sign[1:]):
            items = [item[1] for item in sign[1:]]
            plain.append((index, sign[0], sign[0](items), tuple(map(type, items))))
        else:
            others.append((index, sign))
    numeric = [(index, sign) for index, sign in enumerate(entry.signs) if num_numbers(sign)]
    rest = (tuple(kinds), tuple(plain), tuple(others), tuple(numeric))
    return (
        entry.function, entry.names, entry.made, len(entry.signs), tuple(exact), tuple(results), tuple(given),
        rest if any(rest) else None, note,
    )  # fmt: skip


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


def user_node(losses: Tensor) -> type:
    """Return the kind of node behind the losses if it is the user's own; torch chooses among its own as it likes."""
    node: object = losses.grad_fn
    return type(node) if isinstance(node, BackwardCFunction) else type(None)
