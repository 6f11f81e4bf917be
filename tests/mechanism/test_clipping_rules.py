"""The clipping rules beside the threshold: their formulas, and the numbers they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from privet.errors import ArgumentError, PlanError
from privet.mechanism.clipping import Automatic, KeepOrDrop, PerSampleAdaptive, Threshold

NORMS = torch.tensor([[0.0], [0.5], [4.0], [4.5], [1e6]], dtype=torch.float64)


def test_keep_or_drop_scales_all_by_one_number_and_drops_the_long() -> None:
    factors = KeepOrDrop(norm=1.0, cutoff=4.0).for_groups(1).factors(NORMS)
    assert factors.flatten().tolist() == [0.25, 0.25, 0.25, 0.0, 0.0]


def test_automatic_divides_by_the_length_and_a_little() -> None:
    factors = Automatic(norm=2.0, stability=0.5).for_groups(1).factors(NORMS)
    assert torch.allclose(factors, 2.0 / (NORMS + 0.5))


def test_per_sample_adaptive_follows_its_formula_and_holds_short_gradients_back() -> None:
    rule = PerSampleAdaptive(norm=2.0, weakness=0.1).for_groups(1)
    assert torch.allclose(rule.factors(NORMS), 2.0 / (NORMS + 0.1 / (NORMS + 0.1)))
    tiny = torch.tensor([[1e-6]], dtype=torch.float64)
    assert float(rule.factors(tiny)) < 2.01
    assert float(Automatic(norm=2.0, stability=0.01).for_groups(1).factors(tiny)) > 199


@pytest.mark.parametrize("num_groups", [1, 4])
def test_keep_or_drop_is_a_threshold_at_the_cutoff_scaled_by_bound_over_cutoff_when_nothing_is_dropped(
    num_groups: int,
) -> None:
    norms = torch.rand(100, num_groups, dtype=torch.float64) * 7.0
    bound, cutoff = 1.5, 7.0
    dropping = KeepOrDrop(norm=bound, cutoff=cutoff).for_groups(num_groups)
    local = Threshold(norm=(cutoff,) * num_groups).for_groups(num_groups)
    scale = bound / math.sqrt(num_groups) / cutoff
    assert torch.allclose(dropping.factors(norms), scale * local.factors(norms), rtol=1e-14)
    assert [scale * bound for bound in local.sensitivity.bounds] == pytest.approx(list(dropping.sensitivity.bounds))


def test_one_cutoff_holds_for_every_group_and_a_bound_is_shared() -> None:
    rule = KeepOrDrop(norm=2.0, cutoff=3.0).for_groups(4)
    assert rule.sensitivity.bounds == (1.0, 1.0, 1.0, 1.0)
    assert rule.piece.cutoffs(4) == (3.0, 3.0, 3.0, 3.0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: KeepOrDrop(norm=2.0, cutoff=1.0), "cutoff of 1 below its bound of 2"),
        (lambda: KeepOrDrop(norm=(1.0, 2.0), cutoff=1.5).for_groups(2), "cutoff of 1.5 below its bound of 2"),
        (lambda: KeepOrDrop(norm=1.0, cutoff=(3.0, 4.0)).for_groups(3), "2 cutoffs but the grouping makes 3 groups"),
        (lambda: KeepOrDrop(norm=(1.0, 1.0), cutoff=3.0).for_groups(3), r"KeepOrDrop\(norm=...\) gives 2 bounds"),
        (lambda: Automatic(norm=(1.0, 1.0)).for_groups(3), r"Automatic\(norm=...\) gives 2 bounds"),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        build()


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "1", True, None, (1.0, 0.0)], ids=str)
def test_what_is_no_positive_number_is_refused(value: object) -> None:
    for build in (
        lambda: KeepOrDrop(norm=value, cutoff=9.0),  # type: ignore[arg-type]
        lambda: KeepOrDrop(norm=1.0, cutoff=value),  # type: ignore[arg-type]
        lambda: Automatic(norm=value),  # type: ignore[arg-type]
        lambda: Automatic(stability=value),  # type: ignore[arg-type]
        lambda: PerSampleAdaptive(norm=value),  # type: ignore[arg-type]
        lambda: PerSampleAdaptive(weakness=value),  # type: ignore[arg-type]
    ):
        with pytest.raises(ArgumentError):
            build()


@pytest.mark.parametrize("extreme", [1e-300, 1e-46, 1e39, 1e300])
def test_constants_beyond_single_precision_give_finite_factors_within_the_bound(extreme: float) -> None:
    norms = torch.tensor([[0.0], [1e-45], [1e-30], [1.0], [1e30]])
    for rule in (
        Automatic(norm=1.0, stability=extreme).for_groups(1),
        Automatic(norm=extreme, stability=0.01).for_groups(1),
        PerSampleAdaptive(norm=1.0, weakness=extreme).for_groups(1),
        PerSampleAdaptive(norm=extreme, weakness=0.1).for_groups(1),
        KeepOrDrop(norm=min(extreme, 1.0), cutoff=max(extreme, 1.0)).for_groups(1),
    ):
        factors = rule.factors(norms)
        assert bool(factors.isfinite().all())
        grain = norms.double() * 1.4e-45  # a factor below the normal range is a multiple of the smallest number
        assert bool((factors.double() * norms.double() <= rule.sensitivity.bounds[0] * (1 + 1e-6) + grain).all())
