"""Laws of every clipping rule: nothing longer than its bound comes out, whatever goes in."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.mechanism.adaptive_clipping import AdaptiveQuantile
from privet.mechanism.clipping import Clipping, ClippingRule, Threshold
from privet.mechanism.clipping_rules import Automatic, KeepOrDrop, PerSampleAdaptive
from privet.mechanism.codec import CLIPPING, decode_piece, encode_piece
from privet.mechanism.scheduled_clipping import Scheduled

MEMBERS: list[tuple[Clipping, int]] = [
    (Threshold(norm=1.0), 1),
    (Threshold(norm=0.1), 3),
    (Threshold(norm=3e4), 7),
    (Threshold(norm=(0.5,)), 1),
    (Threshold(norm=(0.3, 4.0, 120.0)), 3),
    (KeepOrDrop(norm=1.0, cutoff=210.0), 1),
    (KeepOrDrop(norm=0.1, cutoff=0.1), 3),
    (KeepOrDrop(norm=(1.5, 0.3), cutoff=75.0), 2),
    (KeepOrDrop(norm=1e-3, cutoff=(2.0, 1e30)), 2),
    (Automatic(), 1),
    (Automatic(norm=0.1, stability=1e-6), 3),
    (Automatic(norm=(0.3, 4.0), stability=10.0), 2),
    (PerSampleAdaptive(), 1),
    (PerSampleAdaptive(norm=(0.3, 40.0), weakness=1e-3), 2),
    (AdaptiveQuantile(norm=0.5, count_noise_std=3.0), 2),
    (Scheduled(parts=(Threshold(norm=1.0), KeepOrDrop(norm=1.0, cutoff=9.0)), switches=(0.95,)), 2),
]
each_member = pytest.mark.parametrize(("piece", "num_groups"), MEMBERS, ids=str)
DTYPES = (torch.float32, torch.float64)

# lengths of gradients, the hostile ones among them: zero, denormal, near overflow, infinite, not a number
lengths = st.one_of(
    st.floats(0, float(torch.finfo(torch.float32).max), width=32),
    st.sampled_from([0.0, 1e-45, 1e-38, 1e-20, 1.0, 1e30, 1e38, 3.4e38, math.inf, math.nan]),
)


def norms_for(num_groups: int) -> st.SearchStrategy[list[list[float]]]:
    return st.lists(st.lists(lengths, min_size=num_groups, max_size=num_groups), min_size=1, max_size=5)


def rule_of(piece: Clipping, num_groups: int) -> ClippingRule:
    rule = piece.for_groups(num_groups)
    assert isinstance(rule, ClippingRule)
    return rule


@each_member
def test_is_a_clipping_piece_by_protocol_and_survives_json(piece: Clipping, num_groups: int) -> None:
    assert isinstance(piece, Clipping)
    written = json.loads(json.dumps(encode_piece(piece, CLIPPING, where="clipping")))
    assert decode_piece(written, CLIPPING, where="clipping") == piece


@each_member
@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_factors_are_finite_and_keep_every_group_within_its_bound(
    piece: Clipping, num_groups: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    norms = torch.tensor(data.draw(norms_for(num_groups)), dtype=dtype)
    rule = rule_of(piece, num_groups)
    factors = rule.factors(norms)
    assert factors.shape == norms.shape
    assert bool(factors.isfinite().all())
    assert bool((factors >= 0).all())
    known = norms.isfinite()
    kept = (factors.double() * norms.double())[known]
    bounds = torch.tensor(rule.sensitivity.bounds, dtype=torch.float64).expand_as(norms)[known]
    # a factor below the normal range of its type is a multiple of the smallest number there is
    grain = norms.double()[known] * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    assert bool((kept <= bounds * (1 + 1e-6) + grain).all())
    assert bool((factors[~known] == 0).all())


@each_member
@given(data=st.data())
@settings(deadline=None, max_examples=15)
def test_a_factor_depends_on_its_own_row_alone(piece: Clipping, num_groups: int, data: st.DataObject) -> None:
    norms = torch.tensor(data.draw(norms_for(num_groups)))
    rule = rule_of(piece, num_groups)
    together = rule.factors(norms)
    for index in range(len(norms)):
        assert torch.equal(together[index : index + 1], rule.factors(norms[index : index + 1]))
    order = data.draw(st.permutations(range(len(norms))))
    assert torch.equal(together[list(order)], rule.factors(norms[list(order)]))


@each_member
def test_saturating_every_group_reaches_the_declared_total_and_no_more(piece: Clipping, num_groups: int) -> None:
    rule = rule_of(piece, num_groups)
    cutoffs = getattr(rule, "cutoffs", (1e15,) * num_groups)  # the longest gradient that still counts
    norms = torch.tensor([cutoffs], dtype=torch.float64)
    kept = (rule.factors(norms) * norms).norm()
    assert float(kept) == pytest.approx(rule.sensitivity.total, rel=1e-12)
    assert len(rule.sensitivity.bounds) == num_groups
    assert rule.sensitivity.norm is piece.norm_kind


@each_member
def test_an_empty_batch_has_no_factors(piece: Clipping, num_groups: int) -> None:
    assert rule_of(piece, num_groups).factors(torch.zeros(0, num_groups)).shape == (0, num_groups)


@pytest.mark.parametrize("num_groups", [1, 2, 5, 64])
@pytest.mark.parametrize("bound", [1e-3, 1.0, 77.0])
def test_one_number_bounds_the_whole_gradient_whatever_the_number_of_groups(bound: float, num_groups: int) -> None:
    assert Threshold(norm=bound).for_groups(num_groups).sensitivity.total == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize("bound", [1e-60, 1e-46, 1e39, 1e60])
def test_bounds_beyond_single_precision_still_give_finite_factors(bound: float) -> None:
    norms = torch.tensor([[0.0], [1e-30], [1.0], [1e30]])
    factors = Threshold(norm=bound).for_groups(1).factors(norms)
    assert bool(factors.isfinite().all())
    assert bool((factors.double() * norms.double() <= bound * (1 + 1e-6)).all())


def test_short_gradients_are_left_alone_and_long_ones_shortened_to_the_bound() -> None:
    factors = Threshold(norm=2.0).for_groups(1).factors(torch.tensor([[0.0], [1.0], [2.0], [8.0]]))
    assert factors.flatten().tolist() == [1.0, 1.0, 1.0, 0.25]
