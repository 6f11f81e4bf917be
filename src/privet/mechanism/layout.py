"""The position of each parameter in the flat gradient vector, and its clipping group."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from privet.errors import PlanError
from privet.mechanism.grouping import Grouping


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The trainable parameters of one model, in the order of the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    groups: tuple[int, ...]

    @classmethod
    def of(cls, named_shapes: Sequence[tuple[str, Sequence[int]]], grouping: Grouping) -> Layout:
        """Build the layout of parameters in the given order, with the groups of ``grouping``."""
        names = tuple(name for name, _ in named_shapes)
        if not names:
            raise PlanError(
                "The model has no trainable parameter (requires_grad=True), so there is nothing to train. "
                "Unfreeze at least one parameter."
            )
        groups = tuple(grouping.groups_of(names))
        if len(groups) != len(names) or set(groups) != set(range(max(groups) + 1)):
            raise PlanError(
                f"{type(grouping).__name__} numbered {len(names)} parameters as {sorted(set(groups))}; "
                "it must give every parameter a group, and groups must run from 0 without gaps."
            )
        return cls(names=names, shapes=tuple(tuple(shape) for _, shape in named_shapes), groups=groups)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of coordinates of each parameter."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Start of each parameter in the flat vector."""
        return tuple(accumulate(self.sizes[:-1], initial=0))

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """The slice of each parameter in the flat vector."""
        return tuple(slice(start, start + size) for start, size in zip(self.offsets, self.sizes, strict=True))

    @cached_property
    def num_coordinates(self) -> int:
        """Length of the flat vector."""
        return sum(self.sizes)

    @cached_property
    def num_groups(self) -> int:
        return max(self.groups) + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Consecutive coordinates of a vector that a shorter one holds.

    Attributes:
        start, stop: The coordinates in the whole vector.
        place: Where the first of them lies in the shorter one.
    """

    start: int
    stop: int
    place: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, kw_only=True)
class Share:
    """The coordinates of a whole vector that one rank holds, in order and without overlap.

    Attributes:
        total: The length of the whole vector.
        runs: Where they lie; none of them is empty.
    """

    total: int
    runs: tuple[Run, ...]

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return tuple(run.start for run in self.runs)

    def between(self, start: int, stop: int) -> tuple[Run, ...]:
        """Return the runs, or their parts, within some coordinates of the whole vector, counted from ``start``."""
        first = max(0, bisect_right(self._starts, start) - 1)
        found = []
        for run in self.runs[first : bisect_right(self._starts, stop - 1)]:
            low, high = max(run.start, start), min(run.stop, stop)
            if low < high:
                found.append(Run(start=low - start, stop=high - start, place=run.place + low - run.start))
        return tuple(found)
