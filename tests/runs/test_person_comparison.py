"""Both ways to protect persons, compared from declared numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privet.errors import ArgumentError
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.persons import BoundedPersons, SampledPersons
from privet.mechanism.sampling import FullBatch, Poisson
from privet.plan import Plan
from privet.runs.person_comparison import DeclaredPersons, compare_persons, declared_persons
from privet.vocabulary import Adjacency, Unit

PLAN = Plan(
    sampling=SampledPersons(sampling=Poisson.for_dataset(dataset_size=500, batch_size=25, steps=50), max_records=4),
    clipping=Threshold(norm=1.0),
    noise=Gaussian(noise_multiplier=1.0),
    delta=1e-5,
    adjacency=Adjacency.ADD_REMOVE,
    unit=Unit.PERSON,
)


def test_every_way_uses_the_same_records_per_step_at_the_same_guarantee() -> None:
    declared = declared_persons(PLAN, num_records=2000, num_persons=None)
    assert declared == DeclaredPersons(num_persons=500, num_records=2000, records_per_step=100)
    ways = compare_persons(PLAN, declared, epsilon=3.0)
    assert [(way.name, way.max_records) for way in ways] == [
        (name, cap) for name in ("draw persons", "draw records") for cap in (1, 2, 4)
    ]
    for way in ways:
        assert way.sampling.expected_batch_size * way.sampling.contribution.records_per_item == 100  # type: ignore[union-attr]
        assert way.noise_multiplier is not None
        assert way.noise_if_alike is not None
        assert way.noise_if_different is not None


def test_ways_that_have_fewer_records_than_a_step_may_use_take_all_of_them() -> None:
    """What ``privet train --person`` writes for a small table: every person in every step."""
    everybody = replace(
        PLAN, sampling=SampledPersons(sampling=FullBatch(steps=9, expected_batch_size=200), max_records=8)
    )
    declared = declared_persons(everybody, num_records=600, num_persons=200)
    assert declared.records_per_step == 600
    ways = compare_persons(everybody, declared, epsilon=3.0)
    assert [(way.name, way.max_records, way.sampling.expected_batch_size) for way in ways] == [
        *(("draw persons", cap, 200) for cap in (1, 2, 3)),
        *(("draw records", cap, 200 * cap) for cap in (1, 2, 3)),
    ]
    assert all(way.sampling.inclusion == 1 and way.noise_if_alike is not None for way in ways)


def test_drawing_persons_pays_where_records_differ_and_one_record_each_is_the_same_both_ways() -> None:
    ways = compare_persons(PLAN, DeclaredPersons(num_persons=500, num_records=2000, records_per_step=100), epsilon=3.0)
    at = {(way.name, way.max_records): way for way in ways}
    persons, records = at["draw persons", 4], at["draw records", 4]
    assert (persons.noise_if_different or 9) < (records.noise_if_different or 0)
    assert (persons.noise_if_alike or 0) > (records.noise_if_alike or 9)
    assert at["draw persons", 1].noise_multiplier == at["draw records", 1].noise_multiplier


def test_numbers_of_bounded_persons_come_from_the_plan() -> None:
    inner = Poisson.for_dataset(dataset_size=2000, batch_size=100, steps=50)
    plan = replace(PLAN, sampling=BoundedPersons(sampling=inner, max_records=4))
    found = declared_persons(plan, num_records=2000, num_persons=None)
    assert found == DeclaredPersons(num_persons=500, num_records=2000, records_per_step=100)


def test_plans_about_records_and_impossible_numbers_are_refused() -> None:
    inner = Poisson.for_dataset(dataset_size=500, batch_size=25, steps=50)
    plain = replace(PLAN, sampling=inner, unit=Unit.RECORD)
    with pytest.raises(ArgumentError, match="sampled_persons"):
        declared_persons(plain, num_records=10, num_persons=5)
    with pytest.raises(ArgumentError, match="at least one"):
        DeclaredPersons(num_persons=5, num_records=3, records_per_step=1)
