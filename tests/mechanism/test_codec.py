"""Pieces in files: what is written is read back, and what cannot be read is refused with its place and a suggestion."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from typing import Any

import pytest
import tomli_w

from privet.errors import RecipeError
from privet.mechanism.ablations import NoNoise, Unclipped
from privet.mechanism.adaptive_noise import AdaptiveGaussian, PastGradients, ReleasedSquares
from privet.mechanism.changing_clipping import AdaptiveQuantile, Scheduled
from privet.mechanism.clipping import Automatic, KeepOrDrop, PerSampleAdaptive, Threshold
from privet.mechanism.codec import CLIPPING, GROUPING, MASK, NOISE, SAMPLING, Family, decode_piece, encode_piece
from privet.mechanism.epoch_sampling import Cyclic, Shuffle
from privet.mechanism.geometry import Diagonal, Factored, Isotropic, PerGroup
from privet.mechanism.granularity import Blocks, Coordinates, Rows
from privet.mechanism.grouping import ByName, OneGroup, PerLayer, PerParameter
from privet.mechanism.laplace import BlockL2, L2Laplace, ProductLaplace
from privet.mechanism.mask_rates import Constant, Cosine, GradualCooling, Linear
from privet.mechanism.masking import FrozenMask, NoMask, RandomMask, SharedRandomMask
from privet.mechanism.noise import Gaussian
from privet.mechanism.release_masks import ChosenMask, RankedMask
from privet.mechanism.sampling import FixedSize, FullBatch, Poisson
from privet.mechanism.shaped_noise import EllipticalGaussian, GroupwiseGaussian
from privet.mechanism.truncated import TruncatedPoisson, Truncation

PIECES: list[tuple[object, Family]] = [
    (Poisson(rate=0.1, steps=3, expected_batch_size=2), SAMPLING),
    (FullBatch(steps=3, expected_batch_size=2), SAMPLING),
    (Shuffle(batches=2, epochs=3, expected_batch_size=2), SAMPLING),
    (Cyclic(batches=2, epochs=3, expected_batch_size=2, secret_partition=True), SAMPLING),
    (FixedSize(dataset_size=9, batch_size=3, steps=2), SAMPLING),
    (TruncatedPoisson(rate=0.1, steps=3, dataset_size=9, max_batch_size=2), SAMPLING),
    (
        TruncatedPoisson(rate=0.1, steps=3, dataset_size=9, max_batch_size=2, truncation=Truncation.TOTAL_VARIATION),
        SAMPLING,
    ),
    (Threshold(norm=0.1), CLIPPING),
    (Threshold(norm=(0.1, 2.0)), CLIPPING),
    (KeepOrDrop(norm=1.0, cutoff=(3.0, 4.0)), CLIPPING),
    (Automatic(norm=0.1, stability=0.5), CLIPPING),
    (PerSampleAdaptive(norm=(0.1, 2.0)), CLIPPING),
    (AdaptiveQuantile(norm=0.1, count_noise_std=5.0), CLIPPING),
    (Scheduled(parts=(Threshold(norm=(0.1, 2.0)), KeepOrDrop(norm=1.0, cutoff=9.0)), switches=(0.95,)), CLIPPING),
    (Gaussian(noise_multiplier=1.1), NOISE),
    (Gaussian(), NOISE),
    (OneGroup(), GROUPING),
    (PerLayer(), GROUPING),
    (PerParameter(), GROUPING),
    (ByName(parts=(("a", "b"), ("c",))), GROUPING),
    (Unclipped(noise_unit=2.0), CLIPPING),
    (NoNoise(), NOISE),
    (EllipticalGaussian(geometry=Isotropic(), noise_multiplier=1.2), NOISE),
    (EllipticalGaussian(geometry=PerGroup(group_units=(1.0, 2.5)), preconditioning=0.5), NOISE),
    (EllipticalGaussian(geometry=Factored(rows=((1.0, 2.0), (1.0,)), columns=((0.5,), (1.0,)))), NOISE),
    (GroupwiseGaussian(noise_multiplier=0.9), NOISE),
    (L2Laplace(num_coordinates=7, noise_multiplier=3.0), NOISE),
    (ProductLaplace(sizes=(1.0, 2.0), noise_multiplier=3.0), NOISE),
    (BlockL2(block_of=(0, 1, 1), coefficients=(0.6, 0.8)), NOISE),
    *((piece, NOISE) for piece in (Isotropic(), PerGroup(group_units=(1.0,)), Diagonal(coordinate_units=(1.0, 0.5)))),
    (Factored(rows=((1.0,),), columns=((2.0, 3.0),)), NOISE),
    (AdaptiveGaussian(learning=PastGradients(first=5), preconditioning=0.0, power=0.25), NOISE),
    (ReleasedSquares(share=0.2, every=3, memory=0.0), NOISE),
    (PastGradients(decay=0.9), NOISE),
    (NoMask(), MASK),
    (RandomMask(schedule=GradualCooling(final=0.9), refresh_every=3), MASK),
    (RandomMask(schedule=Linear(first=0.1, last=0.5), granularity=Rows()), MASK),
    (SharedRandomMask(schedule=Constant(value=0.5), seed=3, granularity=Rows(), refresh_every=2), MASK),
    (RankedMask(schedule=Cosine(first=0.0, last=0.5), granularity=Blocks(num_rows=4)), MASK),
    (FrozenMask(rate=0.77, seed=3, granularity=Coordinates()), MASK),
    (ChosenMask(num_coordinates=9, frozen_bits="gAA="), MASK),
    (Constant(value=0.25), MASK),
    (GradualCooling(final=0.25), MASK),
    (Linear(first=0.25, last=0.0), MASK),
    (Cosine(first=0.25, last=0.0), MASK),
    (Coordinates(), MASK),
    (Rows(), MASK),
    (Blocks(num_rows=2), MASK),
]


@pytest.mark.parametrize(
    ("piece", "family"), PIECES, ids=lambda value: repr(value) if not isinstance(value, dict) else ""
)
def test_pieces_survive_json_and_toml(piece: object, family: Family) -> None:
    written = encode_piece(piece, family, where="here")
    assert decode_piece(json.loads(json.dumps(written)), family, where="here") == piece
    assert decode_piece(tomllib.loads(tomli_w.dumps(written)), family, where="here") == piece


def test_unset_fields_are_left_out() -> None:
    assert encode_piece(Gaussian(), NOISE, where="noise") == {"kind": "gaussian"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"kind": "poison", "rate": 0.1}, r"plan\.sampling\.kind is 'poison'. Did you mean 'poisson'"),
        (
            {"kind": "zebra"},
            r"plan\.sampling\.kind is 'zebra'. Known: .*cyclic, cyclic_poisson, fixed_size, full_batch, poisson",
        ),
        ({"rate": 0.1}, r"plan\.sampling\.kind is None"),
        ({"kind": ["poisson"]}, r"plan\.sampling\.kind"),
        ({"kind": "poisson", "rat": 0.1}, r"plan\.sampling\.rat is not an option of 'poisson'. Did you mean 'rate'"),
        ({"kind": "poisson", "rate": 0.1}, r"plan\.sampling \('poisson'\) lacks steps, expected_batch_size"),
        (
            {"kind": "full_batch", "steps": 0, "expected_batch_size": 1},
            r"plan\.sampling \('full_batch'\): steps must be",
        ),
        ("poisson", r"plan\.sampling must be a table with a 'kind', got str"),
        (None, r"plan\.sampling must be a table"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place_and_a_suggestion(data: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        decode_piece(data, SAMPLING, where="plan.sampling")


def test_a_value_of_the_wrong_shape_is_refused_with_its_place() -> None:
    for parts in ("head", ["head", "body"], 3, None, [[1]]):
        with pytest.raises(RecipeError, match=r"plan\.grouping"):
            decode_piece({"kind": "by_name", "parts": parts}, GROUPING, where="plan.grouping")


def test_a_piece_without_a_name_in_files_is_not_written_under_another_name() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Louder(Gaussian):
        """A subclass may mean another mechanism."""

    with pytest.raises(RecipeError, match="Louder, which has no name in files"):
        encode_piece(Louder(noise_multiplier=1.0), NOISE, where="noise")
