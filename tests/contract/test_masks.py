"""Laws of every mask: public, boolean, over the whole layout, and honoured by clipping and noise alike."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from privet.mechanism.codec import MASK, decode_piece, encode_piece
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.masking import Mask, NoMask

MEMBERS: list[Mask] = [NoMask()]
each_member = pytest.mark.parametrize("mask", MEMBERS, ids=repr)
LAYOUT = Layout.of([("a.weight", (4, 3)), ("a.bias", (4,)), ("b", ())], OneGroup())


@each_member
def test_keeps_everything_or_marks_every_coordinate_of_the_layout(mask: Mask) -> None:
    assert isinstance(mask, Mask)
    for step in (0, 1, 1000):
        keep = mask.keep(step, LAYOUT, np.random.default_rng(step), torch.zeros(LAYOUT.num_coordinates))
        if keep is not None:
            assert keep.dtype == torch.bool
            assert keep.shape == (LAYOUT.num_coordinates,)


@each_member
def test_does_not_look_at_the_values_of_the_sum(mask: Mask) -> None:
    choices = [
        mask.keep(3, LAYOUT, np.random.default_rng(5), torch.full((LAYOUT.num_coordinates,), value))
        for value in (0.0, 1e9, float("nan"))
    ]
    for choice in choices[1:]:
        assert (choice is None and choices[0] is None) or torch.equal(choice, choices[0])  # type: ignore[arg-type]


@each_member
def test_survives_json(mask: Mask) -> None:
    written = json.loads(json.dumps(encode_piece(mask, MASK, where="mask")))
    assert decode_piece(written, MASK, where="mask") == mask


def test_no_mask_keeps_everything_without_drawing() -> None:
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    assert NoMask().keep(0, LAYOUT, rng, torch.zeros(1)) is None
    assert rng.bit_generator.state == before
