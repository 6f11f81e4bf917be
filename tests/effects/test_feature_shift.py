from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.datasets.two_patch import TwoPatch
from privet.effects.feature_shift import Array, Codes, equivalent_angle, feature_shift
from privet.errors import DataError

NAMES = ("first", "second")


def _drawn(degrees: float, seed: int, count: int = 4000) -> tuple[Array, Codes]:
    found = TwoPatch.one_feature_per_class(size=4.0).rotated(math.radians(degrees)).draw(count, seed=seed)
    return found.inputs.double().numpy(), found.labels.numpy()


@pytest.mark.parametrize("degrees", [0, 30, 45, 60, 90])
def test_the_margins_are_those_of_the_proposition_on_its_own_data(degrees: int) -> None:
    found = feature_shift(_drawn(0, 1), _drawn(degrees, 2), class_names=NAMES, num_resamples=50)
    angle = math.radians(degrees)
    both = sorted(entry.margin for entry in found.classes)
    assert both == pytest.approx([math.cos(angle) - math.sin(angle), math.cos(angle) + math.sin(angle)], abs=0.05)
    assert math.degrees(found.angle) == pytest.approx(degrees, abs=4)
    assert found.margin.value == pytest.approx(math.cos(angle), abs=0.03)
    assert found.margin.low < found.margin.value < found.margin.high


def test_harm_is_predicted_beyond_half_a_right_angle_and_on_average_beyond_a_right_one() -> None:
    near, far, further = (
        feature_shift(_drawn(0, 1), _drawn(degrees, 2), class_names=NAMES, num_resamples=20)
        for degrees in (35, 55, 120)
    )
    assert near.harmed_classes == ()
    assert len(far.harmed_classes) == 1
    assert not far.harms_on_average
    assert further.harms_on_average
    assert further.to_dict()["harmed_classes"] == list(further.harmed_classes)


def test_noise_of_few_public_examples_is_no_shift() -> None:
    margins = [
        feature_shift(_drawn(0, 10 + seed, 40), _drawn(0, 50 + seed, 2000), class_names=NAMES, num_resamples=2)
        for seed in range(30)
    ]
    assert np.mean([found.margin.value for found in margins]) == pytest.approx(1.0, abs=0.06)


@settings(max_examples=50, deadline=None)
@given(st.floats(-math.sqrt(2), 1.0))
def test_the_equivalent_angle_has_the_margin(margin: float) -> None:
    angle = equivalent_angle(margin)
    assert 0 <= math.degrees(angle) <= 135.0001
    assert math.cos(angle) - math.sin(angle) == pytest.approx(margin, abs=1e-9)


def test_margins_beyond_the_proposition_are_held_to_its_ends() -> None:
    assert equivalent_angle(3.0) == pytest.approx(0.0, abs=1e-9)
    assert math.degrees(equivalent_angle(-9.0)) == pytest.approx(135.0)


def test_data_that_tell_nothing_are_refused() -> None:
    features, labels = _drawn(0, 1, 100)
    with pytest.raises(DataError, match="two examples or more"):
        feature_shift((features, np.zeros_like(labels)), (features, labels), class_names=NAMES)
    with pytest.raises(DataError, match="equally many features"):
        feature_shift((features[:, :1], labels), (features, labels), class_names=NAMES)
    broken = features.copy()
    broken[3] = np.nan
    with pytest.raises(DataError, match="finite"):
        feature_shift((broken, labels), (features, labels), class_names=NAMES)
    with pytest.raises(DataError, match="beyond chance"):
        feature_shift((np.ones_like(features), labels), (features, labels), class_names=NAMES)
