"""Bounds of a threshold: one number to share, or one per group."""

from __future__ import annotations

import math

import pytest
import torch

from privet.errors import ArgumentError, PlanError
from privet.mechanism.clipping import Threshold


def test_groups_share_one_number_evenly_in_its_square() -> None:
    assert Threshold(norm=2.0).for_groups(4).sensitivity.bounds == (1.0, 1.0, 1.0, 1.0)


def test_one_bound_per_group_is_kept_as_given() -> None:
    sensitivity = Threshold(norm=(3.0, 4.0)).for_groups(2).sensitivity
    assert sensitivity.bounds == (3.0, 4.0)
    assert sensitivity.total == 5.0


def test_the_number_of_bounds_must_be_the_number_of_groups() -> None:
    with pytest.raises(PlanError, match="2 bounds but the grouping makes 3 groups"):
        Threshold(norm=(3.0, 4.0)).for_groups(3)


def test_lists_mean_the_same_as_tuples() -> None:
    assert Threshold(norm=[1, 2]) == Threshold(norm=(1.0, 2.0))  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", [0, -1, math.inf, math.nan, "1", True, None, (1.0, 0.0), ("1",)], ids=str)
def test_bounds_that_are_no_positive_numbers_are_refused(norm: object) -> None:
    with pytest.raises(ArgumentError, match="norm"):
        Threshold(norm=norm)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
@pytest.mark.parametrize("bound", [1e-300, 1e-46, 1.0, 3e38, 1e300])
@pytest.mark.parametrize("num_groups", [1, 2])
def test_a_norm_that_is_not_finite_gets_factor_zero_under_every_bound(
    num_groups: int, bound: float, dtype: torch.dtype
) -> None:
    rule = Threshold(norm=bound if num_groups == 1 else (bound, bound / 2)).for_groups(num_groups)
    norms = torch.tensor([math.inf, math.nan, 1.0, 0.0], dtype=dtype).unsqueeze(1).repeat(1, num_groups)
    factors = rule.factors(norms)
    assert (factors[:2] == 0).all()
    assert ((factors >= 0) & (factors <= 1)).all()
