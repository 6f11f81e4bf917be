"""The place of a batch's examples in a tensor, and the cause why a tensor has none.

A tensor that descends from examples is in one of four states. Its examples have a *place*: one axis tells them apart,
alone or folded together with other lengths. Or its *rows travel*: each belongs to one example, in an order that the
examples give. Or something *mixed* them. Or an operation *has no rule*, so that only experiments can tell. Everything
else is public.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Consecutive examples along one axis, of length ``before * num * after``: the examples vary in between.

    A tensor that belongs to one example alone needs no axis (``num == 1``, axis 0).

    Attributes:
        axis: The axis that tells the examples apart.
        before: The number of entries that vary more slowly than the examples on that axis.
        after: The number of entries that vary faster.
        first: The first example.
        num: How many examples there are.
    """

    axis: int
    before: int
    after: int
    first: int
    num: int

    @property
    def length(self) -> int:
        """The length of the axis."""
        return self.before * self.num * self.after

    @property
    def is_single(self) -> bool:
        """Whether the whole tensor belongs to one example."""
        return self.num == 1

    def at(self, axis: int) -> Place:
        """Return the same place on another axis."""
        return self if self.is_single or axis == self.axis else replace(self, axis=axis)

    def fits(self, shape: Shape) -> bool:
        """Whether a tensor of this shape has such an axis."""
        return self.is_single or (0 <= self.axis < len(shape) and shape[self.axis] == self.length)

    def same_examples(self, other: Place) -> bool:
        """Whether both hold the same examples."""
        return self.first == other.first and self.num == other.num


def single(example: int) -> Place:
    """Return the place of a tensor that belongs to one example alone."""
    return Place(0, 1, 1, example, 1)


class Fault(Enum):
    """Why the place of the examples is not known."""

    MIXES = "mixes"
    NO_RULE = "no rule"


@dataclass(frozen=True, slots=True)
class Cause:
    """The first operation after which the examples have no place.

    Attributes:
        fault: Whether it mixes them, or has no rule.
        operation: Its name.
        reason: The reason, in words about the operation.
        line: The line of the user's program that asked for it.
    """

    fault: Fault
    operation: str
    reason: str
    line: str = ""

    def __str__(self) -> str:
        """Return one clause for messages."""
        where = f" at {self.line}" if self.line else ""
        return f"{self.operation}{where} ({self.reason})"


class Role(Enum):
    """What the numbers of rows that travel say."""

    CONTENT = "each row is a row of one example"
    SORTED = "the keys of the rows, smallest first"
    NUMBERS = "where each row came from"
    COLUMNS = "where each row came from, a column for each axis"
    RANKS = "where each row went"
    COUNTS = "how many rows have each key"
    ENDS = "how many rows have each key or a smaller one"


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the examples along one axis, in an order or a choice that the examples' own numbers give.

    Each row still belongs to one example, so what is computed from a row alone keeps the examples apart. Where a row
    lies says something about others: nothing may be computed from that. Rows come back to their examples by the numbers
    that they were taken by.

    Attributes:
        axis: Along which they lie; -1 for a single row without an axis.
        order: Tells orders apart: rows of one order lie in step.
        origin: The place, on an axis of its own, of the rows that they were taken from.
        role: What the numbers say.
        key: Which tensor gave the order.
        is_all: Whether there is a row for each element of the key.
        column: Of :attr:`Role.COLUMNS`, which column numbers the rows.
    """

    axis: int
    order: int
    origin: Place
    role: Role
    key: int = -1
    is_all: bool = False
    column: int = -1

    def like(self, other: object) -> bool:
        """Whether these are such rows of another number of examples."""
        return (
            isinstance(other, Rows)
            and replace(other, order=self.order, key=self.key, origin=replace(other.origin, num=self.origin.num))
            == self
        )


Verdict = Place | Rows | Cause | None
"""The verdict on a tensor: the place of its examples, or why they have none; None for a public tensor."""


class Spec:
    """A tensor as the rules see it: its shape and the verdict on it, without its numbers."""

    __slots__ = (
        "below",
        "dtype",
        "has_own_length",
        "iota",
        "memory",
        "offset",
        "serial",
        "shape",
        "storage",
        "strides",
        "token",
        "verdict",
        "was_written",
    )

    def __init__(
        self,
        shape: Shape,
        *,
        dtype: Any = None,
        verdict: Verdict = None,
        iota: tuple[int, int] | None = None,
        strides: Shape = (),
        offset: int = 0,
        serial: int = -1,
    ) -> None:
        """Describe a tensor; ``iota`` is (axis, step) if its numbers count 0, step, 2 step... along an axis."""
        self.shape, self.dtype, self.verdict, self.iota = shape, dtype, verdict, iota
        self.strides, self.offset, self.serial = strides, offset, serial
        self.token: object = None
        self.has_own_length = False
        self.below: int | None = None  # if its numbers are whole, not negative and below this
        self.was_written = False  # whether its memory was written to after it was made, perhaps through a view
        self.memory: int = -1  # which piece of memory it lies in
        self.storage: int = -1  # how many writes into memory were known when it was last looked at

    @property
    def place(self) -> Place | None:
        """Where its examples lie, if they have a place."""
        return self.verdict if isinstance(self.verdict, Place) else None

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.shape)


class Mixes(Exception):
    """An operation lets examples meet."""


class NoRule(Exception):
    """No rule says where the examples lie after an operation."""


def regrouped(place: Place, old: Shape, new: Shape) -> Place:
    """Return the place after a view of another shape.

    Raises:
        Mixes: if the new shape cuts through the examples.
    """
    if place.is_single:
        return place
    minor = place.after * math.prod(old[place.axis + 1 :])
    if minor == 0:
        raise NoRule("the tensor is empty")
    inner = 1
    for axis in range(len(new) - 1, -1, -1):
        size = new[axis]
        if size and inner * size > minor:
            block = place.num * (minor // inner)
            if minor % inner or size % block:
                break
            return Place(axis, size // block, minor // inner, place.first, place.num)
        inner *= size
    raise Mixes("a view cuts through the examples")


def aligned(place: Place, ndim: int, out_ndim: int) -> Place:
    """Return the place after broadcasting to more axes, which come first."""
    if ndim > out_ndim and not place.is_single:
        raise NoRule("its result has fewer axes than its input")
    return place.at(place.axis + out_ndim - ndim)


def met(places: Sequence[Place]) -> Place:
    """Return the place that all of these are.

    Raises:
        Mixes: if two of them differ.
        NoRule: if there is none.
    """
    if not places:
        raise NoRule("another argument depends on the examples")
    first = places[0]
    for other in places[1:]:
        if other != first:
            if not first.same_examples(other):
                raise Mixes("an example meets other examples")
            raise Mixes("two tensors hold their examples at different places, so that every example meets every other")
    return first


def storage_stride(place: Place, spec: Spec) -> int:
    """Return by how many elements two neighbouring examples lie apart in memory."""
    return spec.strides[place.axis] * place.after


def from_storage(stride: int, num: int, spec: Spec) -> Place:
    """Return where ``num`` examples lie in a view of memory in which every ``stride`` elements another one begins.

    Raises:
        NoRule: if the view is not made of whole examples in order.
    """
    found: Place | None = None
    inner = spec.offset % stride
    for axis, (size, step) in enumerate(zip(spec.shape, spec.strides, strict=True)):
        if size == 1 or step == 0:
            continue
        if step % (stride * num) == 0:
            continue
        if step < stride and (size - 1) * step + inner < stride:
            inner += (size - 1) * step
            continue
        after = stride // step if step <= stride else 0
        if found is None and after and stride % step == 0 and size % (after * num) == 0:
            inner += (after - 1) * step
            found = Place(axis, size // (after * num), after, 0, num)
            continue
        raise NoRule("memory is read across examples")
    if found is None or inner >= stride or (spec.offset // stride) % num:
        raise NoRule("memory is read across examples")
    return found
