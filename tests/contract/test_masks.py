"""Laws of every mask: public, over the whole layout, one per logical step, and honoured by clipping and noise alike."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from privet.mechanism.ablations import NoNoise
from privet.mechanism.codec import MASK, decode_piece, encode_piece
from privet.mechanism.granularity import Blocks, Coordinates, Granularity, Kept, Rows
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.mask_rates import Constant, Cosine, GradualCooling, Linear, RateSchedule
from privet.mechanism.masking import FrozenMask, Mask, MaskRun, NoMask, RandomMask, SharedRandomMask
from privet.mechanism.noise import Gaussian
from privet.mechanism.release_masks import ChosenMask, RankedMask
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.sums import ClippedSum, PrivateSum
from privet.training.randomness import KeystreamNoise

GRANULARITIES: Mapping[type, Sequence[Granularity]] = {
    Coordinates: [Coordinates()],
    Rows: [Rows()],
    Blocks: [Blocks(num_rows=3)],
}
SCHEDULES: Mapping[type, Sequence[RateSchedule]] = {
    Constant: [Constant(value=0.5), Constant(value=0.0)],
    Linear: [Linear(first=0.1, last=0.7)],
    Cosine: [Cosine(first=0.7, last=0.0)],
    GradualCooling: [GradualCooling(final=0.9)],
}
ALL_GRANULARITIES = [piece for pieces in GRANULARITIES.values() for piece in pieces]
LAYOUT = Layout.of(
    [("a.weight", (8, 3)), ("a.bias", (8,)), ("b.weight", (6, 8, 2, 2)), ("b.bias", (6,)), ("c", ())], OneGroup()
)
STEPS, EPOCH = 12, 4
LIKE = torch.zeros(LAYOUT.num_coordinates)
LISTED = np.arange(LAYOUT.num_coordinates) % 4 == 0


@dataclass(frozen=True, kw_only=True)
class Member:
    """A mask with what it declares.

    Attributes:
        mask: The mask.
        rates: The share that it masks at each step.
        stretch: Steps for which a mask holds.
        are_rows: Whether it masks whole rows.
    """

    mask: Mask
    rates: Callable[[int], float]
    stretch: int = EPOCH
    are_rows: bool = False

    def __str__(self) -> str:
        return repr(self.mask)


def course(schedule: RateSchedule, every: int = EPOCH) -> Callable[[int], float]:
    last = -(-STEPS // every) - 1
    return lambda step: schedule.rate((step // every) / last)


def after_a_stretch(rate: float) -> Callable[[int], float]:
    return lambda step: rate if step >= EPOCH else 0.0


def always(rate: float) -> Callable[[int], float]:
    return lambda step: rate


COOLING = GradualCooling(final=0.9)
MASKS: Mapping[type, Sequence[Member]] = {
    NoMask: [Member(mask=NoMask(), rates=always(0.0))],
    RandomMask: [
        *(
            Member(
                mask=RandomMask(schedule=COOLING, granularity=each),
                rates=course(COOLING),
                are_rows=each != Coordinates(),
            )
            for each in ALL_GRANULARITIES
        ),
        *(
            Member(mask=RandomMask(schedule=each, refresh_every=every), rates=course(each, every), stretch=every)
            for (each, *_), every in zip(SCHEDULES.values(), (1, 1, 5, 3), strict=True)
        ),
    ],
    SharedRandomMask: [
        Member(
            mask=SharedRandomMask(schedule=COOLING, seed=5, granularity=each),
            rates=course(COOLING),
            are_rows=each != Coordinates(),
        )
        for each in ALL_GRANULARITIES
    ],
    RankedMask: [
        Member(
            mask=RankedMask(schedule=Constant(value=0.5), granularity=each),
            rates=after_a_stretch(0.5),
            are_rows=each != Coordinates(),
        )
        for each in ALL_GRANULARITIES
    ],
    FrozenMask: [
        Member(mask=FrozenMask(rate=0.6, granularity=each), rates=always(0.6), are_rows=each != Coordinates())
        for each in ALL_GRANULARITIES
    ],
    ChosenMask: [Member(mask=ChosenMask.freezing(LISTED), rates=always(float(LISTED.mean())))],
}
MEMBERS = [member for members in MASKS.values() for member in members]
each_member = pytest.mark.parametrize("member", MEMBERS, ids=str)


def started(mask: Mask) -> MaskRun:
    return mask.start(layout=LAYOUT, num_steps=STEPS, steps_per_epoch=EPOCH)


def released(flat: Tensor, kept: Kept | None) -> PrivateSum:
    keep = None if kept is None else kept.coordinates
    clipped = ClippedSum(
        flat=flat, layout=LAYOUT, sensitivity=Sensitivity(bounds=(1.0,)), keep=keep, kept=kept
    )  # fmt: skip
    return Gaussian(noise_multiplier=1.0).add(clipped, KeystreamNoise(bytes(48)))


def walked(mask: Mask, *, seed: int = 0, like: Tensor = LIKE) -> list[Kept | None]:
    """The masks of a whole run whose released sums are noise alone."""
    run, rng, found = started(mask), np.random.default_rng(seed), []
    for step in range(STEPS):
        kept = run.begin(step, rng, like)
        run.watch(released(torch.zeros(LAYOUT.num_coordinates), kept), kept=kept)
        found.append(kept)
    return found


@each_member
def test_keeps_everything_or_marks_every_coordinate_of_the_layout_in_all_its_forms(member: Member) -> None:
    assert isinstance(member.mask, Mask)
    for kept in walked(member.mask):
        if kept is None:
            continue
        assert kept.coordinates.dtype == torch.bool
        assert kept.coordinates.shape == (LAYOUT.num_coordinates,)
        assert 0 < int(kept.coordinates.sum()) < LAYOUT.num_coordinates
        assert torch.equal(kept.weights, kept.coordinates.to(LIKE.dtype))
        assert torch.equal(kept.index, kept.coordinates.nonzero().squeeze(1))


@each_member
def test_rows_are_whole_and_are_the_marked_ones(member: Member) -> None:
    for kept in walked(member.mask):
        if kept is None:
            continue
        assert (kept.rows is not None) == member.are_rows
        for where, shape, rows in zip(LAYOUT.slices, LAYOUT.shapes, kept.rows or (), strict=kept.rows is not None):
            by_row = kept.coordinates[where].reshape(shape[0] if shape else 1, -1)
            assert torch.equal(by_row.all(1), by_row.any(1))
            expected = by_row.all(1).nonzero().squeeze(1)
            assert len(expected) == len(by_row) if rows is None else torch.equal(rows, expected)


@each_member
def test_a_mask_changes_between_stretches_only(member: Member) -> None:
    found = walked(member.mask)
    for step in range(1, STEPS):
        if step % member.stretch:
            assert found[step] is found[step - 1]


@each_member
def test_does_not_look_at_the_values_of_the_sum(member: Member) -> None:
    choices = [walked(member.mask, like=torch.full_like(LIKE, value)) for value in (0.0, 1e9, float("nan"))]
    for other in choices[1:]:
        for left, right in zip(choices[0], other, strict=True):
            assert (left is None) == (right is None)
            assert left is None or right is None or torch.equal(left.coordinates, right.coordinates)


@each_member
def test_noise_stays_away_from_masked_coordinates_and_reaches_all_others(member: Member) -> None:
    for kept in walked(member.mask):
        flat = released(torch.zeros(LAYOUT.num_coordinates), kept).flat
        keep = torch.ones(LAYOUT.num_coordinates, dtype=torch.bool) if kept is None else kept.coordinates
        assert bool((flat[~keep] == 0).all())
        assert bool((flat[keep] != 0).all())


@each_member
def test_survives_json(member: Member) -> None:
    written = json.loads(json.dumps(encode_piece(member.mask, MASK, where="mask")))
    assert decode_piece(written, MASK, where="mask") == member.mask


@each_member
def test_masks_the_declared_share_of_the_coordinates(member: Member) -> None:
    """Of rows and blocks every layer gives its share, rounded down; so many coordinates lie in none that are whole."""
    for step, kept in enumerate(walked(member.mask)):
        rate = member.rates(step)
        share = 0.0 if kept is None else 1 - float(kept.coordinates.double().mean())
        if member.are_rows:
            assert rate - 0.5 < share <= rate + 1e-9
        else:
            assert share == pytest.approx(math.floor(rate * LAYOUT.num_coordinates + 1e-6) / LAYOUT.num_coordinates)


@each_member
def test_the_same_generator_draws_the_same_masks(member: Member) -> None:
    for left, right in zip(walked(member.mask, seed=3), walked(member.mask, seed=3), strict=True):
        assert (left is None) == (right is None)
        assert left is None or right is None or torch.equal(left.coordinates, right.coordinates)


@pytest.mark.parametrize("granularity", ALL_GRANULARITIES, ids=repr)
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.99])
def test_units_cover_every_coordinate_once_and_one_of_each_stratum_stays(granularity: Granularity, rate: float) -> None:
    assert isinstance(granularity, Granularity)
    units = granularity.units(LAYOUT)
    owners = [np.flatnonzero(units.mean_squares(one)) for one in np.eye(LAYOUT.num_coordinates)]
    assert all(len(found) == 1 for found in owners), "each coordinate counts for one unit"
    assert {int(found[0]) for found in owners} == set(range(units.number))
    assert sum(units.strata) == units.number
    assert all(0 <= number < size for number, size in zip(units.num_dropped(rate), units.strata, strict=True))
    ones = units.mean_squares(np.ones(LAYOUT.num_coordinates))
    assert np.allclose(ones, 1.0), "each unit measures all its coordinates, and no other"


@pytest.mark.parametrize("schedule", [piece for pieces in SCHEDULES.values() for piece in pieces], ids=repr)
def test_a_schedule_is_a_rate_at_every_time_and_depends_on_nothing_else(schedule: RateSchedule) -> None:
    assert isinstance(schedule, RateSchedule)
    for progress in np.linspace(0, 1, 41):
        assert 0 <= schedule.rate(float(progress)) < 1
        assert schedule.rate(float(progress)) == schedule.rate(float(progress))
    written = json.loads(json.dumps(encode_piece(schedule, MASK, where="schedule")))
    assert decode_piece(written, MASK, where="schedule") == schedule
    steps = [schedule.rate(step / 40) for step in range(41)]
    rises = [later - earlier for earlier, later in pairwise(steps)]
    assert all(rise >= -1e-12 for rise in rises) or all(rise <= 1e-12 for rise in rises), "from one end to the other"


@pytest.mark.parametrize(
    "mask",
    [
        NoMask(),
        ChosenMask.freezing(np.zeros(LAYOUT.num_coordinates, dtype=np.bool_)),
        SharedRandomMask(schedule=Constant(value=0.0), seed=1),
        RandomMask(schedule=Constant(value=0.0)),
        RankedMask(schedule=Constant(value=0.0)),
        FrozenMask(rate=0.0),
    ],
    ids=repr,
)
def test_at_rate_zero_everything_is_kept_and_nothing_is_drawn(mask: Mask) -> None:
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    run = started(mask)
    for step in range(STEPS):
        assert run.begin(step, rng, LIKE) is None
        private = NoNoise().add(
            ClippedSum(flat=torch.ones_like(LIKE), layout=LAYOUT, sensitivity=Sensitivity(bounds=(1.0,))),
            KeystreamNoise(bytes(48)),
        )
        run.watch(private, kept=None)
    assert rng.bit_generator.state == before
