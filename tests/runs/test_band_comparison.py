"""When correlated noise pays: short runs at moderate noise; not many epochs at a small epsilon."""

from __future__ import annotations

from dataclasses import replace

import pytest

from privet.errors import PlanError
from privet.mechanism.clipping import Threshold
from privet.mechanism.epoch_sampling import Cyclic, Shuffle
from privet.mechanism.mask_rates import Constant
from privet.mechanism.masking import RandomMask
from privet.mechanism.noise import Gaussian
from privet.mechanism.persons import BoundedPersons, SampledPersons
from privet.mechanism.sampling import FullBatch, Poisson
from privet.plan import Plan
from privet.runs.band_comparison import best_bands, compare_bands
from privet.vocabulary import Adjacency, Unit


def plan_of(epochs: float, steps: int, delta: float = 1e-6) -> Plan:
    return Plan(
        sampling=Poisson(rate=epochs / steps, steps=steps, expected_batch_size=100),
        clipping=Threshold(norm=1.0),
        noise=Gaussian(),
        delta=delta,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )


SHORT = plan_of(epochs=3, steps=1000)


def test_a_short_run_halves_its_error_and_a_long_one_keeps_independent_noise() -> None:
    short = compare_bands(SHORT, epsilon=3.0)
    assert [row.bands for row in short] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert best_bands(short).bands in (32, 64)
    assert best_bands(short).over_independent < 0.5
    long = compare_bands(plan_of(epochs=72, steps=875, delta=1e-5), epsilon=1.0)
    assert best_bands(long).bands == 1
    assert best_bands(short).pays
    assert not best_bands(long).pays


def test_persons_stay_persons_with_every_number_of_bands() -> None:
    drawn = replace(SHORT, sampling=SampledPersons(sampling=SHORT.sampling, max_records=5), unit=Unit.PERSON)
    rows = compare_bands(drawn, epsilon=3.0)
    assert all(row.plan.sampling.contribution is not None for row in rows)
    assert [row.error for row in rows] == [row.error for row in compare_bands(SHORT, epsilon=3.0)]
    bounded = replace(drawn, sampling=BoundedPersons(sampling=SHORT.sampling, max_records=5))
    with pytest.raises(PlanError, match="Draw persons"):
        compare_bands(bounded, epsilon=3.0)


def test_every_row_keeps_the_guarantee_and_independent_noise_is_the_plan_itself() -> None:
    rows = compare_bands(SHORT, epsilon=3.0)
    assert all(row.plan.guarantee().epsilon <= 3.0 for row in rows)
    own = SHORT.calibrated(epsilon=3.0).noise.noise_multiplier
    assert rows[0].plan.noise.noise_multiplier == own
    assert rows[0].over_independent == 1.0
    assert [row.vectors for row in rows[:3]] == [0, 1, 3]


def test_fixed_batches_are_compared_as_they_are_and_use_as_many_bands_as_they_allow() -> None:
    plan = replace(
        SHORT, sampling=Cyclic(batches=20, epochs=2, expected_batch_size=50), adjacency=Adjacency.REPLACE_ONE
    )
    rows = compare_bands(plan, epsilon=3.0)
    assert [row.bands for row in rows] == [1, 2, 4, 8, 16]
    assert best_bands(rows).bands == 16
    assert all(row.plan.sampling == plan.sampling for row in rows)


def test_momentum_is_part_of_the_error() -> None:
    plain, heavy = (compare_bands(SHORT, epsilon=3.0, momentum=momentum)[0].error for momentum in (0.0, 0.9))
    assert heavy == pytest.approx(10 * plain, rel=0.05)


def test_plans_without_a_proof_are_refused() -> None:
    shuffled = Shuffle(batches=10, epochs=2, expected_batch_size=10)
    with pytest.raises(PlanError, match="Shuffle may use a record in two steps"):
        compare_bands(replace(SHORT, sampling=shuffled, adjacency=Adjacency.ZERO_OUT), epsilon=1.0)
    with pytest.raises(PlanError, match="no cost is proven"):
        compare_bands(replace(SHORT, mask=RandomMask(schedule=Constant(value=0.5))), epsilon=1.0)


def test_full_batches_have_no_bands_to_compare() -> None:
    rows = compare_bands(replace(SHORT, sampling=FullBatch(steps=20, expected_batch_size=100)), epsilon=3.0)
    assert [row.bands for row in rows] == [1]
