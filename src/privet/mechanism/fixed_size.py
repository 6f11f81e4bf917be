"""Batches of one size, drawn afresh for every step without replacement."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from dp_accounting import DpEvent, SampledWithoutReplacementDpEvent

from privet import checks
from privet.errors import ArgumentError, DataError
from privet.mechanism.terms import Adjacency

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class FixedSize:
    """Every step draws exactly ``batch_size`` of ``dataset_size`` records, uniformly and without replacement.

    No batch is ever padded or cut, but a record that leaves the batch makes room for another: the charge is that of an
    exchange, and at small noise far above that of Poisson sampling (four times its epsilon at a multiplier of 1).

    Attributes:
        dataset_size: Public number of records, exactly.
        batch_size: Records per step; also the divisor of every noisy sum.
        steps: Number of steps.
    """

    dataset_size: int
    batch_size: int
    steps: int

    def __post_init__(self) -> None:
        """Refuse fractional counts and batches larger than the data."""
        for name in ("dataset_size", "batch_size", "steps"):
            object.__setattr__(self, name, checks.count(name, getattr(self, name)))
        if self.batch_size > self.dataset_size:
            raise ArgumentError(
                f"batch_size ({self.batch_size}) is larger than the public dataset_size ({self.dataset_size})."
            )

    @classmethod
    def for_dataset(cls, *, dataset_size: int, batch_size: int, epochs: int) -> Self:
        """Take as many steps as cover the data ``epochs`` times, rounded up."""
        size, batch = checks.count("dataset_size", dataset_size), checks.count("batch_size", batch_size)
        return cls(dataset_size=size, batch_size=batch, steps=math.ceil(checks.count("epochs", epochs) * size / batch))

    @property
    def num_rounds(self) -> int:
        """One event per step."""
        return self.steps

    @property
    def steps_per_round(self) -> int:
        """One step per event."""
        return 1

    @property
    def expected_batch_size(self) -> float:
        """Every batch has this size."""
        return float(self.batch_size)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Secret uniform draws from a public number of records."""
        draw = f"each step draws {self.batch_size} of exactly {self.dataset_size} records"
        return (f"{draw}, secretly, uniformly and without replacement",)

    def refusal(self, adjacency: Adjacency) -> str | None:
        """Accept only the exchange of one record: every other change moves the sampling of all records."""
        if adjacency is Adjacency.REPLACE_ONE:
            return None
        return (
            "FixedSize draws batches of one size from a public number of records, and its charge is proven for the "
            "exchange of one record. Use Adjacency.REPLACE_ONE, or Poisson sampling, which costs less."
        )

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield one uniformly random index set of exactly ``batch_size``; another number of records is refused."""
        if num_examples != self.dataset_size:
            raise DataError(
                f"FixedSize was planned for exactly {self.dataset_size} records, and the data set has another number. "
                "Under Adjacency.REPLACE_ONE the size is public: plan with the size of the data."
            )
        drawn = rng.choice(num_examples, size=self.batch_size, replace=False, shuffle=False)
        yield np.sort(drawn).astype(np.int64)

    def amplify(self, event: DpEvent) -> DpEvent:
        """Charge the mechanism on a sample without replacement."""
        if self.batch_size == self.dataset_size:
            return event
        return SampledWithoutReplacementDpEvent(
            source_dataset_size=self.dataset_size, sample_size=self.batch_size, event=event
        )
