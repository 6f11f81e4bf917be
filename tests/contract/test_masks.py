"""Laws of every mask: public, over the whole layout, one per logical step, and honoured by clipping and noise alike."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor

from privet.mechanism.ablations import NoNoise
from privet.mechanism.codec import MASK, decode_piece, encode_piece
from privet.mechanism.granularity import Blocks, Coordinates, Granularity, Kept, Rows
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.masking import FrozenMask, Mask, MaskRun, NoMask, RandomMask, RankedMask
from privet.mechanism.noise import Gaussian
from privet.mechanism.schedules import Constant, Cosine, GradualCooling, Linear
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.sums import ClippedSum, PrivateSum
from privet.training.randomness import KeystreamNoise

GRANULARITIES: list[Granularity] = [Coordinates(), Rows(), Blocks(num_rows=3)]
MEMBERS: list[Mask] = [
    NoMask(),
    *(RandomMask(schedule=GradualCooling(final=0.9), granularity=each) for each in GRANULARITIES),
    *(RankedMask(schedule=Constant(value=0.5), granularity=each) for each in GRANULARITIES),
    *(FrozenMask(rate=0.6, granularity=each) for each in GRANULARITIES),
    RandomMask(schedule=Linear(first=0.1, last=0.7), refresh_every=1),
    RandomMask(schedule=Cosine(first=0.7, last=0.0), refresh_every=5),
]
each_member = pytest.mark.parametrize("mask", MEMBERS, ids=repr)
LAYOUT = Layout.of(
    [("a.weight", (8, 3)), ("a.bias", (8,)), ("b.weight", (6, 8, 2, 2)), ("b.bias", (6,)), ("c", ())], OneGroup()
)
STEPS, EPOCH = 12, 4
LIKE = torch.zeros(LAYOUT.num_coordinates)


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
def test_keeps_everything_or_marks_every_coordinate_of_the_layout_in_all_its_forms(mask: Mask) -> None:
    assert isinstance(mask, Mask)
    for kept in walked(mask):
        if kept is None:
            continue
        assert kept.coordinates.dtype == torch.bool
        assert kept.coordinates.shape == (LAYOUT.num_coordinates,)
        assert 0 < int(kept.coordinates.sum()) < LAYOUT.num_coordinates
        assert torch.equal(kept.weights, kept.coordinates.to(LIKE.dtype))
        assert torch.equal(kept.index, kept.coordinates.nonzero().squeeze(1))


@each_member
def test_rows_are_whole_and_are_the_marked_ones(mask: Mask) -> None:
    is_structured = not isinstance(getattr(mask, "granularity", Coordinates()), Coordinates)
    for kept in walked(mask):
        if kept is None:
            continue
        assert (kept.rows is not None) == is_structured
        for where, shape, rows in zip(LAYOUT.slices, LAYOUT.shapes, kept.rows or (), strict=kept.rows is not None):
            by_row = kept.coordinates[where].reshape(shape[0] if shape else 1, -1)
            assert torch.equal(by_row.all(1), by_row.any(1))
            expected = by_row.all(1).nonzero().squeeze(1)
            assert len(expected) == len(by_row) if rows is None else torch.equal(rows, expected)


@each_member
def test_a_mask_changes_between_stretches_only(mask: Mask) -> None:
    length = getattr(mask, "refresh_every", None) or EPOCH
    found = walked(mask)
    for step in range(1, STEPS):
        if step % length:
            assert found[step] is found[step - 1]


@each_member
def test_does_not_look_at_the_values_of_the_sum(mask: Mask) -> None:
    choices = [walked(mask, like=torch.full_like(LIKE, value)) for value in (0.0, 1e9, float("nan"))]
    for other in choices[1:]:
        for left, right in zip(choices[0], other, strict=True):
            assert (left is None) == (right is None)
            assert left is None or right is None or torch.equal(left.coordinates, right.coordinates)


@each_member
def test_noise_stays_away_from_masked_coordinates_and_reaches_all_others(mask: Mask) -> None:
    for kept in walked(mask):
        flat = released(torch.zeros(LAYOUT.num_coordinates), kept).flat
        keep = torch.ones(LAYOUT.num_coordinates, dtype=torch.bool) if kept is None else kept.coordinates
        assert bool((flat[~keep] == 0).all())
        assert bool((flat[keep] != 0).all())


@each_member
def test_survives_json(mask: Mask) -> None:
    written = json.loads(json.dumps(encode_piece(mask, MASK, where="mask")))
    assert decode_piece(written, MASK, where="mask") == mask


@pytest.mark.parametrize(
    "mask",
    [
        NoMask(),
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
