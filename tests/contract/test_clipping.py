"""Laws of every clipping rule: nothing longer than its bound comes out, whatever goes in."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from privet.mechanism.ablations import Unclipped
from privet.mechanism.changing_clipping import AdaptiveQuantile, Scheduled
from privet.mechanism.clipping import (
    Automatic,
    Clipping,
    ClippingRule,
    KeepOrDrop,
    PerSampleAdaptive,
    Threshold,
)
from privet.mechanism.codec import CLIPPING, decode_piece, encode_piece
from privet.mechanism.events import same_event
from privet.training.randomness import KeystreamNoise

NOISE = GaussianDpEvent(1.3)

CLIPPINGS: Mapping[type, Sequence[tuple[Clipping, int]]] = {
    Threshold: [
        (Threshold(norm=1.0), 1),
        (Threshold(norm=0.1), 3),
        (Threshold(norm=3e4), 7),
        (Threshold(norm=(0.5,)), 1),
        (Threshold(norm=(0.3, 4.0, 120.0)), 3),
    ],
    KeepOrDrop: [
        (KeepOrDrop(norm=1.0, cutoff=210.0), 1),
        (KeepOrDrop(norm=0.1, cutoff=0.1), 3),
        (KeepOrDrop(norm=(1.5, 0.3), cutoff=75.0), 2),
        (KeepOrDrop(norm=1e-3, cutoff=(2.0, 1e30)), 2),
    ],
    Automatic: [
        (Automatic(), 1),
        (Automatic(norm=0.1, stability=1e-6), 3),
        (Automatic(norm=(0.3, 4.0), stability=10.0), 2),
    ],
    PerSampleAdaptive: [(PerSampleAdaptive(), 1), (PerSampleAdaptive(norm=(0.3, 40.0), weakness=1e-3), 2)],
    AdaptiveQuantile: [(AdaptiveQuantile(norm=0.5, count_noise_std=3.0), 2)],
    Scheduled: [
        (Scheduled(parts=(Threshold(norm=1.0), KeepOrDrop(norm=1.0, cutoff=9.0)), switches=(0.5,)), 2),
    ],
    Unclipped: [(Unclipped(), 1), (Unclipped(noise_unit=0.5), 2)],
}
"""Every clipping piece, with a number of groups that it fits."""
MEMBERS = [pair for pairs in CLIPPINGS.values() for pair in pairs]
each_piece = pytest.mark.parametrize(("piece", "num_groups"), MEMBERS, ids=str)
each_member = pytest.mark.parametrize(
    ("piece", "num_groups"), [pair for pair in MEMBERS if pair[0].not_private_because is None], ids=str
)
STEPS = 6
DTYPES = (torch.float32, torch.float64)

# lengths of gradients, the hostile ones among them: zero, denormal, near overflow, infinite, not a number
lengths = st.one_of(
    st.floats(0, float(torch.finfo(torch.float32).max), width=32),
    st.sampled_from([0.0, 1e-45, 1e-38, 1e-20, 1.0, 1e30, 1e38, 3.4e38, math.inf, math.nan]),
)


def norms_for(num_groups: int) -> st.SearchStrategy[list[list[float]]]:
    return st.lists(st.lists(lengths, min_size=num_groups, max_size=num_groups), min_size=1, max_size=5)


@functools.cache
def rules_of(piece: Clipping, num_groups: int) -> list[ClippingRule]:
    """Return the rules of a piece by itself, and those of all steps of a run in which some norms were seen."""
    run = piece.start(num_groups=num_groups, num_steps=STEPS, expected_batch_size=4.0)
    found, source = [piece.for_groups(num_groups)], KeystreamNoise(bytes(48))
    for step in range(STEPS):
        found.append(run.begin(step, torch.zeros(1)))
        run.watch(torch.linspace(0, 3, 4 * num_groups).view(4, num_groups))
        run.release(NOISE, source)
    assert all(isinstance(rule, ClippingRule) for rule in found)
    return found


def bounds_of(rule: ClippingRule) -> Tensor:
    return torch.tensor(rule.sensitivity.bounds, dtype=torch.float64)


@each_piece
def test_is_a_clipping_piece_by_protocol_and_survives_json(piece: Clipping, num_groups: int) -> None:
    assert isinstance(piece, Clipping)
    written = json.loads(json.dumps(encode_piece(piece, CLIPPING, where="clipping")))
    assert decode_piece(written, CLIPPING, where="clipping") == piece


@each_piece
def test_what_is_not_bounded_is_charged_as_not_private_and_nothing_else_is(piece: Clipping, num_groups: int) -> None:
    is_private = not isinstance(piece.joint_event(NOISE), NonPrivateDpEvent)
    assert is_private != (piece.not_private_because is not None)
    norms = torch.full((1, num_groups), 1e4, dtype=torch.float64)
    is_bounded = all(
        bool((1e4 * rule.factors(norms) <= bounds_of(rule) * (1 + 1e-9)).all()) for rule in rules_of(piece, num_groups)
    )
    assert is_bounded == is_private


@each_member
@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_factors_are_finite_and_keep_every_group_within_its_bound(
    piece: Clipping, num_groups: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    norms = torch.tensor(data.draw(norms_for(num_groups)), dtype=dtype)
    for rule in rules_of(piece, num_groups):
        factors = rule.factors(norms)
        assert factors.shape == norms.shape
        assert bool(factors.isfinite().all())
        assert bool((factors >= 0).all())
        known = norms.isfinite()
        kept = (factors.double() * norms.double())[known]
        bounds = bounds_of(rule).expand_as(norms)[known]
        # a factor below the normal range of its type is a multiple of the smallest number there is
        grain = norms.double()[known] * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        assert bool((kept <= bounds * (1 + 1e-6) + grain).all())
        assert bool((factors[~known] == 0).all())


@each_member
def test_one_record_more_moves_the_sum_by_the_bound_and_another_one_by_twice_the_bound(
    piece: Clipping, num_groups: int
) -> None:
    """Vectors, not norms: every group of every example is one of three coordinates of its own."""
    generator = torch.Generator().manual_seed(5)
    for rule in rules_of(piece, num_groups):
        lengths = 10 ** (torch.rand(60, num_groups, 1, generator=generator, dtype=torch.float64) * 8 - 4)
        gradients = torch.randn(60, num_groups, 3, generator=generator, dtype=torch.float64) * lengths
        parts = gradients * rule.factors(gradients.norm(dim=2)).unsqueeze(2)
        bounds = bounds_of(rule)
        total = parts.sum(0)
        removed = torch.stack([total - torch.cat([parts[:i], parts[i + 1 :]]).sum(0) for i in range(60)])
        assert bool((removed.norm(dim=2) <= bounds * (1 + 1e-9)).all())
        assert float(removed.flatten(1).norm(dim=1).max()) <= rule.sensitivity.total * (1 + 1e-9)
        replaced = torch.stack([parts[i] + parts[j] for i in range(60) for j in range(i)])  # opposite gradients
        assert bool((replaced.norm(dim=2) <= 2 * bounds * (1 + 1e-9)).all())


@each_member
@given(data=st.data())
@settings(deadline=None, max_examples=15)
def test_a_factor_depends_on_its_own_row_alone(piece: Clipping, num_groups: int, data: st.DataObject) -> None:
    norms = torch.tensor(data.draw(norms_for(num_groups)))
    rule = rules_of(piece, num_groups)[-1]
    together = rule.factors(norms)
    for index in range(len(norms)):
        assert torch.equal(together[index : index + 1], rule.factors(norms[index : index + 1]))
    order = data.draw(st.permutations(range(len(norms))))
    assert torch.equal(together[list(order)], rule.factors(norms[list(order)]))


@each_member
def test_saturating_every_group_reaches_the_declared_total_and_no_more(piece: Clipping, num_groups: int) -> None:
    for rule in rules_of(piece, num_groups):
        made_by = rule.piece  # type: ignore[attr-defined]
        # the longest gradient that still counts
        longest = made_by.cutoffs(num_groups) if isinstance(made_by, KeepOrDrop) else (1e15,) * num_groups
        norms = torch.tensor([longest], dtype=torch.float64)
        kept = (rule.factors(norms) * norms).norm()
        assert float(kept) == pytest.approx(rule.sensitivity.total, rel=1e-12)
        assert len(rule.sensitivity.bounds) == num_groups
        assert rule.sensitivity.norm is piece.norm_kind


@each_piece
def test_what_a_step_releases_beside_its_sum_costs_what_was_announced(piece: Clipping, num_groups: int) -> None:
    run = piece.start(num_groups=num_groups, num_steps=STEPS, expected_batch_size=4.0)
    for step in range(STEPS):
        run.begin(step, torch.zeros(1))
        run.watch(torch.ones(4, num_groups))
        assert same_event(run.release(NOISE, KeystreamNoise(bytes(48))), piece.joint_event(NOISE))


@each_piece
def test_a_step_that_begins_again_has_seen_nobody(piece: Clipping, num_groups: int) -> None:
    def next_bounds(passes: int) -> tuple[float, ...]:
        run = piece.start(num_groups=num_groups, num_steps=STEPS, expected_batch_size=4.0)
        for _ in range(passes):
            run.begin(0, torch.zeros(1))
            run.watch(torch.full((4, num_groups), 1e3))
        run.release(NOISE, KeystreamNoise(bytes(48)))
        return run.begin(1, torch.zeros(1)).sensitivity.bounds

    assert next_bounds(1) == next_bounds(3)


@each_piece
def test_a_run_goes_on_from_its_state_as_if_it_had_not_stopped(piece: Clipping, num_groups: int) -> None:
    first, second = (
        piece.start(num_groups=num_groups, num_steps=STEPS, expected_batch_size=4.0) for _ in range(2)
    )  # fmt: skip
    first.begin(0, torch.zeros(1))
    first.watch(torch.ones(4, num_groups))
    first.release(NOISE, KeystreamNoise(bytes(48)))
    second.restore(json.loads(json.dumps(first.state())))
    for step in (1, STEPS - 1):
        bounds = [run.begin(step, torch.zeros(1)).sensitivity.bounds for run in (first, second)]
        assert bounds[0] == pytest.approx(bounds[1])


@each_piece
def test_an_empty_batch_has_no_factors(piece: Clipping, num_groups: int) -> None:
    for rule in rules_of(piece, num_groups):
        assert rule.factors(torch.zeros(0, num_groups)).shape == (0, num_groups)


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
