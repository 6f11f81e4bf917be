from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privet.errors import ArgumentError, PlanError
from privet.mechanism.codec import MASK, decode_piece, encode_piece
from privet.mechanism.granularity import Kept, Rows
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.mask_rates import Constant, GradualCooling
from privet.mechanism.masking import SharedRandomMask

LAYOUT = Layout.of([("a.weight", (8, 3)), ("a.bias", (8,))], OneGroup())
LIKE = torch.zeros(LAYOUT.num_coordinates)


def kept(mask: SharedRandomMask, steps: list[int], *, rng_seed: int = 0) -> list[list[int] | None]:
    run = mask.start(layout=LAYOUT, num_steps=12, steps_per_epoch=4)
    rng = np.random.default_rng(rng_seed)
    found: list[Kept | None] = [run.begin(step, rng, LIKE) for step in steps]
    return [None if each is None else each.index.tolist() for each in found]


@given(seed=st.integers(0, 2**40), order=st.permutations(range(12)), rng_seed=st.integers(0, 9))
def test_a_step_has_one_mask_whatever_was_asked_before_and_whoever_asks(
    seed: int, order: list[int], rng_seed: int
) -> None:
    mask = SharedRandomMask(schedule=Constant(value=0.5), seed=seed, refresh_every=2)
    in_turn = kept(mask, list(range(12)))
    assert kept(mask, order, rng_seed=rng_seed) == [in_turn[step] for step in order]


def test_masks_change_with_the_stretch_and_with_the_seed_and_not_inside_a_stretch() -> None:
    one = kept(SharedRandomMask(schedule=Constant(value=0.5), seed=1), list(range(12)))
    other = kept(SharedRandomMask(schedule=Constant(value=0.5), seed=2), list(range(12)))
    assert one[0] == one[3] != one[4]
    assert one[0] != other[0]


def test_the_share_follows_the_schedule() -> None:
    found = kept(SharedRandomMask(schedule=GradualCooling(final=0.5), seed=1), [0, 4, 8])
    assert [None if each is None else len(each) for each in found] == [None, 24, 16]


def test_a_shared_mask_can_be_written_down_and_read_back() -> None:
    mask = SharedRandomMask(schedule=Constant(value=0.3), seed=4, granularity=Rows(), refresh_every=3)
    assert decode_piece(encode_piece(mask, MASK, where="mask"), MASK, where="mask") == mask


def test_seeds_below_zero_and_parts_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(ArgumentError, match="seed"):
        SharedRandomMask(schedule=Constant(value=0.3), seed=-1)
    with pytest.raises(PlanError, match="schedule"):
        SharedRandomMask(schedule=0.3, seed=1)  # type: ignore[arg-type]
