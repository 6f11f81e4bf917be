"""The two ways to protect persons with many records, compared at one guarantee from declared numbers.

Both ways may use the same number of records in a step, which is their cost in time, or all that they have if these are
fewer. Each is calibrated to the same epsilon, and compared by the noise of the mean gradient over the bound of one
clipped gradient, *per signal*:

* If the records of a person agree, the mean over ``G`` of them is as long as each.
* If they differ entirely, the mean is shorter by ``sqrt(G)``, so its bound and with it the noise can be as much lower.

Real data lie between the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from privet import checks
from privet.errors import ArgumentError, PrivetError
from privet.mechanism.persons import BoundedPersons, SampledPersons
from privet.mechanism.sampling import FullBatch, Poisson, Sampling
from privet.plan import Plan
from privet.vocabulary import Unit

_LARGEST_CAP = 16


@dataclass(frozen=True, kw_only=True)
class DeclaredPersons:
    """Declared numbers of a table of persons; public, and rounded.

    Attributes:
        num_persons: Number of persons.
        num_records: Number of records of all persons.
        records_per_step: Records that a step may use on average.
    """

    num_persons: int
    num_records: int
    records_per_step: float

    def __post_init__(self) -> None:
        checks.fields(self, checks.count, "num_persons", "num_records")
        checks.fields(self, checks.positive, "records_per_step")
        if self.num_records < self.num_persons:
            raise ArgumentError(
                f"{self.num_persons} persons cannot have {self.num_records} records: everyone has at least one."
            )

    @property
    def records_each(self) -> float:
        return self.num_records / self.num_persons


@dataclass(frozen=True, kw_only=True)
class PersonWay:
    """One way with one number of records per person, calibrated to the common guarantee.

    Attributes:
        name: The way in words.
        sampling: The sampler.
        max_records: Records per person: in a step, or in the whole run.
        noise_multiplier: The calibrated noise; None if the guarantee cannot be reached.
        noise_if_alike: Noise of a coordinate of the mean gradient over the bound, if a person's records agree.
        noise_if_different: The same if a person's records differ entirely.
    """

    name: str
    sampling: Sampling
    max_records: int
    noise_multiplier: float | None
    noise_if_alike: float | None
    noise_if_different: float | None


def declared_persons(plan: Plan, *, num_records: int, num_persons: int | None) -> DeclaredPersons:
    """Return the declared numbers of a plan about persons.

    Args:
        plan: A plan whose sampling bounds the records of persons.
        num_records: Declared number of all records.
        num_persons: Declared number of persons; None to take the number of the plan's own sampler.

    Raises:
        ArgumentError: the plan is about something else.
    """
    found = plan.sampling.contribution
    if found is None:
        raise ArgumentError(
            "Ways to protect persons are compared for a plan that bounds the records of each: privacy.sampling.kind "
            "= 'sampled_persons' or 'bounded_persons'."
        )
    drawn_from = plan.sampling.expected_batch_size / plan.sampling.inclusion
    if num_persons is None:
        num_persons = max(1, round(drawn_from if found.records_per_item > 1 else drawn_from / found.max_records))
    num_records = max(num_records, num_persons)
    each = min(found.records_per_item, num_records / num_persons)
    return DeclaredPersons(
        num_persons=num_persons, num_records=num_records, records_per_step=plan.sampling.expected_batch_size * each
    )


def compare_persons(plan: Plan, declared: DeclaredPersons, *, epsilon: float) -> list[PersonWay]:
    """Calibrate both ways, for several numbers of records per person, to the same guarantee.

    Args:
        plan: Gives clipping, noise, delta, adjacency and the number of steps.
        declared: Declared numbers of persons and records.
        epsilon: Target of every way.
    """
    largest = int(min(_LARGEST_CAP, declared.records_each))
    caps = [*(2**power for power in range(_LARGEST_CAP) if 2**power < largest), largest]
    plans = [_sampled(plan, declared, cap) for cap in caps] + [_bounded(plan, declared, cap) for cap in caps]
    return [_calibrated(plan, each, epsilon) for each in plans if each is not None]


def _sampled(plan: Plan, declared: DeclaredPersons, cap: int) -> SampledPersons | None:
    drawn = declared.records_per_step / cap
    return None if drawn < 1 else SampledPersons(sampling=_drawn(plan, declared.num_persons, drawn), max_records=cap)


def _bounded(plan: Plan, declared: DeclaredPersons, cap: int) -> BoundedPersons:
    inner = _drawn(plan, declared.num_persons * cap, declared.records_per_step)
    return BoundedPersons(sampling=inner, max_records=cap)


def _drawn(plan: Plan, pool: int, batch_size: float) -> Sampling:
    """Return a sampler of so many items of a pool on average, or of all if there are fewer."""
    if batch_size >= pool:
        return FullBatch(steps=plan.num_steps, expected_batch_size=pool)
    return Poisson.for_dataset(dataset_size=pool, batch_size=batch_size, steps=plan.num_steps)


def _calibrated(plan: Plan, sampling: SampledPersons | BoundedPersons, epsilon: float) -> PersonWay:
    averaged = sampling.records_per_item
    multiplier: float | None
    try:
        made = replace(plan, sampling=sampling, unit=Unit.PERSON).calibrated(epsilon=epsilon)
        multiplier = made.noise.noise_multiplier
    except PrivetError:
        multiplier = None
    noise = None if multiplier is None else multiplier / sampling.expected_batch_size
    return PersonWay(
        name="draw persons" if isinstance(sampling, SampledPersons) else "draw records",
        sampling=sampling,
        max_records=sampling.max_records,
        noise_multiplier=multiplier,
        noise_if_alike=noise,
        noise_if_different=None if noise is None else noise / math.sqrt(averaged),
    )
