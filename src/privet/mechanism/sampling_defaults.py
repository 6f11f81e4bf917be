"""What samplers share: defaults that claim nothing, the facts of random batches, and checks of their numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from privet import checks
from privet.errors import ArgumentError
from privet.vocabulary import Adjacency

if TYPE_CHECKING:
    from privet.mechanism.owners import Contribution


class NoFixedBatches:
    """Batches that are drawn anew: none comes back, and a record may be in any two of them."""

    @property
    def fixed_batches(self) -> int | None:
        return None

    @property
    def same_batches_after_restart(self) -> bool:
        return False

    @property
    def separation(self) -> int:
        return 1


class SamplingDefaults(NoFixedBatches):
    """Defaults that claim nothing: no limit, no declared size, no independent records, no persons, no fixed batches."""

    @property
    def batch_limit(self) -> int | None:
        return None

    declared_size = batch_limit  # neither is stated

    has_exact_size: ClassVar[bool] = False
    has_independent_coins: ClassVar[bool] = False

    @property
    def independent_rate(self) -> float | None:
        return None

    @property
    def contribution(self) -> Contribution | None:
        return None


class RandomRecords(SamplingDefaults, ABC):
    """A sampler of random records, for every adjacency: an epoch is as many steps as use a record once on average."""

    @property
    @abstractmethod
    def inclusion(self) -> float: ...

    @property
    def steps_per_epoch(self) -> int:
        return max(1, round(1 / self.inclusion))

    def refusal(self, adjacency: Adjacency) -> str | None:
        return None


class RandomBatches(RandomRecords, ABC):
    """A sampler that draws every step independently, with one event per step."""

    steps: int
    steps_per_round: ClassVar[int] = 1

    @property
    def num_rounds(self) -> int:
        return self.steps


class DeclaredBatches(RandomBatches):
    """Random batches of a data set whose size is a public field."""

    dataset_size: int

    @property
    def declared_size(self) -> int | None:
        return self.dataset_size


def counted(number: int, word: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def check_numbers(piece: object, *counts: str) -> None:
    """Check the named counts of a frozen piece and its field ``expected_batch_size``, and store plain numbers."""
    for name in counts:
        object.__setattr__(piece, name, checks.count(name, getattr(piece, name)))
    if "expected_batch_size" in vars(piece):
        size = checks.positive("expected_batch_size", vars(piece)["expected_batch_size"])
        object.__setattr__(piece, "expected_batch_size", size)


def checked_sizes(dataset_size: int, batch_size: float) -> tuple[int, float]:
    """Return a declared data set size and an average batch size that does not exceed it."""
    dataset_size = checks.count("dataset_size", dataset_size)
    batch_size = checks.positive("batch_size", batch_size)
    if batch_size > dataset_size:
        raise ArgumentError(f"batch_size ({batch_size:g}) is larger than the declared dataset_size ({dataset_size}).")
    return dataset_size, batch_size


def planned_steps(*, dataset_size: int, batch_size: float, steps: int | None, epochs: int | None) -> int:
    """Return the number of steps of a run; epochs are rounded up to whole steps."""
    if (steps is None) == (epochs is None):
        raise ArgumentError(f"Give exactly one of steps and epochs, got steps={steps!r} and epochs={epochs!r}.")
    if steps is not None:
        return checks.count("steps", steps)
    return math.ceil(checks.count("epochs", epochs) * dataset_size / batch_size)
