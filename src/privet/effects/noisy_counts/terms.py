"""The public constants of a private evaluation, and the vector of counts and sums that they define."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.errors import ArgumentError
from privet.records import Record

Array = NDArray[np.float64]

# Ends of the bins of a probability: narrow where rare classes have their scores, and 0.5 is one of them.
SCORE_EDGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
# With more classes than this, areas under curves of single classes are left out: their noise would be all there is.
MOST_CURVES = 10
# Second moments serve intervals only, so they get less of the norm than the figures themselves.
MOMENT_SCALE = 0.5
# The block of the importance of columns.
IMPORTANCE = "importance"


@dataclass(frozen=True, kw_only=True)
class Groups(Record):
    """The declared categories of a column, whose records are compared."""

    WHAT: ClassVar[str] = "groups of a private evaluation"

    column: str
    categories: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Numbers of the released vector that belong together.

    Attributes:
        name: What they count.
        size: How many there are.
        norm: The largest l2 norm that one unit adds to them.
        share: Their share of the budget: shares of all blocks sum up to 1.
    """

    name: str
    size: int
    norm: float
    share: float

    @property
    def weight(self) -> float:
        """The weight of the block in the joint norm, in which one unit adds at most 1 to the whole vector."""
        return math.sqrt(self.share) / self.norm

    def std(self, noise_multiplier: float) -> float:
        """Return the standard deviation of the noise on each number."""
        return noise_multiplier / self.weight


@dataclass(frozen=True, kw_only=True)
class EvaluationTerms(Record):
    """The figures that a private evaluation measures. All are declared, and none is read off the records.

    Attributes:
        class_names: The classes; empty where the model predicts a number.
        groups: Columns whose groups are compared.
        loss_clip: The largest log loss of a record that counts; a larger one counts as this.
        low: Lower end of the declared range of a target that is a number.
        high: Upper end of that range.
        error_clip: The largest error of a predicted number that counts; a larger one counts as this.
        records_per_person: The most records of a person, of which the mean counts; None where records are protected.
        importance: Columns of which the importance is measured; None or empty for none.
    """

    WHAT: ClassVar[str] = "the terms of a private evaluation"

    class_names: tuple[str, ...] = ()
    groups: tuple[Groups, ...] = ()
    loss_clip: float = 5.0
    low: float = 0.0
    high: float = 1.0
    error_clip: float = 0.5
    records_per_person: int | None = None
    importance: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        checks.fields(self, checks.positive, "loss_clip")
        checks.fields(self, checks.positive, "error_clip")
        if len(self.class_names) == 1:
            raise ArgumentError("A classifier has two classes or more.")
        if not self.low < self.high:
            raise ArgumentError(f"low must be below high, got {self.low!r} and {self.high!r}.")

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def curves(self) -> tuple[int, ...]:
        """The classes whose scores are counted: the second of two, or each of a few."""
        if self.num_classes == 2:
            return (1,)
        return tuple(range(self.num_classes)) if self.num_classes <= MOST_CURVES else ()

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The parts of the vector, in their order."""
        found = self._class_blocks() if self.class_names else self._number_blocks()
        norm = 1.0 if self.class_names else math.sqrt(2 + MOMENT_SCALE**2)
        width = 2 if self.class_names else 3
        for groups in self.groups:
            size = width * len(groups.categories)
            found.append((f"group {groups.column}", size, norm, 0.2 / len(self.groups)))
        if self.importance:
            # of every column a drop from -1 to 1 and its square: one unit may move all of them at once
            found.append(
                (IMPORTANCE, 2 * len(self.importance), math.sqrt(len(self.importance) * (1 + MOMENT_SCALE**2)), 0.3)
            )
        total = sum(share for *_, share in found)
        return tuple(Block(name=name, size=size, norm=norm, share=share / total) for name, size, norm, share in found)

    def _class_blocks(self) -> list[tuple[str, int, float, float]]:
        bins = len(SCORE_EDGES) - 1
        found = [
            ("confusion", self.num_classes**2, 1.0, 0.4),
            # log loss and Brier score with their squares, each at most 1
            ("losses", 4, math.sqrt(2 * (1 + MOMENT_SCALE**2)), 0.25),
        ]
        if self.curves:
            found.append(("scores", len(self.curves) * 2 * bins, math.sqrt(len(self.curves)), 0.2))
        if self.num_classes > 2:
            found.append(("confidence", 2 * bins, 1.0, 0.1))
        return found

    def _number_blocks(self) -> list[tuple[str, int, float, float]]:
        # count, error, its square, target, its square; then moments: error^4, target^3 and ^4, two mixed ones
        return [("moments", 10, math.sqrt(5 + 5 * MOMENT_SCALE**2), 0.8)]

    @property
    def size(self) -> int:
        """How many numbers are released."""
        return sum(block.size for block in self.blocks)

    def slices(self) -> dict[str, slice]:
        """Return where the numbers of each block stand."""
        found, start = {}, 0
        for block in self.blocks:
            found[block.name] = slice(start, start + block.size)
            start += block.size
        return found

    def weights(self) -> Array:
        """Return the weight of every number in the joint norm."""
        return np.concatenate([np.full(block.size, block.weight) for block in self.blocks])

    def stds(self, noise_multiplier: float) -> dict[str, float]:
        """Return the standard deviation of the noise of each block."""
        return {block.name: block.std(noise_multiplier) for block in self.blocks}
