"""Samplers of persons, each of whom may have many records.

Two ways to protect a person (Charles et al. 2024, arXiv 2407.07737, call them user-level and example-level sampling):

* :class:`SampledPersons` draws persons. The gradients of up to ``max_records`` records of a person are averaged, and
  the average is clipped: a person adds one clipped gradient, whatever they own, so the charge is that of records.
* :class:`BoundedPersons` keeps up to ``max_records`` records of each person and draws records. The number of a
  person's records in a step is binomial, so one step is a mixture of Gaussians.

Both contain an ordinary sampler, which draws persons or records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import numpy as np
from dp_accounting import GaussianDpEvent

from privet import checks
from privet.errors import PlanError
from privet.mechanism.events import SampledRecordsDpEvent, flatten, fuse_gaussians
from privet.mechanism.owners import Contribution, Owners, PersonPool, Pool, RecordPool
from privet.mechanism.sampling import Sampling
from privet.mechanism.sampling_defaults import NoFixedBatches, counted
from privet.vocabulary import Adjacency

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from numpy.typing import NDArray

T = TypeVar("T")

MOST_RECORDS = 1000
"""The largest number of kept records per person; with more, no useful guarantee is left."""


class _Inner(Generic[T]):
    """An attribute of the sampler inside."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: _OfPersons, owner: type) -> T:
        found: T = getattr(instance.sampling, self._name)
        return found


class _OfPersons(NoFixedBatches):
    """A sampler around another one: its items are persons, or records of persons.

    Records are chosen at random, so no batch comes back as it was.
    """

    sampling: Sampling
    max_records: int

    def _check(self) -> None:
        inner = self.sampling
        if isinstance(inner, type) or not isinstance(inner, Sampling):
            raise PlanError(f"{type(self).__name__} needs a sampler, such as Poisson(...); got {inner!r}.")
        if inner.contribution is not None:
            raise PlanError(f"{type(self).__name__} cannot contain {type(inner).__name__}: one of them is enough.")
        checks.fields(self, checks.count, "max_records")

    num_rounds = _Inner[int]()
    steps_per_round = _Inner[int]()
    steps_per_epoch = _Inner[int]()
    inclusion = _Inner[float]()
    expected_batch_size = _Inner[float]()
    batch_limit = _Inner[int | None]()
    declared_size = _Inner[int | None]()
    has_exact_size = _Inner[bool]()
    has_independent_coins = _Inner[bool]()
    independent_rate = _Inner[float | None]()

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield the items of each batch of one round; their records come from the pool."""
        return self.sampling.round_batches(num_examples, rng)


def _of_persons(words: str) -> str:
    # the inner sampler calls its items records; here they are persons
    return words.replace("record", "person")


@dataclass(frozen=True, kw_only=True)
class SampledPersons(_OfPersons):
    """Draw persons; average the gradients of up to ``max_records`` records of each, and clip the average.

    The records of a person are drawn anew in every step, uniformly and without replacement. However many records a
    person has, they add one clipped gradient, so a step costs as much as one in which a person is a single record.

    Attributes:
        sampling: The sampler of persons. Its declared size and its batch size count persons.
        max_records: The largest number of records of a person in one step. It does not change the guarantee.
    """

    sampling: Sampling
    max_records: int

    def __post_init__(self) -> None:
        self._check()
        batches = self.sampling.fixed_batches
        if batches is not None and batches > 1:
            raise PlanError(
                f"{type(self.sampling).__name__} deals items by their place in the data, and persons have no place: "
                "another first record would move others. Draw persons with Poisson, FixedSize or Shuffle sampling."
            )

    @property
    def contribution(self) -> Contribution:
        return self

    # a person is one item, so two of their uses are as far apart as two of an item's
    @property
    def separation(self) -> int:
        return self.sampling.separation

    @property
    def records_per_item(self) -> int:
        return self.max_records

    items_per_person: ClassVar[int] = 1

    def around(self, sampling: Sampling) -> Sampling:
        return replace(self, sampling=sampling)

    def pool(self, owners: Owners, rng: np.random.Generator) -> Pool:
        return PersonPool(owners=owners, max_records=self.max_records)

    @property
    def assumptions(self) -> tuple[str, ...]:
        taken = f"each step takes at most {counted(self.max_records, 'record')} of a sampled person, chosen at random"
        return (*map(_of_persons, self.sampling.assumptions), f"{taken}, and clips the mean of their gradients as one")

    def described(self, num_steps: int) -> str:
        up_to = f"up to {counted(self.max_records, 'record')} of each, averaged before clipping"
        return f"persons, {up_to}; {_of_persons(self.sampling.described(num_steps))}"

    def refusal(self, adjacency: Adjacency) -> str | None:
        found = self.sampling.refusal(adjacency)
        return None if found is None else _of_persons(found)

    def amplify(self, event: DpEvent) -> DpEvent:
        """Return the charge of the sampler of persons.

        Guarantee: one person is one item of that sampler, with one clipped contribution.
        """
        return self.sampling.amplify(event)


@dataclass(frozen=True, kw_only=True)
class BoundedPersons(_OfPersons):
    """Keep up to ``max_records`` records of each person, and draw records. Charged as a mixture of Gaussians.

    Which records stay is drawn once, at the start of a run, from its secret key. Every kept record joins a step by its
    own coin and is clipped by itself, so a person's share of a step is at most the number of their records in it, in
    units of the bound; that number is binomial.

    Attributes:
        sampling: The sampler of records: ``Poisson`` or ``FullBatch``. Its declared size and its batch size count
            records.
        max_records: The largest number of records of a person in the whole run.
    """

    sampling: Sampling
    max_records: int

    records_per_item: ClassVar[int] = 1
    separation: ClassVar[int] = 1  # the items of a person are in batches that follow each other

    @property
    def items_per_person(self) -> int:
        return self.max_records

    def around(self, sampling: Sampling) -> Sampling:
        return replace(self, sampling=sampling)

    def __post_init__(self) -> None:
        self._check()
        if self.max_records > MOST_RECORDS:
            raise PlanError(
                f"max_records is {self.max_records}, and more than {MOST_RECORDS} records of a person leave no useful "
                "guarantee. Keep fewer, or draw persons: SampledPersons."
            )
        if self.sampling.independent_rate is None or self.sampling.batch_limit is not None:
            raise PlanError(
                f"BoundedPersons is proven for samplers whose records join every step by independent coins. "
                f"{type(self.sampling).__name__} is none. Use Poisson or FullBatch, or draw persons: SampledPersons."
            )

    @property
    def contribution(self) -> Contribution:
        return self

    def pool(self, owners: Owners, rng: np.random.Generator) -> Pool:
        kept, _ = owners.chosen(np.arange(owners.num_persons), self.max_records, rng)
        return RecordPool(kept=np.sort(kept))

    @property
    def _rate(self) -> float:
        rate = self.sampling.independent_rate
        assert rate is not None, "checked when the piece was built"
        return rate

    @property
    def assumptions(self) -> tuple[str, ...]:
        kept = f"at most {counted(self.max_records, 'record')} of each person take part, chosen by a secret key"
        return (*self.sampling.assumptions, kept)

    def described(self, num_steps: int) -> str:
        return f"at most {counted(self.max_records, 'record')} of each person; {self.sampling.described(num_steps)}"

    def refusal(self, adjacency: Adjacency) -> str | None:
        if adjacency is Adjacency.REPLACE_ONE and self._rate < 1 and self.max_records > 1:
            return (
                "a mixture of Gaussians is proven for a person who is added, removed or blanked, not for an exchange. "
                "Use Adjacency.ADD_REMOVE, or draw persons: SampledPersons with Poisson sampling."
            )
        return self.sampling.refusal(adjacency)

    def amplify(self, event: DpEvent) -> DpEvent:
        """Return the mixture of Gaussians of a person with ``max_records`` kept records.

        Guarantee:
            Given the number j of a person's records in a step, their sum has length at most j bounds, in every group
            of coordinates and in every count that is released with the sum. The mixture over j of Gaussians on a line
            at the distances 0, 1, ..., ``max_records`` dominates every such sum (Choquette-Choo, Ganesh, Steinke and
            Thakurta 2023, arXiv 2310.15526), and steps are independent, so they compose.

        Raises:
            PlanError: the noise is not Gaussian.
        """
        if self.max_records == 1:
            return self.sampling.amplify(event)
        parts = list(flatten(event))
        if not parts or not all(isinstance(part, GaussianDpEvent) for part, _ in parts):
            raise PlanError(
                f"BoundedPersons is charged as a mixture of Gaussians, and this noise is charged as "
                f"{type(event).__name__}. Use Gaussian noise, or draw persons: SampledPersons."
            )
        multiplier = fuse_gaussians([part.noise_multiplier / count**0.5 for part, count in parts])
        if self._rate == 1:
            return GaussianDpEvent(multiplier / self.max_records)
        return SampledRecordsDpEvent(
            sampling_probability=self._rate, num_records=self.max_records, noise_multiplier=multiplier
        )
