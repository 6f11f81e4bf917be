"""Poisson sampling from one group of records after the other, for noise that is correlated between steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from dp_accounting import PoissonSampledDpEvent

from privet import checks
from privet.errors import ArgumentError
from privet.mechanism.epoch_sampling import partition_generator
from privet.mechanism.sampling_defaults import RandomRecords, check_numbers, checked_sizes, counted, planned_steps

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class CyclicPoisson(RandomRecords):
    """Records are dealt to groups once; step ``t`` draws from group ``t mod groups``, each record by its own coin.

    A cycle, one step of each group, is a round: a record is in at most one batch of it, with probability ``rate``. Two
    uses of a record are at least ``groups`` steps apart, which is what
    :class:`~privet.noise.BandedGaussian` noise of as many bands needs. With independent noise there is no reason
    to use it; :class:`~privet.sampling.Poisson` costs less.

    Every process deals anew, since no key is stored. A run that is broken off in a cycle has paid for the whole of it;
    a resumed run begins with the next one. Plan one more cycle for each such restart.

    Attributes:
        groups: Number of groups, and of steps in a cycle.
        rate: Probability that a record joins the step of its group.
        cycles: Number of cycles.
        expected_batch_size: Public constant by which the noisy sum is divided; usually rate times the declared size of
            the data set over ``groups``.
    """

    groups: int
    rate: float
    cycles: int
    expected_batch_size: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checks.probability("rate", self.rate, allow_one=True))
        check_numbers(self, "groups", "cycles")

    @classmethod
    def for_dataset(
        cls,
        *,
        dataset_size: int,
        batch_size: float,
        groups: int,
        steps: int | None = None,
        epochs: int | None = None,
        restarts: int = 0,
    ) -> Self:
        """Derive rate and cycles from a *declared, public* data set size; steps are rounded up to whole cycles.

        Args:
            dataset_size: A declared, public number of records.
            batch_size: Mean number of records of a step.
            groups: Number of groups; at most ``dataset_size / batch_size``.
            steps: Number of steps; or give ``epochs``.
            epochs: Number of passes through the data, on average.
            restarts: Cycles beyond those steps, one for each restart that is expected. A run without restarts takes
                them as training steps.
        """
        size, batch = checked_sizes(dataset_size, batch_size)
        number = checks.count("groups", groups)
        if number * batch > size:
            raise ArgumentError(
                f"{number} groups of {size} records cannot give batches of {batch:g} on average. Use at most "
                f"{math.floor(size / batch)} groups, or smaller batches."
            )
        total = planned_steps(dataset_size=size, batch_size=batch, steps=steps, epochs=epochs)
        cycles = -(-total // number) + checks.count("restarts", restarts, minimum=0)
        return cls(groups=number, rate=number * batch / size, cycles=cycles, expected_batch_size=batch)

    @property
    def num_rounds(self) -> int:
        return self.cycles

    @property
    def steps_per_round(self) -> int:
        return self.groups

    @property
    def inclusion(self) -> float:
        return self.rate / self.groups

    separation = steps_per_round

    @property
    def assumptions(self) -> tuple[str, ...]:
        dealt = f"each record is dealt to one of {self.groups} groups, independently and in secret"
        return (
            f"{dealt}, and each step includes every record of one group by a secret coin (cyclic Poisson sampling)",
        )

    def described(self, num_steps: int) -> str:
        steps = counted(num_steps, "step")
        return f"Poisson from {self.groups:,} groups in turn: {steps}, each record of a group with {self.rate:.4g}"

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield one batch of each group.

        Guarantee:
            The group of a record is uniform, independent of all other records and of their number, and the same in
            every round of the generator's key: adding or removing a record moves no other one. Within its group a
            record joins by independent coins, as :class:`~privet.sampling.Poisson` draws them; with one group this is
            that sampler, draw by draw.
        """
        group_of = self._dealt(num_examples, rng)
        for group in range(self.groups):
            members = np.flatnonzero(group_of == group)
            size = rng.binomial(len(members), self.rate)
            drawn = rng.choice(len(members), size=size, replace=False, shuffle=False)
            yield members[np.sort(drawn)].astype(np.int64)

    def _dealt(self, num_examples: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if self.groups == 1:
            return np.zeros(num_examples, dtype=np.int64)
        return partition_generator(rng).integers(self.groups, size=num_examples)

    def amplify(self, event: DpEvent) -> DpEvent:
        """Return the cost of a cycle, in which a record is used at most once, with probability ``rate``.

        Guarantee:
            Exact for any group of the record, so also for a secret one: the record's uses in different cycles are
            decided by independent coins, and noise of at most ``groups`` bands puts them into different rows.
        """
        return event if self.rate == 1 else PoissonSampledDpEvent(self.rate, event)
