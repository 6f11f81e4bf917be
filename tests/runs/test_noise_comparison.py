"""All kinds of noise at one guarantee: every row keeps it, and the costs are ordered as theory says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from privet.errors import ArgumentError
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch, Poisson
from privet.plan import Plan
from privet.runs.noise_comparison import compare_noise
from privet.vocabulary import Adjacency, Unit

PLAN = Plan(
    sampling=FullBatch(steps=1, expected_batch_size=100),
    clipping=Threshold(norm=1.0),
    noise=Gaussian(),
    delta=1e-5,
    adjacency=Adjacency.ADD_REMOVE,
    unit=Unit.RECORD,
)


def test_every_row_keeps_the_guarantee_and_costs_are_relative_to_the_gaussian() -> None:
    weights = (np.arange(1, 9) ** -1.5).tolist()
    rows = {row.name: row for row in compare_noise(PLAN, num_coordinates=8, epsilon=1.0, weights=weights)}
    for row in rows.values():
        assert row.noise is not None
        assert replace(PLAN, noise=row.noise).guarantee().epsilon <= 1.0
    assert rows["Gaussian"].over_gaussian == 1.0
    costs = {name: row.cost for name, row in rows.items()}
    assert costs["block norm"] < costs["Laplace, by weight"] < costs["Laplace, equal"]  # type: ignore[operator]
    assert costs["block norm"] < costs["Gaussian"], "a single release with unequal weights"  # type: ignore[operator]


def test_many_rounds_leave_nothing_to_gain_over_the_gaussian() -> None:
    plan = replace(PLAN, sampling=Poisson(rate=0.1, steps=100, expected_batch_size=100))
    rows = {row.name: row for row in compare_noise(plan, num_coordinates=50, epsilon=2.0)}
    assert rows["L2-Laplace"].over_gaussian == pytest.approx(1.0, abs=0.01)
    assert (rows["Laplace, equal"].over_gaussian or 0) > 1.2
    assert (rows["block norm"].over_gaussian or 0) > 2
    assert "Laplace, by weight" not in rows


def test_wrong_numbers_of_weights_are_refused() -> None:
    with pytest.raises(ArgumentError, match="weights"):
        compare_noise(PLAN, num_coordinates=3, epsilon=1.0, weights=[1.0])
