from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.effects.feature_to_noise import (
    BoundConstants,
    PatchCell,
    PatchSetting,
    class_loss,
    disparity_sources,
    pretrained_start,
    pretraining_harms,
)
from privet.effects.radii import noise_walk_length
from privet.errors import ArgumentError

SETTING = PatchSetting(dimension=200, num_filters=20, patch_noise_std=0.5, noise_std=0.5)
CELL = PatchCell(feature_size=4.0, share=0.3)

CELLS = st.builds(PatchCell, feature_size=st.floats(0.1, 20), share=st.floats(0.01, 1))
SETTINGS = st.builds(
    PatchSetting,
    dimension=st.integers(1, 500),
    num_filters=st.integers(1, 50),
    patch_noise_std=st.floats(0, 3),
    noise_std=st.floats(0.01, 10),
    clip_norm=st.floats(0.05, 5),
    num_steps=st.integers(0, 500),
)


def test_ratio_and_clipping_factor_of_an_example_are_those_computed_by_hand() -> None:
    spread = 4 + 0.5 * math.sqrt(200)
    assert SETTING.feature_to_noise(CELL) == pytest.approx(16 / (0.5 * math.sqrt(20) * spread))
    assert SETTING.clip_factor(CELL) == pytest.approx(1 / (math.sqrt(0.1) * spread))
    assert replace(SETTING, clip_norm=100).clip_factor(CELL) == 1


@given(setting=SETTINGS, cell=CELLS)
@settings(max_examples=60, deadline=None)
def test_loss_falls_with_feature_and_share_and_rises_with_noise(setting: PatchSetting, cell: PatchCell) -> None:
    here = setting.upper_loss(cell)
    assert replace(setting, noise_std=2 * setting.noise_std).upper_loss(cell).total > here.total
    assert setting.upper_loss(replace(cell, share=cell.share / 2)).total > here.total
    # Equal where clipping takes away all that a longer feature gives.
    longer = replace(cell, feature_size=cell.feature_size * 2)
    assert setting.upper_loss(longer).privacy <= here.privacy * (1 + 1e-12)
    assert setting.lower_loss(cell).total <= here.total
    assert 0 < setting.clip_factor(cell) <= 1
    assert 0 < setting.contraction(cell) <= 1


@given(setting=SETTINGS, cell=CELLS, other=CELLS)
@settings(max_examples=60, deadline=None)
def test_the_three_sources_multiply_to_the_ratio_of_the_floors(
    setting: PatchSetting, cell: PatchCell, other: PatchCell
) -> None:
    found = disparity_sources(setting, cell, reference=other)
    ratio = setting.upper_loss(cell).privacy / setting.upper_loss(other).privacy
    assert found.total == pytest.approx(ratio, rel=1e-9)


def test_at_a_fixed_budget_the_floor_grows_with_the_root_of_the_steps() -> None:
    """Composition asks for noise that grows as the root of the number of steps."""
    short = SETTING.upper_loss(CELL).privacy
    longer = replace(SETTING, num_steps=4 * SETTING.num_steps, noise_std=2 * SETTING.noise_std)
    assert longer.upper_loss(CELL).privacy == pytest.approx(2 * short)


def test_an_attack_adds_its_radius_times_the_dual_length_of_the_noise_in_a_filter() -> None:
    length = noise_walk_length(learning_rate=0.5, noise_std=0.5, num_steps=320, num_parameters=200)
    euclidean = SETTING.adversarial_loss(CELL, radius=0.1, filter_noise=SETTING.filter_noise_l2)
    assert euclidean.adversarial == pytest.approx(0.1 * length)
    largest = SETTING.adversarial_loss(CELL, radius=0.1, filter_noise=SETTING.filter_noise_l1)
    assert largest.adversarial == pytest.approx(0.1 * length * math.sqrt(200 * 2 / math.pi))
    assert euclidean.total - euclidean.adversarial == SETTING.upper_loss(CELL).total


def test_without_noise_there_is_no_floor_and_without_a_feature_no_learning() -> None:
    quiet = replace(SETTING, noise_std=0.0)
    assert quiet.feature_to_noise(CELL) == math.inf
    assert quiet.upper_loss(CELL).privacy == 0
    assert SETTING.feature_to_noise(PatchCell(feature_size=0, share=0.5)) == 0
    assert SETTING.upper_loss(PatchCell(feature_size=0, share=0.5)).privacy == math.inf
    assert SETTING.upper_loss(PatchCell(feature_size=1, share=0)).privacy == math.inf


@given(margin=st.floats(0.01, 1000), angle=st.floats(0, math.pi))
@settings(max_examples=60, deadline=None)
def test_fine_tuning_begins_worse_than_from_scratch_beyond_half_a_right_angle(margin: float, angle: float) -> None:
    start = pretrained_start(angle=angle, learned_margin=margin)
    if abs(angle - math.pi / 4) > 1e-6:
        assert (start > math.log(2)) == pretraining_harms(angle) == (angle > math.pi / 4)
    assert SETTING.fine_tuning_loss(CELL, angle=angle, learned_margin=0).total == SETTING.upper_loss(CELL).total


def test_a_class_has_the_mean_loss_of_its_groups() -> None:
    assert class_loss([1.0, 3.0], [0.3, 0.1]) == pytest.approx(1.5)
    assert class_loss([1.0, math.inf], [1.0, 0.0]) == 1.0
    for shares in ([0.0, 0.0], [1.0]):
        with pytest.raises(ArgumentError):
            class_loss([1.0, 2.0], shares)


def test_constants_and_arguments_without_meaning_are_refused() -> None:
    with pytest.raises(ArgumentError, match="lower"):
        BoundConstants(lower=2.0, upper=1.0)
    with pytest.raises(ArgumentError, match="floor needs noise_std"):
        disparity_sources(replace(SETTING, noise_std=0.0), CELL, reference=CELL)
    for bad in ({"noise_std": -1.0}, {"dimension": 0}, {"noise_std": math.nan}, {"clip_norm": math.inf}):
        with pytest.raises(ArgumentError):
            replace(SETTING, **bad)  # type: ignore[arg-type]
